package sim

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/sim/memapi"
)

// recorder keeps an answer.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }

// Process is a running replica.
type Process interface {
	// Stop has it end in good order; Kill at once. Neither waits.
	Stop()
	Kill()
}

// faulty is what goes wrong now.
type faulty struct {
	launch    func(Launch) Process
	processes [Replicas]Process
	started   int
	under     map[string]Fault // by a name of its own
	spans     []Fault          // those that have begun
	killed    map[*memapi.Client]bool
}

// Launch is a process that is to run.
type Launch struct {
	Mode   string
	Node   string // that it runs on, in mode imds
	Client *memapi.Client
	AWS    AWS
}

// Start starts the replicas with launch, and again those that a fault ends. launch must not wait, and must
// not call the world's exported methods before it returns.
func (w *World) Start(launch func(Launch) Process) {
	w.Do(func() {
		w.faulty.launch, w.faulty.under, w.faulty.killed = launch, map[string]Fault{}, map[*memapi.Client]bool{}
		for r := range Replicas {
			w.after(time.Duration(r)*700*time.Millisecond, fmt.Sprint("start ", r), func() { w.startReplica(r) })
		}
		w.startAgents()
	})
}

func (w *World) startReplica(r int) {
	if w.faulty.processes[r] != nil || w.faulty.launch == nil {
		return
	}
	w.faulty.started++
	name := fmt.Sprintf("replica-%d.%d", r, w.faulty.started)
	client := w.Client(name)
	client.Fate = w.fate(r)
	w.clients[name], w.replicas[r] = true, client
	w.note("starts %s", name)
	mode := ModeQueue
	if w.Scene.Intake == IntakeIMDS {
		mode = ModeDrain
	}
	w.faulty.processes[r] = w.faulty.launch(Launch{mode, "", client, AWS{w, client, nil}})
	for _, f := range w.faulty.under {
		w.apply(f, client, r)
	}
}

// End ends all replicas in good order, and all faults.
func (w *World) End() {
	w.Do(func() {
		w.faulty.launch = nil
		for r, p := range w.faulty.processes {
			w.replicas[r].Down(nil)
			w.replicas[r].Silent(false)
			if p != nil {
				p.Stop()
			}
		}
		for _, a := range w.agents {
			a.client.Down(nil)
			if a.process != nil {
				a.process.Stop()
			}
		}
		clear(w.faulty.under)
		w.CatchUp()
	})
}

// ended reports whether the replicas have ended, all of them.
func (w *World) ended() bool { return w.faulty.launch == nil }

func (w *World) planFaults() {
	for i, f := range w.Scene.Faults {
		name := fmt.Sprintf("fault %d", i)
		w.at(f.From, name, func() { w.begin(name, f) })
	}
}

func (w *World) begin(name string, f Fault) {
	w.note("fault: %s of replica %d for %s, takes %s, %s behind %s", f.What, f.Replica, f.For, f.Takes, f.Behind, f.Plural)
	w.faulty.spans = append(w.faulty.spans, f)
	switch f.What {
	case FaultKill, FaultStop:
		p := w.faulty.processes[f.Replica]
		if p == nil {
			return
		}
		w.faulty.processes[f.Replica] = nil
		if f.What == FaultKill {
			w.replicas[f.Replica].Down(errRefused)
			w.faulty.killed[w.replicas[f.Replica]] = true
			p.Kill()
		} else {
			p.Stop()
		}
		w.after(f.For, name+" ends", func() { w.startReplica(f.Replica) })
		return
	case FaultLease:
		w.Remove(memapi.Leases, Namespace+"/spot-handler", byOperator)
		return
	case FaultBreak:
		w.BreakWatches(nil, func(*memapi.Kind) bool { return true })
		return
	case FaultExpire:
		w.Expire()
		w.BreakWatches(nil, func(*memapi.Kind) bool { return true })
		return
	}
	if f.What == FaultOlder {
		w.BreakWatches(nil, func(*memapi.Kind) bool { return true })
		behind := min(f.Behind, time.Since(w.began)-time.Second) // no cache is older than the cluster
		w.FallBehind(behind, func(k *memapi.Kind) bool { return f.Plural == "" || k.Plural == f.Plural })
	}
	w.faulty.under[name] = f
	for r, client := range w.replicas {
		if client != nil && w.faulty.processes[r] != nil {
			w.apply(f, client, r)
		}
	}
	for _, a := range w.agents {
		w.apply(f, a.client, -1)
	}
	if f.What == FaultTouches {
		w.touch(name)
	}
	w.after(f.For, name+" ends", func() {
		delete(w.faulty.under, name)
		if f.What == FaultOlder {
			w.CatchUp()
		}
		w.note("fault: %s has ended", f.What)
		for node, a := range w.agents {
			if f.What == FaultDown && w.alive(node) {
				a.client.Down(nil)
			}
		}
		for r, client := range w.replicas {
			if client == nil || w.faulty.processes[r] == nil {
				continue
			}
			switch f.What {
			case FaultDown:
				client.Down(nil)
			case FaultSilent:
				if f.Replica == r {
					client.Silent(false)
				}
			}
		}
	})
}

// apply has a fault take hold of a process.
func (w *World) apply(f Fault, client *memapi.Client, r int) {
	switch f.What {
	case FaultDown:
		client.Down(errRefused)
	case FaultSilent:
		if f.Replica == r {
			client.Silent(true)
			// The connection is found dead by its ping: 10 s of silence, and 5 s without an answer.
			w.after(15*time.Second, "ping "+client.Name, func() {
				if _, on := w.silenced(r); on {
					w.BreakWatches(client, func(*memapi.Kind) bool { return true })
				}
			})
		}
	}
}

