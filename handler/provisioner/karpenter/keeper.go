package karpenter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"spot-handler/handler/provisioner"
)

const (
	// orphanGrace is how much longer than launchTimeout a claim can be unlaunched before the
	// keeper deletes it: the reconciliation of its node comes first.
	orphanGrace = 10 * time.Second

	// landingCheck is how long after a protected replacement is Ready we first check it for its pods, and how
	// often at first. Most drains are over by then, and the keeper learns that without a request.
	landingCheck = 10 * time.Second

	// laterCheck is when to check again if others have to act first.
	laterCheck = 30 * time.Second

	// bootLimit is how long a launched instance can take to become Ready. Karpenter gives up on one
	// that has not registered by then. One that has registered it keeps, and never consolidates, until
	// it is initialized.
	// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/nodeclaim/disruption/consolidation.go
	bootLimit = 15 * time.Minute

	// keeperWorkers is how many claims are checked in parallel.
	keeperWorkers = 4
)

// Values of SettledLabel.
const (
	settledUsed  = "used"  // pods run there
	settledEmpty = "empty" // Ready, no pods, and Karpenter's consolidation will remove it
)

// keeper looks after each of our claims until it no longer needs us: it deletes what is
// never launched or never used, and ends the protection from consolidation. It goes by what
// is on the claim, so any process can go on from there.
type keeper struct {
	b     *Backend
	held  *heldClaims
	queue workqueue.TypedRateLimitingInterface[string]
}

func newKeeper(b *Backend) *keeper {
	return &keeper{
		b:    b,
		held: newHeldClaims(b.opts.Registerer, b.opts.Offerings),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](200*time.Millisecond, 30*time.Second)),
	}
}

// add has the claim checked. It never blocks.
func (k *keeper) add(claim string) { k.queue.Add(claim) }

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
	again, err := k.check(ctx, name)
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

// check takes the claim one step further, and says when to check again; zero means not before
// it is added again.
func (k *keeper) check(ctx context.Context, name string) (time.Duration, error) {
	claim, err := k.claim(ctx, name)
	if err != nil {
		return 0, err
	}
	if claim == nil || !claim.DeletionTimestamp.IsZero() || claim.Labels[ReplacesLabel] == "" || claim.Labels[SettledLabel] != "" {
		k.held.count(name, "")
		return 0, nil
	}
	if claim.state() == provisioner.StateRequested {
		return k.awaitLaunch(ctx, claim)
	}
	if claim.reboots() {
		return heldCheck, nil
	}
	if claim.isProtected() {
		again, err := k.unprotect(ctx, claim)
		if again > 0 || err != nil {
			return again, err
		}
	}
	k.held.count(name, "")
	return k.review(ctx, claim)
}

// awaitLaunch removes a claim that has waited too long for its instance.
func (k *keeper) awaitLaunch(ctx context.Context, claim *Claim) (time.Duration, error) {
	age := time.Since(claim.CreationTimestamp.Time)
	switch {
	case age < launchTimeout:
		return launchTimeout - age, nil
	case age < launchTimeout+orphanGrace:
		k.b.notify(claim) // its reconciliation gives the claim up
		return launchTimeout + orphanGrace - age, nil
	}
	return k.remove(ctx, claim, corev1.EventTypeWarning, reasonNotLaunched, notLaunched(claim))
}

// isProtected reports whether we keep the claim's node from consolidation. An operator may have removed
// one of the annotations by hand.
func (c *Claim) isProtected() bool {
	return c.Annotations[protectedAnnotation] != "" || c.Annotations[StandsInAnnotation] != ""
}

// claim is what is known of the claim, or nil if there is none.
func (k *keeper) claim(ctx context.Context, name string) (*Claim, error) {
	if claim, _ := k.b.claims.get(name); claim != nil {
		return claim, nil
	}
	return k.b.readClaim(ctx, name, asStored)
}

// usableSince is since when pods can be on the claim's node. One that has not become Ready within
// bootLimit counts as usable from then on: nothing else would end it.
func (c *Claim) usableSince() time.Time {
	if ready := c.since("Initialized"); !ready.IsZero() {
		return ready
	}
	return c.since("Launched").Add(bootLimit)
}

// untilDue is the time until the claim has to be in use.
func (k *keeper) untilDue(claim *Claim) time.Duration {
	return time.Until(claim.usableSince().Add(k.b.opts.TTL))
}

// due reports whether whoever requested the claim should have dealt with it by now.
func (k *keeper) due(claim *Claim) bool {
	switch {
	case claim.state() == provisioner.StateRequested:
		return time.Since(claim.CreationTimestamp.Time) >= launchTimeout+orphanGrace
	case claim.isProtected():
		return !time.Now().Before(claim.protectedUntil())
	}
	return k.b.opts.TTL > 0 && k.untilDue(claim) <= 0
}

