package sim

import (
	"container/heap"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/sim/memapi"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/placeholder"
)

// World is a cluster with what is around it: controllers, kubelets, Karpenter and EC2. One goroutine plays
// all of them. Its fields are set by New.
type World struct {
	*memapi.Server
	Scene Scene
	Queue *sqsemu.Queue

	began     time.Time
	sqs       *sqsemu.Server
	cloud     *asgemu.Server // nil where Karpenter makes the nodes
	timers    timers
	byKey     map[string]*timer
	wake      chan struct{}
	instances map[string]*instance // by id
	byNode    map[string]*instance
	byClaim   map[string]*instance
	workloads map[string]*Workload // by name
	made      map[string]int       // names that were made, by what for
	failures  map[string]*failures // of Jobs, by name
	judge     *judge
	account   *Account // nil: nobody asks for one
	trace     trace
	replicas  []*memapi.Client // the current process of each; nil: none runs
	agents    map[string]*agent
	// launchedFor are the instances that groups have launched ahead, with those that each is for.
	launchedFor map[string]string
	clients     map[string]bool // the names of all processes that there were
	faulty      faulty

	crowd Crowd
	seats seats
}

// New returns the world of a scene, as it is at the beginning. Call it inside of a bubble.
func New(s Scene) *World {
	w := &World{
		Server: memapi.New(), Scene: s, sqs: sqsemu.New(), began: time.Now(), byKey: map[string]*timer{}, wake: make(chan struct{}, 1),
		instances: map[string]*instance{}, byNode: map[string]*instance{}, byClaim: map[string]*instance{},
		workloads: map[string]*Workload{}, made: map[string]int{}, failures: map[string]*failures{}, clients: map[string]bool{},
		replicas: make([]*memapi.Client, Replicas), agents: map[string]*agent{},
		launchedFor: map[string]string{},
	}
	w.Queue = w.sqs.Queue("spot-handler")
	w.judge = newJudge(w)
	w.Ahead = s.Ahead
	if s.Groups.Manage {
		w.cloud = w.newCloud()
	}
	w.Do(func() {
		w.build()
		w.judge.meet()
		w.Server.Changed, w.Server.Requested = w.changed, w.requested
		w.plan()
	})
	w.Server.Admit = w.admit
	return w
}

func (w *World) draw() Draw { return Draw(w.Scene.Seed) }

// since is the time since the beginning.
func (w *World) since() time.Duration { return time.Since(w.began) }

// timer is something that happens at a time.
type timer struct {
	at    time.Time
	seq   int
	key   string
	do    func()
	index int
}

type timers []*timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	if !t[i].at.Equal(t[j].at) {
		return t[i].at.Before(t[j].at)
	}
	return t[i].key < t[j].key || t[i].key == t[j].key && t[i].seq < t[j].seq
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i]; t[i].index, t[j].index = i, j }
func (t *timers) Push(x any)   { x.(*timer).index = len(*t); *t = append(*t, x.(*timer)) }
func (t *timers) Pop() any {
	last := len(*t) - 1
	x := (*t)[last]
	*t = (*t)[:last]
	return x
}

// after does something after a while, with the lock held. Of two with the same key the earlier one stands.
func (w *World) after(wait time.Duration, key string, do func()) {
	at := time.Now().Add(wait)
	if was := w.byKey[key]; was != nil {
		if at.Before(was.at) {
			was.at, was.do = at, do
			heap.Fix(&w.timers, was.index)
			w.poke()
		}
		return
	}
	t := &timer{at: at, key: key, do: do}
	w.byKey[key] = t
	heap.Push(&w.timers, t)
	w.poke()
}

// at does something at a time from the beginning.
func (w *World) at(when time.Duration, key string, do func()) { w.after(when-w.since(), key, do) }

func (w *World) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run plays the world until ctx ends.
func (w *World) Run(ctx context.Context) {
	for {
		wait := time.Hour
		w.Do(func() {
			for len(w.timers) > 0 && !w.timers[0].at.After(time.Now()) {
				t := heap.Pop(&w.timers).(*timer)
				delete(w.byKey, t.key)
				t.do()
			}
			if len(w.timers) > 0 {
				wait = time.Until(w.timers[0].at)
			}
		})
		clock := time.NewTimer(wait)
		select {
		case <-w.wake:
		case <-clock.C:
		case <-ctx.Done():
			clock.Stop()
			return
		}
		clock.Stop()
	}
}