func (w *World) silenced(r int) (Fault, bool) {
	for _, f := range w.faulty.under {
		if f.What == FaultSilent && f.Replica == r {
			return f, true
		}
	}
	return Fault{}, false
}

// touch is somebody who changes Nodes all the time, as their kubelets do.
func (w *World) touch(name string) {
	if _, on := w.faulty.under[name]; !on {
		return
	}
	for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
		w.touchNode(node.Name)
	}
	w.after(700*time.Millisecond, name+" touches", func() { w.touch(name) })
}

// touchNode changes what is nobody's of ours.
func (w *World) touchNode(name string) {
	node := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, name)
	if node == nil {
		return
	}
	changed := node.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}
	changed.Annotations["example.com/touched"] = fmt.Sprint(w.Version())
	w.Put(memapi.Nodes, changed, byKubelet)
}

// fate says what happens to the requests of a replica.
func (w *World) fate(r int) func(*memapi.Request) memapi.Fate {
	return func(q *memapi.Request) (fate memapi.Fate) {
		d, rates := w.draw(), w.Scene.Rates
		name := fmt.Sprint(r, " ", q.What(), " ", q.Nth)
		chance := func(p float64, what string) bool { return d.Chance(p, name, what) }
		fate.Lag = rates.Lag
		if w.crowd.Seats > 0 {
			if q.Verb != "watch" {
				w.Do(func() { fate.Before = w.takeSeat() })
			}
			return fate
		}
		w.Do(func() {
			if q.Verb == "patch" && w.judge.twoLead() {
				fate.Before = undoes // else each would undo the other's writes without end
			}
			for _, f := range w.faulty.under {
				marks := f.What == FaultMarks && q.Kind == memapi.Nodes && q.Verb == "patch" && (!f.Some || chance(0.5, "is sick"))
				if f.What == FaultSlow || marks {
					fate.Before = f.Takes
				}
				if f.What == FaultDenies && q.Kind == memapi.Pods && q.Subresource == "status" {
					fate.Refused = memapi.Trouble(http.StatusForbidden)
				}
			}
		})
		if chance(rates.Slow, "slow") {
			fate.Before += d.Between(0, 2*time.Second, name, "before")
			fate.After += d.Between(0, 2*time.Second, name, "after")
		}
		switch {
		case chance(rates.Error, "error"):
			fate.Refused = memapi.Trouble(Pick(d, []int{500, 503, 429, 504}, name, "which error"))
			if q.Subresource == "eviction" {
				fate.RetryAfter = Pick(d, []int{1, 8, 32}, name, "retry after")
			}
		case chance(rates.Lost, "lost"):
			fate.Lost = errLost
		case mayConflict(q) && chance(rates.Conflict, "conflict"):
			w.Do(func() { w.touchNode(q.Name) }) // a conflict without a change would never end
		case chance(rates.Cut, "cut"):
			fate.Cut = q.Subresource == "eviction"
		}
		return fate
	}
}

// undoes is how long a write takes while two processes lead.
const undoes = 20 * time.Millisecond

// mayConflict reports whether the request carries the version of what it changes.
func mayConflict(q *memapi.Request) bool {
	return q.Verb == "patch" && q.PatchType == types.MergePatchType && q.Kind == memapi.Nodes
}

var errLost = fmt.Errorf("read tcp: %w", memapi.ErrBroken)

// admit is an admission webhook for evictions.
func (w *World) admit(ctx context.Context, q *memapi.Request) error {
	if q.Subresource != "eviction" {
		return nil
	}
	var slow *Fault
	w.Do(func() {
		for _, f := range w.faulty.under {
			if f.What == FaultAdmit {
				slow = &f
			}
		}
	})
	takes, fails := w.Scene.Webhook, false
	if slow != nil {
		takes, fails = slow.Takes, slow.Fails
	}
	if takes >= holdsUp || fails {
		heldUp := func(more int) {
			w.Do(func() {
				w.judge.heldUp(q.Key())
				w.judge.allHeldUp(more)
			})
		}
		heldUp(1) // the node can be gone before the webhook answers
		defer heldUp(-1)
	}
	if takes == 0 {
		return nil
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if fails {
		return memapi.Trouble(http.StatusInternalServerError)
	}
	return nil
}

// holdsUp is how long a webhook has to take to excuse a late eviction. One that is only slow is no excuse, however many
// evictions it sees.
const holdsUp = 2 * time.Second

// reaches returns why a process does not reach AWS. The metadata service is on the same machine.
func (a AWS) reaches(ctx context.Context) error {
	var err error
	a.world.Do(func() {
		if a.world.faulty.killed[a.client] {
			err = errRefused
		}
		for _, f := range a.world.faulty.under {
			if f.What == FaultQueue && a.metadata == nil {
				err = errRefused
			}
		}
	})
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// disturbed reports whether a fault was under way, or had just ended, in this time: whoever was to act
// might not have been able to.
func (w *World) disturbed(from, to time.Duration) bool {
	for _, f := range w.faulty.spans {
		if f.excuses() && f.From < to && f.to()+recovery > from {
			return true
		}
	}
	return false
}

// recovery is how long after a fault everything works again: a lease of 6 s runs out and is taken within a
// second or two, and requests are made again within 5 s.
const recovery = 15 * time.Second

// admitsNothing reports whether a webhook has let no eviction pass in all of this time: those that are not sent, as
// others hang, could not have passed either.
func (w *World) admitsNothing(from, to time.Duration) bool {
	return slices.ContainsFunc(w.faulty.spans, func(f Fault) bool {
		return f.What == FaultAdmit && (f.Takes >= hangs || f.Fails) && f.From <= from && to <= f.to()
	})
}

// hangs is how long the API server waits at most for a webhook.
const hangs = 30 * time.Second
