package sim

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/provisioner/karpenter"
)

func (j *judge) claimChanged(c memapi.Change, ours bool) {
	after, _ := c.After.(custom)
	before, _ := c.Before.(custom)
	if after == nil {
		j.dropped = time.Now()
	}
	if !ours {
		return
	}
	if after == nil || after.GetDeletionTimestamp() != nil {
		j.w.note("%s: deletes NodeClaim %s", c.By, c.Key)
		j.claimDeleted(c, before)
		return
	}
	if before != nil {
		if before.GetAnnotations()[karpenter.StandsInAnnotation] != "" && after.GetAnnotations()[karpenter.StandsInAnnotation] == "" {
			j.stoodIn[c.Key] = time.Now()
		}
		return
	}
	replaces := after.GetLabels()[karpenter.ReplacesLabel]
	j.w.note("%s: makes NodeClaim %s for %s", c.By, c.Key, replaces)
	i := j.w.instances[replaces]
	switch {
	case replaces == "":
		j.breaks(oneEach, "%s makes NodeClaim %s, which replaces nothing", c.By, c.Key)
		return
	case i == nil || !j.noticed(i.node):
		j.breaks(oneEach, "%s makes NodeClaim %s for %s, about which nobody has announced anything", c.By, c.Key, replaces)
	}
	if i != nil {
		j.judgeUse(after, i)
	}
	for _, name := range j.replaced[replaces] {
		other := memapi.Get[custom](j.w.Server, memapi.NodeClaims, name)
		stands := other != nil && other.GetDeletionTimestamp() == nil && other.GetLabels()[karpenter.SettledLabel] == ""
		if name != c.Key && stands {
			j.breaks(oneEach, "%s makes NodeClaim %s for %s, and there is %s", c.By, c.Key, replaces, name)
		}
	}
	j.replaced[replaces], j.lastReplaced = append(j.replaced[replaces], c.Key), time.Now()
}

// claimDeleted: we delete claims that we have made, and those of nodes whose interruption is over.
func (j *judge) claimDeleted(c memapi.Change, before custom) {
	if before == nil || before.GetDeletionTimestamp() != nil || before.GetLabels()[karpenter.ReplacesLabel] != "" {
		return
	}
	i := j.w.byClaim[c.Key]
	if i == nil {
		return
	}
	if !j.noticed(i.node) {
		j.breaks(notOurs, "%s deletes NodeClaim %s of %s, about which nobody has announced anything", c.By, c.Key, i.node)
	}
	if node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, i.node); node != nil && !mayRelease(node) {
		j.breaks(notOurs, "%s deletes NodeClaim %s of %s, whose rehearsal ends with it in service", c.By, c.Key, i.node)
	}
}

// mayBoot is how long a replacement can take to become Ready before it is taken back: 15 minutes from
// its launch, and the TTL of the scenes.
const mayBoot = 17 * time.Minute

func (j *judge) finishClaims() {
	for _, claim := range memapi.List[custom](j.w.Server, memapi.NodeClaims) {
		replaces := claim.GetLabels()[karpenter.ReplacesLabel]
		if replaces == "" || claim.GetDeletionTimestamp() != nil {
			continue
		}
		used := slices.ContainsFunc(j.w.podsOn(claim.GetName()), hasToMove) || j.hasBeenUsed(claim)
		consolidates := j.w.Scene.Karpenter.Consolidates > 0 && claim.GetLabels()[karpenter.SettledLabel] != "" && j.initialized(claim)
		coming := !j.initialized(claim) && j.w.Now().Sub(claim.GetCreationTimestamp().Time) < mayBoot || j.takesBack(claim)
		coming = coming || j.justInitialized(claim)
		if !used && !consolidates && !coming && !j.justOver(claim.GetAnnotations()["spot-handler/interrupted-node"]) {
			j.breaks(notInVain, "NodeClaim %s for %s has no pod, labels %v, annotations %v",
				claim.GetName(), replaces, claim.GetLabels(), claim.GetAnnotations())
		}
	}
}

// hasBeenUsed reports whether the claim is the pool's since pods ran on its node: that they have left since is for
// Karpenter to see, which may be told to keep empty nodes.
func (j *judge) hasBeenUsed(claim custom) bool {
	if claim.GetLabels()[karpenter.SettledLabel] == "" || j.w.Scene.Karpenter.Consolidates > 0 {
		return false
	}
	for _, life := range j.pods {
		if life.pod.Spec.NodeName == claim.GetName() && !isDaemon(life.pod) {
			return true
		}
	}
	return false
}

// justOver reports whether the round has ended before the TTL of the scenes had passed since the node's record went.
// Only then is its replacement taken back.
func (j *judge) justOver(node string) bool {
	life := j.nodes[node]
	return life != nil && time.Since(life.restored) < time.Minute+recovery
}

// takesBack reports whether the claim is for a node that is on its way back.
func (j *judge) takesBack(claim custom) bool {
	for _, node := range memapi.List[*corev1.Node](j.w.Server, memapi.Nodes) {
		if rec, has := recordOf(node); has && (onItsWayBack(rec) || j.waitsForLong(node.Name)) && rec.Replacement != nil && rec.Replacement.Name == claim.GetName() {
			return true
		}
	}
	return false
}

func (j *judge) initialized(claim custom) bool { return !j.initializedAt(claim).IsZero() }

// justInitialized reports whether the round has ended before the TTL of the scenes had passed since the claim's node was
// Ready, if only after the attempt to go back to spot had been given up.
func (j *judge) justInitialized(claim custom) bool {
	return j.w.Now().Sub(j.initializedAt(claim)) < time.Minute+recovery
}

// initializedAt is when the claim's node was Ready; zero if it was not.
func (j *judge) initializedAt(claim custom) (at time.Time) {
	list, _, _ := unstructuredSlice(claim, "status", "conditions")
	for _, c := range list {
		if m, _ := c.(map[string]any); m["type"] == "Initialized" {
			text, _ := m["lastTransitionTime"].(string)
			at, _ = time.Parse(time.RFC3339, text)
		}
	}
	return at
}
