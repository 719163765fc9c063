package karpenter

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// maxReplacements is how many NodeClaims replace one instance at a time, those included that pods use
// since an earlier interruption. The record and most labels of a Node are the word of its kubelet, which
// could ask for another one in each pool, again and again.
const maxReplacements = 3

// readReplacing reads the names of our NodeClaims, by the label of what they replace. If the process
// looks after one node only, they are those of that one.
func (b *Backend) readReplacing(ctx context.Context, instance string) (map[string][]string, error) {
	selector := ReplacesLabel
	if instance != "" {
		selector += "=" + labelValue(instance)
	}
	names := map[string][]string{}
	err := eachPage(ctx, b.opts.Dynamic, nodeClaimResource, selector, func(u *unstructured.Unstructured) {
		of := u.GetLabels()[ReplacesLabel]
		names[of] = append(names[of], u.GetName())
	})
	return names, err
}

// existing are the NodeClaims that replace the instance and that nobody has deleted. The list of them
// can be as old as poolTTL; what was made since is known.
func (b *Backend) existing(ctx context.Context, instance string) ([]*Claim, error) {
	key := ""
	if b.opts.SingleNode {
		key = instance
	}
	listed, err := b.replacing.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	names := append(b.claims.replacing(instance), listed[labelValue(instance)]...)
	if perhaps, fresh := b.unanswered.Last(instance); fresh {
		names = append(names, perhaps.Value)
	}
	var claims []*Claim
	for _, name := range distinct(names) {
		claim, err := b.readClaim(ctx, name, asStored) // it may just have been made, or deleted
		if err != nil {
			return nil, err
		}
		if claim != nil && claim.DeletionTimestamp.IsZero() && claim.isOurs(instance) {
			claims = append(claims, claim)
		}
		if len(claims) == maxReplacements {
			break
		}
	}
	return claims, nil
}

// instead is the answer to an order if the instance has a replacement in whatever pool, which is
// followed, or has had too many; nil if neither is the case.
func (b *Backend) instead(ctx context.Context, o claimOrder) (*interruption.Replacement, error) {
	claims, err := b.existing(ctx, o.lost.rec.Instance)
	if reason, ok := unavailable(err); ok {
		none := unsupported(reason)
		return &none, nil
	}
	if err != nil {
		return nil, err
	}
	name := o.name()
	at := slices.IndexFunc(claims, func(c *Claim) bool { return c.Labels[SettledLabel] == "" && c.Name != name })
	switch {
	case at >= 0:
		claim := claims[at]
		b.claims.learn(claim)
		r, err := b.progress(ctx, interruption.Replacement{
			Backend: provisioner.Karpenter,
			Name:    claim.Name,
			Pool:    claim.Labels[nodePoolLabel],
			State:   provisioner.StateRequested,
			Reason:  "it was requested before",
		}, claim)
		return &r, err
	case len(claims) >= maxReplacements:
		reason := fmt.Sprintf("%d NodeClaims that replace %s exist already", len(claims), o.lost.rec.Instance)
		failed := failedIn(o.pool.Name, reason)
		return &failed, nil
	}
	return nil, nil
}

// replacing are the names of the known claims that replace the instance.
func (c *claimWatch) replacing(instance string) (names []string) {
	label := labelValue(instance)
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.replace[label] {
		names = append(names, name)
	}
	return names
}
