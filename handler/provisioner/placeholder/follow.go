package placeholder

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// again is when to look once more at what no watch of ours shows: a Node that is not Ready
// yet, or a deletion that failed.
const again = 500 * time.Millisecond

// follow removes the placeholders whose pods' successors come, and says how far the others
// have come. It makes none: what is gone is gone.
func (b *Backend) follow(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need, r interruption.Replacement) (interruption.Replacement, error) {
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
	pods, unseen := b.cache.of(label(rec.Instance))
	stay, leave := part(pods, need)
	b.removeEach(ctx, leave)
	switch {
	case r.State == provisioner.StateReady:
		return r, nil
	case len(stay) > 0 && expired(stay[0], time.Now()):
		return provisioner.Failed(r, fmt.Sprintf("no room in time for %d of %d placeholders", unbound(stay), len(stay))), b.removeAll(ctx, r.Name)
	case len(stay)+unseen == 0 && b.cache.wasTaken(label(rec.Instance)):
		// They had their places, and other pods came first. In a burst those are successors of
		// other nodes' pods, and the room of their own placeholders is free.
		r.State = provisioner.StateReady
		return r, nil
	case len(stay)+unseen == 0:
		return provisioner.Failed(r, "no room in time: their pods have left, or the placeholders were removed"), b.removeAll(ctx, r.Name)
	}
	bound, ready := len(stay)-unbound(stay), 0
	for _, p := range stay {
		if p.Spec.NodeName != "" && b.isReady(p.Spec.NodeName) {
			ready++
		}
	}
	switch {
	case ready == len(stay)+unseen:
		r.State = provisioner.StateReady
	case bound > 0:
		r.State = provisioner.StateLaunched
	}
	if ready < bound {
		b.lookAgain(node.Name)
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

// succeeded reports whether the pod is leaving and its successor does not wait until it is
// gone: a ReplicaSet makes the successor at once, a StatefulSet afterwards.
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

func unbound(pods []*corev1.Pod) (n int) {
	for _, p := range pods {
		if p.Spec.NodeName == "" {
			n++
		}
	}
	return n
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
				b.lookAgain(p.Annotations[nodeAnnotation])
			}
			return nil
		})
	}
	_ = g.Wait() // none returns an error
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

func (b *Backend) lookAgain(node string) {
	time.AfterFunc(again, func() { b.opts.Notify(node) })
}
