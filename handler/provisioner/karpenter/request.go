package karpenter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/readcache"
)

const fieldManager = "spot-handler"

// claimChanged takes a claim's new state from the watch, "" if it is gone.
func (b *Backend) claimChanged(claim *Claim, state string) {
	if state == "" {
		b.ledger.forget(claim.Name)
	} else {
		b.keeper.add(claim.Name)
	}
	b.notify(claim)
}

// notify has the node reconciled that the claim replaces.
func (b *Backend) notify(claim *Claim) {
	if node := claim.Annotations[nodeAnnotation]; node != "" {
		b.opts.Notify(node)
	}
}

// next asks for a replacement in the best pool that has not been tried, or says why there is
// none. last is what was tried last, or nil.
func (b *Backend) next(
	ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need, last *interruption.Replacement,
) (interruption.Replacement, error) {
	var tried []string
	var against []string
	if last != nil {
		tried, against = triedPools(*last), []string{"NodePool " + last.Pool + ": " + last.Reason}
	}
	chosen, err := b.choose(ctx, node, rec, need, tried)
	if err != nil {
		return interruption.Replacement{}, err
	}
	r := chosen.none
	for _, o := range chosen.orders {
		o.lost.tried = tried
		o.remark = strings.TrimSuffix(strings.Join(append(slices.Clone(against), o.remark), "; "), "; ")
		made, err := b.create(ctx, o)
		switch {
		case err != nil:
			return made, err
		case made.State == provisioner.StateFailed && made.Name == "": // other nodes of a burst came first
			r = made
		case made.State == provisioner.StateFailed:
			tried, against = triedPools(made), append(against, "NodePool "+made.Pool+": "+made.Reason)
			last = &made
		default:
			return made, nil
		}
	}
	if last == nil {
		return r, nil
	}
	// Failed, with the name of what was tried last: that is final.
	final := *last
	final.Reason, final.Tried = strings.Join(against, "; "), strings.Join(tried, ",")
	if len(chosen.orders) == 0 && r.Reason != "" {
		final.Reason += "; " + r.Reason
	}
	return final, nil
}

// triedPools are the pools that were tried, including the replacement's.
func triedPools(r interruption.Replacement) []string {
	var tried []string
	if r.Tried != "" {
		tried = strings.Split(r.Tried, ",")
	}
	if tries := triedAs(r.Pool, r.Capacity); r.Pool != "" && !slices.Contains(tried, tries) {
		tried = append(tried, tries)
	}
	return tried
}

// triedAs is what [interruption.Replacement.Tried] says of a pool.
func triedAs(pool, capacity string) string {
	if capacity == "" {
		return pool
	}
	return pool + "/" + capacity
}

// create makes the NodeClaim of the order. If the pool is full by now, what failed has no name.
func (b *Backend) create(ctx context.Context, o claimOrder) (interruption.Replacement, error) {
	r := o.replacement()
	b.claims.start(o.lost.rec.Instance)
	if known, _ := b.claims.get(r.Name); known != nil && known.Labels[SettledLabel] == "" {
		return b.ours(ctx, o, r, known)
	}
	other, err := b.instead(ctx, o)
	if err != nil {
		return r, err
	}
	if other != nil {
		return *other, nil
	}
	o, err = b.fitted(ctx, o)
	if reason, ok := unavailable(err); ok {
		return unsupported(reason), nil
	}
	if err != nil {
		return r, err
	}
	order, err := o.build()
	if err != nil {
		return provisioner.Failed(r, err.Error()), nil
	}
	full, err := b.ledger.reserve(ctx, o.pool, r.Name, o.size)
	if reason, ok := unavailable(err); ok {
		return unsupported(reason), nil
	}
	if err != nil {
		return r, err
	}
	if full != "" {
		b.countRefusal(o, full)
		return failedIn(o.pool.Name, full), nil
	}
	u, err := b.opts.Dynamic.Resource(nodeClaimResource).Create(ctx, order, metav1.CreateOptions{FieldManager: fieldManager})
	if apierrors.IsAlreadyExists(err) {
		claim, err := b.readClaim(ctx, r.Name, asStored)
		if err != nil {
			return r, err
		}
		if claim == nil {
			return r, fmt.Errorf("create NodeClaim %q: another of that name was just deleted", r.Name)
		}
		if claim.isOurs(o.lost.rec.Instance) && claim.Labels[SettledLabel] != "" { // of an earlier interruption
			b.ledger.forget(r.Name)
			o.former = string(claim.UID)
			return b.create(ctx, o)
		}
		return b.ours(ctx, o, r, claim)
	}
	if err != nil {
		perhaps := apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsTimeout(err) || apierrors.IsInternalError(err)
		if perhaps { // the API server might have made it
			b.unanswered.Put(o.lost.rec.Instance, readcache.Answer[string]{Value: r.Name, Asked: time.Now()})
		} else {
			b.ledger.forget(r.Name)
		}
		return b.notCreated(r, err)
	}
	claim := decodeClaim(u)
	text := fmt.Sprintf("replaces interrupted node %s (%s) for %d pods", o.lost.node.Name, o.lost.rec.Instance, len(o.fit.need.Moving))
	if o.lost.backTo != "" {
		text = fmt.Sprintf("brings %d pods of on-demand node %s (%s) back to spot", len(o.fit.need.Moving), o.lost.node.Name, o.lost.rec.Instance)
	}
	b.event("NodeClaim", claim.ObjectMeta, corev1.EventTypeNormal, reasonReplaces, text)
	if (o.lost.spotFirst || o.lost.backTo != "") && o.capacity == spot {
		b.inVain.Put(r.Name, readcache.Answer[string]{Value: triedAs(r.Pool, spot), Asked: time.Now()})
	}
	b.claims.learn(claim)
	b.keeper.add(claim.Name)
	return r, nil
}

