// Package plan forecasts what would become of every pod if nodes were taken now.
//
// [Daemon.Forecast] plays the interruption in virtual time, on a copy of the cluster that was read before.
// The drain is the daemon's own: a [plan.Fleet] is shown what it watches, and what it requests is
// carried out. All else is played: the API server that refuses evictions by disruption budgets, the
// controllers that make replacement pods, the scheduler that places them, the kubelets that start
// and stop pods, the replacement node that boots, and the deadline, at which the rest is lost.
//
// What is played reads no clock and makes no call, and the same input has the same forecast. What
// nobody can know beforehand, such as how long an instance takes to boot, is in [Assumptions], each
// with its source.
//
// Which replacement is asked for in a node's place, the daemon's own provisioner decides, over
// clients that note what it creates ([Requests]) instead of creating it. Nodes are asked about one after
// the other: what one takes of a pool's limits, or of the room on other nodes, is gone for the next.
package plan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// Loss is what happens to nodes.
type Loss struct {
	Kind interruption.Kind
	// Deadline is the time from the notice, or from the start of the drain where that waits for its
	// time; 0 means what is usual for the kind.
	Deadline time.Duration
	// Over is the time over which the notices are spread.
	Over time.Duration
}

// After is the time from the first notice to that about a node of n.
func (l Loss) After(i, n int) time.Duration {
	return l.Over * time.Duration(i) / time.Duration(max(1, n-1))
}

// Notice is what EC2 says of the node at that time, without the deadline.
func (l Loss) Notice(node *corev1.Node, at time.Time) interruption.Notice {
	n := interruption.Notice{
		Kind:       l.Kind,
		Source:     interruption.Queue,
		EventID:    "plan",
		InstanceID: nodes.InstanceID(node),
		NodeName:   node.Name,
		Noticed:    at,
		Received:   at,
	}
	switch l.Kind {
	case interruption.SpotInterruption, interruption.CapacityReservationInterruption, interruption.CapacityBlockExpiration:
		n.Action = interruption.ActionTerminate
	case interruption.ScheduledEvent:
		n.Action = interruption.ActionRetirement
	}
	return n
}

// Daemon is spot-handler as it runs in the cluster: its settings, and what it asks for replacements.
type Daemon struct {
	Policy   plan.Policy
	Settings string // where they were found
	Rules    nodes.RulesFunc
	// DeletesClaims: it deletes the NodeClaims of nodes that Karpenter has made when their drains end.
	DeletesClaims bool

	// Provisioner and Pools are over clients of Requests, and Core is one.
	Provisioner *provisioner.Provisioner
	Pools       *karpenter.Backend
	Core        rest.Interface
	Requests    *Requests
	Offerings   *offerings.Memory
	// Marked are the lost nodes, by name, as they are once they carry their records. It is filled in
	// before anything is asked for.
	Marked map[string]*corev1.Node
	// Boots is how long the last nodes of a pool took from their request until they were Ready.
	Boots func(ctx context.Context, pool string) ([]time.Duration, error)
}

// Forecast plays the loss of the nodes, and of those that are interrupted already, in a cluster that
// was read. An error says that the API server could not be asked what it would refuse.
func (d *Daemon) Forecast(
	ctx context.Context, read cluster.Cluster, lost []*corev1.Node, loss Loss, assumed Assumptions,
) (Forecast, error) {
	if assumed.Ready.From == fromNobody {
		assumed.ReadyOf = readyOf(read.Pods)
	}
	in := Input{Cluster: read, Policy: d.Policy, Settings: d.Settings, Assumptions: assumed}
	in.Unread = slices.Clone(read.Unread)
	d.lose(&in, lost, loss)
	in.loseInterrupted()
	first := firstDecisions(in)
	w := newWorld(in)
	for _, l := range w.lost {
		if !l.Underway {
			d.replace(ctx, w, &l.Lost, first[l.Name()])
		}
	}
	if assumed.Boot.From == fromNobody {
		d.boot(ctx, &w.in, w.lost)
	}
	f := w.play()
	if !d.Requests.DryRun {
		return f, nil
	}
	var err error
	for _, l := range w.lost {
		if err == nil && !l.Underway && l.spared == "" {
			err = d.Requests.drain(ctx, d.Core, first[l.Name()], time.Now())
		}
	}
	f.DryRun = d.Requests.result()
	return f, err
}

