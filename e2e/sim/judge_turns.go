package sim

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// quarterOfTTL is how long a node keeps its turn without any progress: a quarter of the TTL of the scenes, plus the
// time until that is noticed.
const quarterOfTTL = time.Minute + 15*time.Second

// startsIn is how long before the end of a recommendation its turn has to come to be of any use.
const startsIn = 45 * time.Second

// judgeTurn: a recommendation that comes to nothing has had its turn, unless others had theirs and moved on. It knows
// the case of one other node only.
func (j *judge) judgeTurn(node *corev1.Node, was interruption.Record, fate *nodeLife) {
	replaces := slices.ContainsFunc(j.w.Scene.Flags, func(flag string) bool {
		policy, is := strings.CutPrefix(flag, "--rebalance=")
		return is && interruption.RebalancePolicy(policy).Replaces()
	})
	waited := was.Kind == interruption.RebalanceRecommendation && was.Phase == interruption.Waiting && !fate.turned && was.Replacement == nil
	if !waited || !replaces || was.Returns() || was.Rehearsed() || !fate.canceled.IsZero() || j.w.cloud != nil ||
		slices.Contains(j.w.Scene.Flags, "--provisioner=none") || len(j.w.faulty.spans) > 0 {
		return
	}
	i := j.w.instanceOf(node.Name)
	var first []*nodeLife
	for name, other := range j.nodes {
		if of := j.w.instanceOf(name); name != node.Name && of != nil && i != nil && of.pool == i.pool && other.turned {
			first = append(first, other)
		}
	}
	if len(first) > 1 {
		return
	}
	from, still := was.Received, time.Duration(0)
	until := time.Now().Add(-startsIn)
	for _, other := range first {
		for _, at := range other.progress {
			if at.After(from) && at.Before(until) {
				still, from = max(still, at.Sub(from)), at
			}
		}
	}
	mayStand := quarterOfTTL
	if !j.w.Scene.Rates.rare() {
		mayStand *= 3 // a leader that loses its lease starts counting again
	}
	if still = max(still, until.Sub(from)); still > mayStand {
		j.breaks(everyTurn, "node %s was recommended at %.3f, others have moved nothing for %s, and it was never replaced",
			node.Name, was.Received.Sub(j.w.began).Seconds(), still.Round(time.Second))
	}
}

// moved notes that the drain of a node makes progress.
func (j *judge) moved(node string) {
	if life := j.nodes[node]; life != nil {
		life.progress = append(life.progress, time.Now())
	}
}