// isOurs reports whether the claim was made to replace the instance.
func (c *Claim) isOurs(instance string) bool {
	return c.Labels[ReplacesLabel] == labelValue(instance)
}

// notCreated separates what would fail again from what might not.
func (b *Backend) notCreated(r interruption.Replacement, err error) (interruption.Replacement, error) {
	if isDenied(err) {
		return provisioner.Failed(r, provisioner.Cause(err)), nil
	}
	err = b.note(fmt.Errorf("create NodeClaim %q: %w", r.Name, err))
	if reason, ok := unavailable(err); ok {
		return unsupported(reason), nil
	}
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return provisioner.Failed(r, err.Error()), nil
	}
	return r, err
}

// isDenied reports whether an admission policy has refused this very claim: others may pass. For want of a
// permission, the API server refuses a creation before it has read the name.
func isDenied(err error) bool {
	var answer apierrors.APIStatus
	return apierrors.IsForbidden(err) && errors.As(err, &answer) && answer.Status().Details != nil && answer.Status().Details.Name != ""
}

// ours answers for a claim that existed before we made it, as after a crash.
func (b *Backend) ours(ctx context.Context, o claimOrder, r interruption.Replacement, claim *Claim) (interruption.Replacement, error) {
	if !claim.isOurs(o.lost.rec.Instance) {
		return provisioner.Failed(r, "NodeClaim "+r.Name+" exists and is not ours"), nil
	}
	b.claims.learn(claim)
	return b.progress(ctx, r, claim)
}

// follow says how far the claim that the record names has come.
func (b *Backend) follow(ctx context.Context, instance string, r interruption.Replacement) (interruption.Replacement, error) {
	if !provisioner.Pending(r.State) {
		return r, nil
	}
	b.claims.start(instance)
	claim, synced := b.claims.get(r.Name)
	if claim == nil && !synced {
		return r, nil
	}
	if claim == nil {
		// The watch might be behind, or served by another API server than the one that took
		// the claim: only a fresh read proves that it is gone. That happens once, as what
		// follows is final.
		var err error
		if claim, err = b.fresh(ctx, r.Name); err != nil {
			return r, err
		}
	}
	if claim != nil && !claim.isOurs(instance) { // the record is the word of the node's own kubelet
		return provisioner.Failed(r, "NodeClaim "+r.Name+" does not replace "+instance), nil
	}
	return b.progress(ctx, r, claim)
}

// fresh reads the claim past all caches; nil if there is none.
func (b *Backend) fresh(ctx context.Context, name string) (*Claim, error) {
	claim, err := b.readClaim(ctx, name, asStored)
	switch {
	case err != nil:
	case claim == nil:
		b.claims.forget(name)
	default:
		b.claims.learn(claim)
	}
	return claim, err
}

// progress says what the state of a claim makes of a pending replacement; a nil claim is
// gone. One that should have been launched by now is deleted.
func (b *Backend) progress(ctx context.Context, r interruption.Replacement, claim *Claim) (interruption.Replacement, error) {
	if claim == nil || !claim.DeletionTimestamp.IsZero() {
		b.ledger.forget(r.Name)
		return provisioner.Failed(r, taken(r, claim)), nil
	}
	switch state := claim.state(); {
	case state != provisioner.StateRequested:
		r.State = state
		return r, nil
	case r.State == provisioner.StateLaunched:
		return r, nil // this is older than what was seen before
	case time.Since(claim.CreationTimestamp.Time) < launchTimeout:
		return r, nil
	}
	return b.giveUp(ctx, r, claim)
}

// giveUp deletes a claim that was not launched in time, and only the version that it has
// read: the next might be launched.
func (b *Backend) giveUp(ctx context.Context, r interruption.Replacement, claim *Claim) (interruption.Replacement, error) {
	reason := notLaunched(claim)
	again, err := b.keeper.remove(ctx, claim, corev1.EventTypeWarning, reasonNotLaunched, reason)
	switch now, _ := b.claims.get(r.Name); {
	case err != nil:
		return r, err
	case again > 0 && now != nil && now.state() == provisioner.StateRequested:
		return r, fmt.Errorf("delete NodeClaim %q: it has just been changed", claim.Name)
	case again > 0:
		return b.progress(ctx, r, now)
	}
	b.ledger.forget(r.Name)
	return provisioner.Failed(r, reason), nil
}

// notLaunched says why a claim was given up.
func notLaunched(claim *Claim) string {
	reason := fmt.Sprintf("not launched in %d s", int(launchTimeout.Seconds()))
	if c := meta.FindStatusCondition(claim.Status.Conditions, "Launched"); c != nil && c.Message != "" {
		reason += ": " + c.Message
	}
	return reason
}

// taken says why a pending claim is gone. Karpenter does not say so on the claim: if there
// is no instance to be had, or if the node class is not ready, it deletes the claim and only
// writes a Kubernetes Event.
func taken(r interruption.Replacement, claim *Claim) string {
	if r.State == provisioner.StateLaunched || (claim != nil && claim.state() != provisioner.StateRequested) {
		return "NodeClaim was deleted before its node was Ready"
	}
	return "insufficient capacity, or the node class is not ready: Karpenter deleted the NodeClaim before its launch"
}
