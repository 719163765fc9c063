package placeholder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

const (
	// sweepEvery is how often we search for placeholders that are no longer needed although
	// neither Request nor Terminate was called, as when an operator removed the record.
	sweepEvery = 10 * time.Second

	// showWithin is how soon the watch should show a placeholder that was made.
	showWithin = 10 * time.Second

	// overTime is how long after its end a placeholder is still Request's, which says what has
	// become of it.
	overTime = 30 * time.Second

	// retryList is the pause after the first list has failed.
	retryList = 5 * time.Second
)

// Run removes what an earlier process has left behind, and follows the placeholders until ctx
// is done; then it returns nil. If there are none it is idle, after one list, until the first
// is requested. The Nodes have to be known when it is called. Call it once.
func (b *Backend) Run(ctx context.Context) error {
	if b.opts.Selector.Empty() {
		<-ctx.Done()
		return nil
	}
	b.findLeftovers(ctx)
	select {
	case <-ctx.Done():
		return nil
	case <-b.awake:
	}
	var watching sync.WaitGroup
	watching.Go(func() { b.cache.shown.Run(ctx) })
	defer watching.Wait()
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	known := b.cache.shown.Known()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-known:
			known = nil // the first sweep is at once
			b.cache.listed()
		case <-tick.C:
		}
		b.sweep(ctx)
	}
}

// start makes Run begin to watch, if it has not.
func (b *Backend) start() { b.wake.Do(func() { close(b.awake) }) }

// findLeftovers starts the watch if there are placeholders.
func (b *Backend) findLeftovers(ctx context.Context) {
	for {
		// "0" is answered from the API server's watch cache.
		list, err := b.opts.Pods.List(ctx, metav1.ListOptions{LabelSelector: selectorOf(b.opts.SingleNode), ResourceVersion: "0"})
		switch {
		case err == nil:
			if len(list.Items) > 0 {
				b.start()
			}
			return
		case apierrors.IsForbidden(err):
			b.log.Warn().Str("namespace", Namespace).Str("reason", provisioner.Cause(err)).Msg("placeholders cannot be listed")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-b.awake:
			return
		case <-time.After(retryList):
		}
	}
}

// sweep removes the placeholders that are no longer needed.
func (b *Backend) sweep(ctx context.Context) {
	now := time.Now()
	for _, instance := range b.cache.shown.Values(byInstance) {
		pods, _ := b.cache.podsOf(instance)
		i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return b.orphaned(p, now) != "" })
		if i < 0 {
			if len(pods) > 0 && expired(pods[0], now) {
				b.opts.Notify(pods[0].Annotations[nodeAnnotation]) // no event calls Request
			}
			continue
		}
		b.log.Info().Str("instance_id", instance).Str("node", pods[i].Annotations[nodeAnnotation]).
			Int("placeholders", len(pods)).Str("reason", b.orphaned(pods[i], now)).Msg("placeholders taken back")
		if err := b.removeAll(ctx, nameOf(instance)); err != nil {
			b.log.Debug().Err(err).Msg("placeholders not removed yet")
			continue // without its placeholders nobody would find the PodTemplate again
		}
		b.removeEach(ctx, pods) // including those that have lost their owner
	}
	b.sweepOwners(ctx)
	b.checkOverdue(ctx, now)
}

// sweepOwners removes PodTemplates that nobody needs any more and that no placeholder shows: the placeholders could not
// be made, or other pods have taken their places since.
func (b *Backend) sweepOwners(ctx context.Context) {
	for _, key := range b.owners.Keys() {
		instance, _ := key.(string)
		name, still := b.owners.Get(key)
		node, _ := name.(string)
		if pods, _ := b.cache.podsOf(instance); !still || len(pods) > 0 || b.unneeded(node, instance) == "" {
			continue
		}
		if err := b.removeAll(ctx, nameOf(instance)); err != nil {
			b.log.Debug().Err(err).Msg("PodTemplate not removed yet")
		}
	}
}

// orphaned is why nobody needs the placeholder any more, or "".
func (b *Backend) orphaned(p *corev1.Pod, now time.Time) string {
	if _, ok := b.opts.Node(p.Annotations[nodeAnnotation]); ok && expired(p, now.Add(-overTime)) {
		return "their time is over"
	}
	return b.unneeded(p.Annotations[nodeAnnotation], p.Labels[Label])
}

// unneeded is why nobody needs the placeholders for that instance, once the named node, any more, or "".
func (b *Backend) unneeded(name, instance string) string {
	node, ok := b.opts.Node(name)
	if !ok {
		return "the node is gone"
	}
	rec, err := nodes.Record(node)
	asked := provisioner.Asked(rec, provisioner.Placeholder)
	switch {
	case errors.Is(err, nodes.ErrNoRecord):
		return "the node is not interrupted any more"
	case err != nil:
		return "" // nobody knows; their time will end
	case label(rec.Instance) != instance:
		return "the node is another instance"
	case rec.Phase.Over():
		return "the drain is over"
	case asked != nil && asked.State == provisioner.StateFailed:
		return "the replacement has failed"
	case asked == nil && rec.Replacement != nil && rec.Replacement.Name != "":
		return "another provisioner makes the replacement"
	}
	// Another provisioner was asked first and has made nothing: ours might be about to be
	// recorded.
	return ""
}