// lose has the nodes be lost one after the other, and judges their notices.
func (d *Daemon) lose(in *Input, lost []*corev1.Node, loss Loss) {
	for i, node := range lost {
		l := Lost{
			Node:     node,
			Kind:     loss.Kind,
			Noticed:  in.At.Add(loss.After(i, len(lost))),
			Capacity: plan.PendingCapacity, // until one is asked for
			Deleted:  d.DeletesClaims && node.Labels["karpenter.sh/nodepool"] != "",
		}
		n := loss.Notice(node, in.At)
		if left, ends := d.deadline(node, loss); ends {
			l.Deadline, n.Deadline = l.Noticed.Add(left), in.At.Add(left)
		}
		j := interruption.Judge(nodes.Case(node, n, d.Rules, in.At))
		l.record, d.Marked[node.Name] = j.Record, node
		if j.Verdict != interruption.Accepted {
			l.spared = cmp.Or(j.Reason, string(j.Verdict))
		} else {
			marked := node.DeepCopy()
			metav1.SetMetaDataAnnotation(&marked.ObjectMeta, interruption.Annotation, j.Record.String())
			marked.Spec.Unschedulable = true
			d.Marked[node.Name] = marked
			d.Offerings.Note(node, j.Record)
		}
		in.Lost = append(in.Lost, l)
	}
}

// deadline is the time from the notice until EC2 takes the node, if it is sure to.
func (d *Daemon) deadline(node *corev1.Node, loss Loss) (left time.Duration, ends bool) {
	if loss.Deadline > 0 {
		return loss.Deadline, true
	}
	switch loss.Kind {
	case interruption.RebalanceRecommendation:
		return 0, false
	case interruption.SpotInterruption, interruption.CapacityReservationInterruption:
		return interruption.SpotNotice, true
	case interruption.CapacityBlockExpiration:
		return interruption.CapacityBlockNotice, true
	case interruption.ScheduledEvent:
		rules, _ := d.Rules(node, false) // of a recommendation only it reads anything
		return rules.ScheduledLead, true
	case interruption.InstanceTerminating:
		return interruption.UnknownHookTimeout, true
	}
	return 0, true
}

// loseInterrupted has the nodes be lost that are interrupted already and drained now. Each has the time
// that its record leaves, and the replacement that the record names: one that is still to come is
// taken for a node of the same kind.
func (in *Input) loseInterrupted() {
	asked := map[string]bool{}
	for _, l := range in.Lost {
		asked[l.Node.Name] = true
	}
	for _, n := range in.Nodes {
		rec, err := nodes.Record(n)
		if asked[n.Name] || err != nil || rec.Phase == interruption.Waiting || rec.Phase.Over() {
			continue
		}
		l := Lost{
			Node:     n,
			Kind:     rec.Kind,
			Underway: true,
			Noticed:  rec.Since(),
			Deadline: rec.Deadline,
			Capacity: provisioner.CapacityOf(rec.Replacement),
		}
		if l.Capacity == plan.PendingCapacity {
			l.Becomes = alike(n, "")
		}
		in.Lost = append(in.Lost, l)
	}
}

// knownWithin is how long it takes until enough is known about a node's pods to ask for a replacement.
const knownWithin = time.Second

