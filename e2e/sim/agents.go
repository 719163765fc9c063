package sim

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
)

// How notices reach the daemon.
const (
	IntakeQueue = ""     // the replicas read the queue
	IntakeIMDS  = "imds" // a process on each node reads its instance's metadata, and the replicas drain
	IntakeBoth  = "both" // the metadata and the queue
)

// The modes of processes.
const (
	ModeQueue = "queue"
	ModeDrain = "drain"
	ModeIMDS  = "imds"
)

// agent is the process on a node that reads the metadata of its instance.
type agent struct {
	metadata *imdsemu.Server
	client   *memapi.Client
	process  Process
	retires  bool // EC2 has scheduled that
}

func (s Scene) readsMetadata() bool { return s.Intake == IntakeIMDS || s.Intake == IntakeBoth }

// startAgents starts a process on each node that is lost; the others would read nothing.
func (w *World) startAgents() {
	if !w.Scene.readsMetadata() {
		return
	}
	for nth, l := range w.Scene.Losses {
		if w.agents[l.Node] != nil {
			continue
		}
		a := &agent{metadata: imdsemu.New(imdsemu.Options{InstanceID: instanceID(l.Node)}), client: w.Client("agent-" + l.Node)}
		a.client.Fate = w.fate(Replicas + nth)
		w.agents[l.Node], w.clients[a.client.Name] = a, true
		w.after(time.Duration(nth)*300*time.Millisecond, "start "+a.client.Name, func() {
			if w.faulty.launch == nil || !w.alive(l.Node) {
				return
			}
			a.process = w.faulty.launch(Launch{ModeIMDS, l.Node, a.client, AWS{w, a.client, a.metadata}})
			for _, f := range w.faulty.under {
				w.apply(f, a.client, -1)
			}
		})
	}
}

// endAgent ends the process on a machine that has ended.
func (w *World) endAgent(node string) {
	if a := w.agents[node]; a != nil && a.process != nil {
		a.client.Down(errRefused)
		a.process.Kill()
		a.process = nil
	}
}

// tell has EC2 put an announcement into the metadata of an instance.
func (w *World) tell(l Loss, kind interruption.Kind, at, deadline time.Time) {
	a := w.agents[l.Node]
	if a == nil {
		return
	}
	switch {
	case kind == interruption.RebalanceRecommendation:
		a.metadata.Rebalance(at)
	case l.Hibernates:
		a.metadata.Interrupt(l.action(), at)
	default:
		a.metadata.Interrupt(l.action(), deadline)
	}
	w.expectRecord(l.Node, kind)
}

// expectRecord sees to it that the node's agent reads what is in the metadata now.
func (w *World) expectRecord(node string, kind interruption.Kind) {
	w.note("ec2: the metadata of %s announce %s", node, kind)
	since := w.since()
	w.after(agentReads, fmt.Sprintf("agent of %s reads %s", node, kind), func() { w.judge.judgeAgent(node, kind, since) })
}

// agentReads is how long an announcement can stand in the metadata until the node has its record, where requests fail:
// it is read every 2 s, recommendations more seldom, and scheduled events every 30 to 33 s.
const agentReads = 45 * time.Second

// judgeAgent: what the metadata announce is recorded.
func (j *judge) judgeAgent(name string, kind interruption.Kind, since time.Duration) {
	node, life := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, name), j.life(name)
	ignored := slices.Contains(j.w.Scene.Flags, "--rebalance=ignore") || slices.Contains(j.w.Scene.Flags, "--provisioner=none")
	switch {
	case node == nil, !j.w.alive(name), !life.canceled.IsZero(), j.hung(), j.w.disturbed(since-recovery, j.w.since()):
		return
	case !life.released.IsZero(): // a rehearsal has ended as the interruption would
		return
	case kind == interruption.RebalanceRecommendation && ignored:
		return
	}
	for recorded := range life.recorded {
		if recorded == kind || recorded.Stronger(kind) {
			return
		}
	}
	j.breaks(noticeKept, "the %s of %s has stood in its metadata since %.3f, and was never recorded", kind, name, since.Seconds())
}

// readMetadata answers a request to the metadata service, or not.
func (a AWS) readMetadata(r *http.Request, out *recorder) error {
	w := a.world
	var name string
	w.Do(func() { name = w.name("metadata") })
	if d := w.draw(); d.Chance(w.Scene.Rates.Error, name, "error") {
		if d.Chance(0.5, name, "refused") {
			return errRefused
		}
		out.WriteHeader(Pick(d, []int{http.StatusTooManyRequests, http.StatusServiceUnavailable}, name, "which"))
		return nil
	}
	a.metadata.ServeHTTP(out, r)
	return nil
}
