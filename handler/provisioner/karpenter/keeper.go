package karpenter

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/workqueue"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

const (
	// orphanGrace is how much longer than launchTimeout a claim can be unlaunched before the
	// keeper deletes it: the reconciliation of its node comes first.
	orphanGrace = 10 * time.Second

	// landingCheck is how often a protected replacement is checked for its pods at first. Those
	// that wait for it land with its first heartbeat.
	landingCheck = 2 * time.Second

	// laterCheck is when to look again if others have to act first.
	laterCheck = 30 * time.Second

	// bootLimit is how long a launched instance can take to become Ready. Karpenter gives up
	// on one that has not registered by then.
	bootLimit = 15 * time.Minute

	// keeperWorkers is how many claims are looked at in parallel.
	keeperWorkers = 4
)

// Values of SettledLabel.
const (
	settledUsed  = "used"  // pods run there
	settledEmpty = "empty" // no pods, and Karpenter's consolidation will remove it
)

// keeper looks after each of our claims until it no longer needs us: it takes back what is
// never launched or never used, and ends the protection from consolidation. It goes by what
// is on the claim, so any process can go on from there.
type keeper struct {
	b     *Backend
	queue workqueue.TypedRateLimitingInterface[string]

	mu   sync.Mutex
	over map[string]string // claims whose interrupted node we were told has been drained, with its instance
}

func newKeeper(b *Backend) *keeper {
	return &keeper{b: b, over: map[string]string{}, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 30*time.Second))}
}

// add has the claim looked at. It never blocks.
func (k *keeper) add(claim string) { k.queue.Add(claim) }

// markDrained says that the pods of the instance that the claim replaces have moved, or will not
// move any more. For a claim that replaces another it means nothing.
func (k *keeper) markDrained(claim, instance string) {
	if known, synced := k.b.claims.get(claim); known == nil && synced && !k.b.claims.single {
		return // gone
	}
	k.mu.Lock()
	k.over[claim] = instance
	k.mu.Unlock()
	k.add(claim)
}