// checkOverdue asks the API server about placeholders that were made and that the watch has
// never shown, as when they were deleted while it was disconnected.
func (b *Backend) checkOverdue(ctx context.Context, now time.Time) {
	for instance, names := range b.cache.overdue(now.Add(-showWithin)) {
		list, err := b.opts.Pods.List(ctx, metav1.ListOptions{LabelSelector: Label + "=" + instance})
		if err != nil {
			continue
		}
		for _, name := range names {
			if !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.Name == name }) {
				b.opts.Notify(b.cache.forget(instance, name))
			}
		}
	}
}

// again is when to check once more what no watch of ours shows: a Node that is not Ready
// yet, or a deletion that failed.
const again = 500 * time.Millisecond

// follow removes the placeholders whose pods' replacement pods come, and says how far the others
// have come. It makes none: what is gone is gone.
func (b *Backend) follow(
	ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need, r interruption.Replacement,
) (interruption.Replacement, error) {
	if r.State == provisioner.StateFailed {
		return r, nil
	}
	b.start()
	if len(need.Moving) == 0 {
		return r, b.removeAll(ctx, r.Name)
	}
	if !b.cache.synced(node.Name) {
		return r, nil
	}
	pods, unseen := b.cache.podsOf(label(rec.Instance))
	stay, leave := part(pods, need)
	b.removeEach(ctx, leave)
	if len(stay)+unseen > 0 {
		b.owners.Add(label(rec.Instance), node.Name, patience)
	}
	bound, ready := 0, 0
	for _, p := range stay {
		if p.Spec.NodeName != "" {
			bound++
			if b.isReady(p.Spec.NodeName) {
				ready++
			}
		}
	}
	if len(stay)+unseen == 0 {
		b.removeEmpty(ctx, node.Name, r.Name)
	}
	_, taken := b.cache.taken.Get(label(rec.Instance))
	switch {
	case r.State == provisioner.StateReady:
		return r, nil
	case len(stay) > 0 && expired(stay[0], time.Now()):
		reason := fmt.Sprintf("no room in time for %d of %d placeholders", len(stay)-bound, len(stay))
		return provisioner.Failed(r, reason), b.removeAll(ctx, r.Name)
	case len(stay)+unseen == 0 && taken:
		// They had their places, and other pods came first. In a burst those are replacement pods of
		// other nodes' pods, and the room of their own placeholders is free.
		r.State = provisioner.StateReady
		return r, nil
	case len(stay)+unseen == 0:
		return provisioner.Failed(r, "no room in time: their pods have left, or the placeholders were removed"), nil
	}
	switch {
	case ready == len(stay)+unseen:
		r.State = provisioner.StateReady
	case bound > 0:
		r.State = provisioner.StateLaunched
	}
	if ready < bound {
		b.notifySoon(node.Name)
	}
	return r, nil
}

// part separates the placeholders that stay from those that go.
func part(pods []*corev1.Pod, need provisioner.Need) (stay, leave []*corev1.Pod) {
	moving := make(map[types.UID]*corev1.Pod, len(need.Moving))
	for _, pod := range need.Moving {
		moving[pod.UID] = pod
	}
	for _, p := range pods {
		uid := types.UID(p.Annotations[podUIDAnnotation])
		if pod := moving[uid]; pod == nil || need.Surged[uid] || succeeded(pod) || ended(p) {
			leave = append(leave, p)
		} else {
			stay = append(stay, p)
		}
	}
	return stay, leave
}

// succeeded reports whether the pod is leaving and its replacement pod does not wait until it is
// gone: a ReplicaSet makes the replacement pod at once, a StatefulSet afterwards.
func succeeded(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner == nil || owner.Kind == "ReplicaSet" || owner.Kind == "ReplicationController"
}

// ended reports whether the placeholder no longer holds its room: its time was over, or the
// kubelet evicted it.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// removeEach removes placeholders. Failures are retried, and do not change the state of the
// replacement.
func (b *Backend) removeEach(ctx context.Context, pods []*corev1.Pod) {
	var g errgroup.Group
	g.SetLimit(perNode)
	for _, p := range pods {
		g.Go(func() error {
			if err := b.remove(ctx, p); err != nil && ctx.Err() == nil {
				b.log.Debug().Err(err).Msg("placeholder not removed yet")
				b.notifySoon(p.Annotations[nodeAnnotation])
			}
			return nil
		})
	}
	_ = g.Wait() // none returns an error
}

// removeEmpty removes a PodTemplate that has no placeholder left, once: none is made again, and if the interruption is
// cancelled nothing else would show that the PodTemplate is there.
func (b *Backend) removeEmpty(ctx context.Context, node, name string) {
	if _, again := b.emptied.Get(name); again {
		return
	}
	if err := b.removeAll(ctx, name); err != nil {
		b.log.Debug().Err(err).Msg("PodTemplate not removed yet")
		b.notifySoon(node)
		return
	}
	b.emptied.Add(name, nil, patience)
}

// isReady reports whether the Node takes pods. A process of a single node does not know the
// others, and trusts the scheduler, which chose this one.
func (b *Backend) isReady(name string) bool {
	if b.opts.SingleNode != "" && name != b.opts.SingleNode {
		return true
	}
	node, ok := b.opts.Node(name)
	return ok && nodes.Ready(node) // it might be so new that we do not know it yet
}

func (b *Backend) notifySoon(node string) {
	time.AfterFunc(again, func() { b.opts.Notify(node) })
}
