package handler

import (
	"context"
	"fmt"
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
// record, the replacement and the decision about every pod. It writes nothing. It is
// safe for concurrent use.
type DryRun struct {
	handler *Handler
	survey  Survey
	chooser Chooser
	logger  zerolog.Logger

	mu   sync.Mutex
	seen map[string]interruption.Record // by node: nothing on the Node remembers
}

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
	if n.Hook != nil && n.Hook.Launching {
		tellHook(d.logger.Info(), n.NodeName, interruption.NewRecord(n), *n.Hook).Msg("dry run: would complete lifecycle hook when the node is ready")
		return interruption.Ignored, nil
	}
	node, ok := d.handler.opts.Index.Find(n)
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
		d.seen[node.Name] = rec
	}
	d.mu.Unlock()
	if verdict != interruption.Accepted {
		return verdict, nil
	}
	if err := d.explain(ctx, node, rec); err != nil {
		d.mu.Lock()
		delete(d.seen, node.Name)
		d.mu.Unlock()
		return "", err
	}
	return verdict, nil
}

func (d *DryRun) explain(ctx context.Context, node *corev1.Node, rec interruption.Record) error {
	in := drain.Interruption{Taint: taintOf(rec), Deadline: rec.DeadlineTime(), Capacity: drain.PendingCapacity}
	if rec.Kind == interruption.InstanceTerminating && rec.Deadline == nil { // a run would ask for it
		in.Deadline = rec.Received.Add(d.handler.opts.Lifecycle.Timeout)
	}
	situation, err := d.survey(ctx, node.Name, in)
	if err != nil {
		return err
	}
	if rec.Phase == interruption.Waiting {
		tell(d.logger.Info(), node.Name, rec).Msg("dry run: would wait")
	}
	if _, err := markPatch(node, &rec); err != nil {
		return fmt.Errorf("mark node %q: %w", node.Name, err)
	}
	tell(d.logger.Info(), node.Name, rec).Strs("sets", rec.Ours).Msg("dry run: would cordon")

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
	d.logger.Info().Str("node", node.Name).Str("backend", replacement.Backend).Str("replacement", replacement.Name).
		Str("pool", replacement.Pool).Str("reason", replacement.Reason).Msg("dry run: would request replacement")
	if !provisioner.Pending(replacement.State) {
		situation.Capacity = drain.NoCapacity
	}
	for _, decision := range drain.Plan(time.Now(), situation) {
		e := d.logger.Info().Str("node", node.Name).Str("pod", decision.Pod.Namespace+"/"+decision.Pod.Name).
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