// firstDecisions are what the drain decides about the pods of each lost node, by name, when its notice
// has come and a replacement is pending: before one is asked for, which these decisions size.
func firstDecisions(in Input) map[string][]plan.Decision {
	w := newWorld(in)
	for _, l := range w.lost {
		w.apply(plan.Set{Node: l.Name(), Wanted: plan.Wanted{NodeState: l.state(), Goal: plan.Look}})
	}
	w.run(w.now.Add(knownWithin))
	first := map[string][]plan.Decision{}
	for _, l := range w.lost {
		status, _ := w.fleet.Status(interruption.Later(w.now, l.Noticed), l.Name())
		first[l.Name()] = status.Plan
	}
	return first
}

// replace asks for the node's replacement.
func (d *Daemon) replace(ctx context.Context, w *world, l *Lost, first []plan.Decision) {
	l.Capacity = plan.NoCapacity
	if l.spared != "" {
		l.Replacement = &Replacement{State: provisioner.StateUnsupported, Why: l.spared}
		return
	}
	if err := d.request(ctx, l, provisioner.NeedOf(plan.ViewOf(first))); err != nil {
		w.in.Unread = append(w.in.Unread, strings.Split(err.Error(), "\n")...)
	}
}

// boot is how long the replacements take until they are Ready by the history of their pools or, if
// these have none, of the lost nodes' pools.
func (d *Daemon) boot(ctx context.Context, in *Input, lost []*lostNode) {
	var pools, own []string
	note := func(list *[]string, pool string) {
		if pool != "" && !slices.Contains(*list, pool) {
			*list = append(*list, pool)
		}
	}
	for _, l := range lost {
		if r := l.Replacement; r != nil && r.Backend == provisioner.Karpenter && l.Capacity == plan.PendingCapacity {
			note(&pools, r.Pool)
			note(&own, nodes.PoolOf(l.Lost.Node).Name)
		}
	}
	for i, from := range [][]string{pools, own} {
		var took []time.Duration
		for _, pool := range from {
			some, err := d.Boots(ctx, pool)
			if err != nil {
				in.Unread = append(in.Unread, fmt.Sprintf("how long nodes of pool %s take to boot: %v", pool, err))
				return
			}
			took = append(took, some...)
		}
		if len(took) == 0 {
			continue
		}
		slices.Sort(took)
		text := fmt.Sprintf("median of %s of %s", console.Count(len(took), "NodeClaim"), strings.Join(from, ", "))
		if i > 0 {
			text += ", as " + strings.Join(pools, ", ") + " has none"
		}
		in.Assumptions.Boot = Assume(took[len(took)/2], text)
		return
	}
}

// Input is what a forecast is made from: what was read of a cluster, and what is to happen to it.
// Nothing of it is changed.
type Input struct {
	cluster.Cluster // At is also the time of the first notice
	Lost            []Lost
	// Policy is that of the daemon in the cluster, and Settings where it was found.
	Policy   plan.Policy
	Settings string
	// Assumptions are what nobody knows.
	Assumptions Assumptions
}

// Lost is a node that EC2 takes.
type Lost struct {
	Node *corev1.Node
	Kind interruption.Kind
	// Noticed is when the notice arrives.
	Noticed time.Time
	// Underway: it is interrupted already. That is played, and the forecast is not about it.
	Underway bool
	// Deadline is when EC2 takes the node; zero if it only might.
	Deadline time.Time
	// Capacity is what its pods can wait for: PendingCapacity boots for Assumptions.Boot and then
	// takes pods; ReadyCapacity is there at once, as where the pods fit on other nodes.
	Capacity plan.Capacity
	// Replacement is what is shown of it, without Ready, which is worked out; nil if nothing is.
	Replacement *Replacement
	// Deleted: when the drain ends, the node's NodeClaim is deleted, and Karpenter deletes what is left
	// on the node, with as much of its grace period as there is until the deadline.
	Deleted bool
	// Becomes is the Node that the replacement will be, empty: as small as the NodeClaim asks for, or
	// else like the one that it replaces. It is nil if it brings no Node of its own.
	Becomes *corev1.Node

	record interruption.Record
	spared string // why spot-handler would do nothing; empty otherwise
}
