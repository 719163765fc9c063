package handler

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// Survey reads once what a node's drain would be planned from.
type Survey func(ctx context.Context, node string, in drain.Interruption) (drain.Situation, error)

// Chooser says which replacement would be requested.
type Chooser interface {
	Choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error)
}

// DryRun accepts notices as Handler does, but only logs what Handler would do: the
// record, when its drain would begin, the replacement, the decision about every pod, and
// what would follow. It writes nothing. It is safe for concurrent use.
type DryRun struct {
	handler *Handler
	survey  Survey
	chooser Chooser
	logger  zerolog.Logger

	mu   sync.Mutex
	seen map[string]interruption.Record // by node: nothing on the Node remembers
}

// maxSeen is how many nodes are remembered before those are forgotten that have gone.
const maxSeen = 1000

// NewDryRun returns a dry run of what a Handler with these options would do. Of the
// options only those that read are used.
func NewDryRun(opts Options, survey Survey, chooser Chooser) *DryRun {
	return &DryRun{
		handler: &Handler{opts: opts}, survey: survey, chooser: chooser,
		logger: opts.Logger, seen: map[string]interruption.Record{},
	}
}

// Accept logs what would be done on the notice. A notice that says nothing new since
// the last one of the same node is a duplicate, as it would be with a record.
func (d *DryRun) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	node, ok := d.handler.opts.Index.Find(n)
	if n.Hook != nil && (n.Hook.Launching || !ok) {
		return d.hookAlone(n, ok)
	}
	if !ok {
		return interruption.Unknown, nil
	}
	d.mu.Lock()
	if rec, ok := d.seen[node.Name]; ok {
		node = node.DeepCopy()
		if node.Annotations == nil {
			node.Annotations = map[string]string{}
		}
		node.Annotations[interruption.Annotation] = rec.String()
	}
	rec, verdict := d.handler.judge(node, n)
	if verdict == interruption.Accepted {
		if len(d.seen) >= maxSeen {
			maps.DeleteFunc(d.seen, func(name string, _ interruption.Record) bool {
				_, there := d.handler.opts.Index.Get(name)
				return !there
			})
		}
		d.seen[node.Name] = rec
		if rec.Canceled {
			delete(d.seen, node.Name)
		}
	}
	d.mu.Unlock()
	switch {
	case verdict != interruption.Accepted:
		d.nothing(node, n, verdict)
		return verdict, nil
	case n.Withdrawn:
		d.withdrawn(node, n, rec)
		return verdict, nil
	}
	if err := d.explain(ctx, node, n, rec); err != nil {
		d.mu.Lock()
		delete(d.seen, node.Name)
		d.mu.Unlock()
		return "", err
	}
	return verdict, nil
}

// explain tells the story of a node in the order in which it would happen.
func (d *DryRun) explain(ctx context.Context, node *corev1.Node, n interruption.Notice, rec interruption.Record) error {
	in := drain.Interruption{Taint: taintOf(rec), Deadline: rec.DeadlineTime(), Capacity: drain.PendingCapacity}
	if rec.Kind == interruption.InstanceTerminating && rec.Deadline == nil { // a run would ask for it
		in.Deadline = rec.Received.Add(d.handler.opts.Lifecycle.Timeout)
	}
	situation, err := d.survey(ctx, node.Name, in)
	if err != nil {
		return err
	}
	d.tell(node, rec).Str("event_id", n.EventID).Str("ec2_action", rec.Action).Str("phase", string(rec.Phase)).Msg("dry run: would record")
	if rec.Phase == interruption.Waiting {
		d.wait(node, rec)
	}
	if _, err := markPatch(node, &rec); err != nil {
		return fmt.Errorf("mark node %q: %w", node.Name, err)
	}
	d.tell(node, rec).Strs("sets", rec.Ours).Msg("dry run: would cordon")
	if rec.Action == interruption.ActionTerminated {
		d.tell(node, rec).Str("reason", "the instance is terminated: its volumes are detached as soon as the Node is not Ready").
			Msg("dry run: would mark node out of service")
	}
	if why := d.cordonsOnly(node, rec); why != "" {
		d.tell(node, rec).Str("reason", why).Msg("dry run: would move no pod")
		d.hooks(node, rec)
		return nil
	}
	if err := d.plan(ctx, node, rec, situation); err != nil {
		return err
	}
	d.hooks(node, rec)
	d.end(node, rec)
	return nil
}

// plan logs the replacement and the decision about every pod.
func (d *DryRun) plan(ctx context.Context, node *corev1.Node, rec interruption.Record, situation drain.Situation) error {
	need := provisioner.Need{Surged: map[types.UID]bool{}}
	for _, decision := range drain.Plan(time.Now(), situation) {
		switch {
		case decision.Moves():
			need.Moving = append(need.Moving, decision.Pod)
			need.Surged[decision.Pod.UID] = decision.Surge
		case drain.IsDaemon(decision.Pod):
			need.Daemons = append(need.Daemons, decision.Pod)
		}
	}
	replacement, err := d.chooser.Choose(ctx, node, rec, need)
	if err != nil {
		return fmt.Errorf("choose replacement: %w", err)
	}
	d.tell(node, rec).Str("backend", replacement.Backend).Str("replacement", replacement.Name).
		Str("pool", replacement.Pool).Str("reason", replacement.Reason).Msg("dry run: would request replacement")
	if !provisioner.Pending(replacement.State) {
		situation.Capacity = drain.NoCapacity
	}
	for _, decision := range drain.Plan(time.Now(), situation) {
		e := d.tell(node, rec).Str("pod", decision.Pod.Namespace+"/"+decision.Pod.Name).
			Str("action", string(decision.Action)).Str("reason", decision.Reason)
		if !decision.At.IsZero() {
			e = e.Time("start_by", decision.At).Time("latest_start", decision.Latest)
		}
		if decision.NoSurge != "" && decision.Moves() {
			e = e.Str("no_surge", decision.NoSurge)
		}
		if decision.Grace != nil {
			e = e.Int64("grace_seconds", *decision.Grace)
		}
		e.Msg("dry run: pod")
	}
	return nil
}