// review decides about a replacement that was launched a while ago. If it is in use, or if
// Karpenter will remove it, it is handed over; otherwise it is taken back.
func (k *keeper) review(ctx context.Context, claim *Claim) (time.Duration, error) {
	wait := max(0, k.untilDue(claim))
	due := k.b.opts.TTL > 0 && wait == 0
	over := false
	if due || k.b.claims.single {
		var err error
		if over, err = k.isOver(ctx, claim); err != nil {
			return 0, err
		}
	}
	if !due && !over {
		return wait, nil
	}
	// The process of a single node ends with it: others should find little to do.
	if used, err := k.handOverIfUsed(ctx, claim, cached); used || err != nil {
		return 0, err
	}
	switch {
	case !due:
		return wait, nil
	case !over:
		return laterCheck, nil
	}
	pools, err := k.b.pools.Get(ctx, "")
	if err != nil {
		return 0, err
	}
	if pool := poolNamed(pools, claim.Labels[nodePoolLabel]); pool != nil && pool.broken == "" {
		if _, ok := pool.consolidates(); ok && claim.state() == provisioner.StateReady {
			return 0, k.handOver(ctx, claim, settledEmpty)
		}
	}
	// Pods might be landing at this moment, and the deletion cannot be undone.
	if used, err := k.handOverIfUsed(ctx, claim, asStored); used || err != nil {
		return 0, err
	}
	text := fmt.Sprintf("returned: no pod has come in %s", k.b.opts.TTL)
	if claim.state() != provisioner.StateReady {
		text = fmt.Sprintf("returned: it was not Ready within %s of its launch", bootLimit)
	}
	return k.remove(ctx, claim, corev1.EventTypeNormal, reasonUnused, text)
}

// handOverIfUsed hands the claim over if pods run on its node.
func (k *keeper) handOverIfUsed(ctx context.Context, claim *Claim, version string) (used bool, err error) {
	pods, err := k.pods(ctx, claim, version)
	if err != nil || pods == 0 {
		return false, err
	}
	return true, k.handOver(ctx, claim, settledUsed)
}

// remove deletes a claim that is of no use. One that has changed meanwhile is checked again.
func (k *keeper) remove(ctx context.Context, claim *Claim, eventType, reason, text string) (time.Duration, error) {
	err := k.b.deleteClaim(ctx, claim)
	switch {
	case isMissing(err):
		k.b.claims.forget(claim.Name)
		return 0, nil
	case apierrors.IsConflict(err):
		_, err = k.b.fresh(ctx, claim.Name)
		return time.Second, err
	case err != nil:
		return 0, err
	}
	k.b.claims.forget(claim.Name)
	k.b.event("NodeClaim", claim.ObjectMeta, eventType, reason, text)
	k.b.log.Info().Str("nodeclaim", claim.Name).Str("nodepool", claim.Labels[nodePoolLabel]).
		Str("node", claim.Annotations[nodeAnnotation]).Str("reason", text).Msg("replacement taken back")
	return 0, nil
}

// unsettled selects those of our claims that might still need us.
const unsettled = ReplacesLabel + ",!" + SettledLabel

const (
	// sweepRetry is the time between two attempts of the first sweep.
	sweepRetry = 5 * time.Second

	// No process leads among the daemons of single nodes, so they share the search for what
	// others have left behind. Each lists once at some time within firstSweep, to spread the
	// lists of a rollout to thousands of nodes, and then about every nextSweep.
	firstSweep = 2 * time.Minute
	nextSweep  = time.Hour
)

// sweep looks for claims that an earlier process has left behind, and has each of them
// looked after. Without Karpenter, or without the permission to ask, there are none.
func (b *Backend) sweep(ctx context.Context) {
	if b.claims.single {
		b.sweepWithOthers(ctx)
		return
	}
	for {
		claims, err := b.listOurs(ctx)
		for _, claim := range claims {
			b.claims.learn(claim)
			b.claims.start("")
			b.keeper.add(claim.Name)
		}
		if err == nil {
			return
		}
		b.log.Debug().Err(err).Msg("look for replacements of other processes")
		if _, away := unavailable(err); away || smithytime.SleepWithContext(ctx, sweepRetry) != nil {
			return
		}
	}
}

// sweepWithOthers is the sweep of a process of one node, until ctx ends.
func (b *Backend) sweepWithOthers(ctx context.Context) {
	for pause := rand.N(firstSweep); smithytime.SleepWithContext(ctx, pause) == nil; {
		pause = nextSweep/2 + rand.N(nextSweep)
		claims, err := b.listOurs(ctx)
		if err != nil {
			b.log.Debug().Err(err).Msg("look for replacements of other processes")
		}
		for _, claim := range claims {
			if !b.keeper.due(claim) {
				continue // its own process comes first, and there might be a thousand of us
			}
			if _, err := b.keeper.check(ctx, claim.Name); err != nil {
				b.log.Debug().Err(err).Str("nodeclaim", claim.Name).Msg("look after replacement of another process")
			}
		}
	}
}

// listOurs is a consistent read: it includes a claim that a leader made a moment ago, just
// before it died.
func (b *Backend) listOurs(ctx context.Context) ([]*Claim, error) {
	list, err := b.opts.Dynamic.Resource(nodeClaimResource).List(ctx, metav1.ListOptions{LabelSelector: unsettled})
	if err != nil {
		return nil, fmt.Errorf("list NodeClaims: %w", err)
	}
	var claims []*Claim
	for i := range list.Items {
		claims = append(claims, decodeClaim(&list.Items[i]))
	}
	return claims, nil
}