func (k *keeper) run(ctx context.Context) {
	var workers sync.WaitGroup
	for range keeperWorkers {
		workers.Go(func() {
			for k.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	k.queue.ShutDown()
	workers.Wait()
}

func (k *keeper) work(ctx context.Context) bool {
	name, shutdown := k.queue.Get()
	if shutdown {
		return false
	}
	defer k.queue.Done(name)
	again, err := k.look(ctx, name)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if reason, ok := unavailable(err); ok {
			if k.b.said.First(reason) {
				k.b.log.Warn().Str("reason", reason).Msg("replacements not looked after")
			}
			k.queue.AddAfter(name, recheck)
			return true
		}
		k.b.log.Warn().Err(err).Str("nodeclaim", name).Msg("look after replacement")
		k.queue.AddRateLimited(name)
	default:
		k.queue.Forget(name)
		if again > 0 {
			k.queue.AddAfter(name, again)
		}
	}
	return true
}

// look takes the claim one step further, and says when to look again; zero means not before
// it is added again.
func (k *keeper) look(ctx context.Context, name string) (time.Duration, error) {
	claim, err := k.claim(ctx, name)
	if err != nil {
		return 0, err
	}
	if claim == nil || !claim.DeletionTimestamp.IsZero() || claim.Labels[ReplacesLabel] == "" || claim.Labels[SettledLabel] != "" {
		k.forget(name)
		return 0, nil
	}
	switch {
	case claim.state() == provisioner.StateRequested:
		if wait := launchTimeout + orphanGrace - time.Since(claim.CreationTimestamp.Time); wait > 0 {
			return wait, nil
		}
		return k.remove(ctx, claim, true, reasonNotLaunched, notLaunched(claim))
	case claim.Annotations[ProtectedAnnotation] != "":
		again, err := k.unprotect(ctx, claim)
		if again > 0 || err != nil {
			return again, err
		}
	}
	return k.settle(ctx, claim)
}

// claim is what is known of the claim, or nil if there is none.
func (k *keeper) claim(ctx context.Context, name string) (*nodeClaim, error) {
	if !k.b.claims.single {
		if claim, _ := k.b.claims.get(name); claim != nil {
			return claim, nil
		}
	}
	return k.b.readClaim(ctx, name, asStored)
}

// untilDue is the time until the claim has to be in use.
func (k *keeper) untilDue(claim *nodeClaim) time.Duration {
	since := claim.since("Initialized")
	if since.IsZero() {
		since = claim.since("Launched").Add(bootLimit)
	}
	return time.Until(since.Add(k.b.ttl))
}

// due reports whether whoever requested the claim should have dealt with it by now.
func (k *keeper) due(claim *nodeClaim) bool {
	switch {
	case claim.state() == provisioner.StateRequested:
		return time.Since(claim.CreationTimestamp.Time) >= launchTimeout+orphanGrace
	case claim.Annotations[ProtectedAnnotation] != "":
		return !time.Now().Before(claim.protectedUntil())
	}
	return k.b.ttl > 0 && k.untilDue(claim) <= 0
}

// settle decides about a replacement that was launched a while ago. If it is in use, or if
// Karpenter will remove it, it is handed over; otherwise it is taken back.
func (k *keeper) settle(ctx context.Context, claim *nodeClaim) (time.Duration, error) {
	wait := k.untilDue(claim)
	if k.b.ttl <= 0 || wait > 0 {
		if !k.b.claims.single || !k.isDrained(claim) {
			if k.b.ttl <= 0 {
				k.forget(claim.Name)
				return 0, nil
			}
			return wait, nil
		}
		// This process ends with its node: what is clear now is not put off for others to do.
		if pods, err := k.pods(ctx, claim, cached); err != nil || pods == 0 {
			return max(0, wait), err
		}
		return 0, k.handOver(ctx, claim, settledUsed)
	}
	switch pods, err := k.pods(ctx, claim, cached); {
	case err != nil:
		return 0, err
	case pods > 0:
		return 0, k.handOver(ctx, claim, settledUsed)
	}
	switch over, err := k.isOver(ctx, claim); {
	case err != nil:
		return 0, err
	case !over:
		return laterCheck, nil
	}
	pool, err := k.b.pools.get(ctx, claim.Labels[nodePoolLabel])
	if err != nil {
		return 0, err
	}
	if pool != nil && pool.broken == "" {
		if _, ok := pool.consolidates(); ok {
			return 0, k.handOver(ctx, claim, settledEmpty)
		}
	}
	// Pods might be landing at this moment, and the deletion cannot be undone.
	switch pods, err := k.pods(ctx, claim, asStored); {
	case err != nil:
		return 0, err
	case pods > 0:
		return 0, k.handOver(ctx, claim, settledUsed)
	}
	return k.remove(ctx, claim, false, reasonUnused, fmt.Sprintf("returned: no pod has come in %s", k.b.ttl))
}

// remove deletes a claim that is of no use. One that has changed meanwhile is checked again.
func (k *keeper) remove(ctx context.Context, claim *nodeClaim, warn bool, reason, text string) (time.Duration, error) {
	err := k.b.deleteClaim(ctx, claim)
	switch {
	case isMissing(err):
		k.b.claims.forget(claim.Name)
		k.forget(claim.Name)
		return 0, nil
	case apierrors.IsConflict(err):
		if !k.b.claims.single {
			_, err = k.b.fresh(ctx, claim.Name)
			return time.Second, err
		}
		return time.Second, nil
	case err != nil:
		return 0, err
	}
	k.forget(claim.Name)
	k.b.events.claim(claim.Name, claim.UID, warn, reason, text)
	k.b.log.Info().Str("nodeclaim", claim.Name).Str("nodepool", claim.Labels[nodePoolLabel]).
		Str("node", claim.Annotations[NodeAnnotation]).Str("reason", text).Msg("replacement taken back")
	return 0, nil
}

// pods counts the pods on the claim's node, except those that run on every node.
func (k *keeper) pods(ctx context.Context, claim *nodeClaim, version string) (int, error) {
	if claim.Status.NodeName == "" {
		return 0, nil
	}
	list, err := k.b.pods.List(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("spec.nodeName", claim.Status.NodeName).String(),
		ResourceVersion: version,
	})
	if err != nil {
		return 0, fmt.Errorf("list pods on node %q: %w", claim.Status.NodeName, err)
	}
	n := 0
	for i := range list.Items {
		pod := &list.Items[i]
		finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !finished && !drain.IsDaemon(pod) && pod.Annotations[corev1.MirrorPodAnnotationKey] == "" {
			n++
		}
	}
	return n, nil
}

// wanted is how many pods the claim was made for.
func (c *nodeClaim) wanted() int {
	n, err := strconv.Atoi(c.Annotations[PodsAnnotation])
	if err != nil {
		return 1
	}
	return max(1, n)
}

// isOver reports whether no more pods will come from the node that the claim replaces: it
// has been drained, or is gone, or is another instance by now.
func (k *keeper) isOver(ctx context.Context, claim *nodeClaim) (bool, error) {
	name := claim.Annotations[NodeAnnotation]
	if k.isDrained(claim) || name == "" {
		return true, nil
	}
	node, known := k.b.node(name)
	if !known {
		// Not from a cache: one that is behind might show the Node without its record.
		var err error
		node, err = k.b.nodes.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("get Node %q: %w", name, err)
		}
	}
	rec, has, err := nodes.Record(node)
	// The record of a node that still waits names its replacement only once that is requested.
	calledOff := rec.Phase == interruption.Waiting && rec.Begun == nil && time.Since(claim.CreationTimestamp.Time) > orphanGrace
	return !has || err != nil || labelValue(rec.Instance) != claim.Labels[ReplacesLabel] || rec.Phase.Over() || calledOff, nil
}

func (k *keeper) isDrained(claim *nodeClaim) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	instance, told := k.over[claim.Name]
	return told && claim.isOurs(instance)
}

func (k *keeper) forget(claim string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.over, claim)
}
