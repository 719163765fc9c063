package handler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// Pods is the subset of the Pods API that a dry run reads with.
type Pods interface {
	List(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)
}

// Chooser says which replacement would be requested.
type Chooser interface {
	Choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error)
}

// DryRun accepts notices as Handler does, but only logs what Handler would do: the
// record, the replacement and the decision about every pod. It writes nothing. It is
// safe for concurrent use.
type DryRun struct {
	handler *Handler
	pods    Pods
	chooser Chooser
	policy  drain.Policy
	logger  zerolog.Logger

	mu   sync.Mutex
	seen map[string]interruption.Record // by node: nothing on the Node remembers
}

// NewDryRun returns a dry run of what a Handler with these options would do. Of the
// options only those that read are used.
func NewDryRun(opts Options, pods Pods, chooser Chooser, policy drain.Policy) *DryRun {
	return &DryRun{
		handler: &Handler{opts: opts}, pods: pods, chooser: chooser, policy: policy,
		logger: opts.Logger, seen: map[string]interruption.Record{},
	}
}

// Accept logs what would be done on the notice. A notice that says nothing new since
// the last one of the same node is a duplicate, as it would be with a record.
func (d *DryRun) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
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
	list, err := d.pods.List(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("spec.nodeName", node.Name).String(),
		ResourceVersion: "0", // from the watch cache's index of nodes, not a quorum read
	})
	if err != nil {
		return fmt.Errorf("list pods on node %q: %w", node.Name, err)
	}
	if _, err := markPatch(node, &rec); err != nil {
		return fmt.Errorf("mark node %q: %w", node.Name, err)
	}
	tell(d.logger.Info(), node.Name, rec).Strs("sets", rec.Ours).Msg("dry run: would cordon")

	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	in := drain.Interruption{Taint: taintOf(rec), Deadline: rec.DeadlineTime(), Capacity: drain.PendingCapacity}
	var need provisioner.Need
	for _, decision := range drain.Plan(time.Now(), pods, in, d.policy) {
		switch {
		case decision.Moves():
			need.Moving = append(need.Moving, decision.Pod)
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
		in.Capacity = drain.NoCapacity
	}
	for _, decision := range drain.Plan(time.Now(), pods, in, d.policy) {
		e := d.logger.Info().Str("node", node.Name).Str("pod", decision.Pod.Namespace+"/"+decision.Pod.Name).
			Str("action", string(decision.Action)).Str("reason", decision.Reason)
		if !decision.At.IsZero() {
			e = e.Time("latest_start", decision.At)
		}
		if decision.Grace != nil {
			e = e.Int64("grace_seconds", *decision.Grace)
		}
		e.Msg("dry run: pod")
	}
	return nil
}