// changed has controllers look at what has changed, in their own time.
func (w *World) changed(c memapi.Change) {
	w.judge.changed(c)
	w.tellAccount(c)
	switch c.Kind {
	case memapi.Pods:
		w.podChanged(c)
	case memapi.Nodes:
		w.nodeChanged(c)
		if c.After == nil {
			w.collectOrphans()
		}
	case memapi.Templates:
		w.collectOrphans()
	case memapi.NodeClaims:
		w.claimChanged(c)
	case memapi.ReplicaSets, memapi.Stateful, memapi.Jobs:
		w.lookAt(c.Key)
	case memapi.Budgets:
		if c.After != nil && c.By != byDisruption {
			w.lookAtBudget(c.Key)
		}
	}
}

// Who changes the cluster, besides the replicas.
const (
	byController = "controllers"
	byDisruption = "disruption"
	byScheduler  = "scheduler"
	byKubelet    = "kubelet"
	byKarpenter  = "karpenter"
	byPodGC      = "podgc"
	byOperator   = "operator"
)

// ours reports whether that is one of our processes.
func (w *World) ours(by string) bool { return w.clients[by] }

// name makes a name that is not taken.
func (w *World) name(of string) string {
	w.made[of]++
	return fmt.Sprintf("%s-%d", of, w.made[of])
}

// namespace is where all workloads are.
const namespace = "shop"

// Namespace is that of the daemon.
const Namespace = "spot-handler"

func (w *World) build() {
	for _, name := range []string{namespace, Namespace, placeholder.Namespace, "kube-system", "default"} {
		w.Put(memapi.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, byOperator)
	}
	offerings := metav1.ObjectMeta{Namespace: Namespace, Name: "spot-handler-offerings"}
	w.Put(memapi.ConfigMaps, &corev1.ConfigMap{ObjectMeta: offerings}, byOperator)
	if w.cloud == nil {
		w.buildPools()
	} else {
		w.buildGroups()
	}
	for _, n := range w.Scene.Nodes {
		w.buildNode(n)
	}
	for i := range w.Scene.Workloads {
		w.buildWorkload(&w.Scene.Workloads[i])
	}
	for _, key := range w.budgetKeys() {
		w.syncBudget(key)
	}
}

// plan has everything happen in its time that the scene says.
func (w *World) plan() {
	for i, l := range w.Scene.Losses {
		w.planLoss(i, l)
	}
	for _, r := range w.Scene.Rehearsals {
		w.planRehearsal(r)
	}
	w.planScaleIns()
	w.planFaults()
}

func recordOf(node *corev1.Node) (rec interruption.Record, has bool) {
	text := node.Annotations[interruption.Annotation]
	if text == "" {
		return rec, false
	}
	rec, err := interruption.ParseRecord(text)
	return rec, err == nil
}

// trace is what has happened, for whoever wants to know why.
type trace struct {
	lines []line
}

type line struct {
	at   time.Duration
	text string
}

const longestTrace = 20000

// Note adds a line to the trace. The lock is held.
func (w *World) note(format string, args ...any) {
	if len(w.trace.lines) < longestTrace {
		w.trace.lines = append(w.trace.lines, line{w.since(), fmt.Sprintf(format, args...)})
	}
}

// Logf adds a line to the trace.
func (w *World) Logf(format string, args ...any) { w.Do(func() { w.note(format, args...) }) }

// Write adds what a process logs to the trace.
func (w *World) Write(p []byte) (int, error) {
	w.Do(func() { w.note("%s", strings.TrimSuffix(string(p), "\n")) })
	return len(p), nil
}

// Trace is what has happened, line by line.
func (w *World) Trace() string {
	var b strings.Builder
	w.Do(func() {
		for _, l := range w.trace.lines {
			fmt.Fprintf(&b, "%9.3f %s\n", l.at.Seconds(), l.text)
		}
	})
	return b.String()
}

// Replicas is how many there are of the daemon.
const Replicas = 2
