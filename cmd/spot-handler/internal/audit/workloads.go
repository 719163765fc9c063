package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// gracesThatDoNotFit: a pod asks for more time to end than a spot notice leaves in all.
func gracesThatDoNotFit(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner() {
		longest := slices.MaxFunc(theirs, func(a, b Pod) int { return int(a.Grace - b.Grace) }).Grace
		if longest <= s.Grace {
			continue
		}
		found = append(found, Finding{
			Namespace: of.namespace, Object: of.object, Pods: len(theirs),
			What: fmt.Sprintf("asks for %.0f s to end, and a spot notice leaves %.0f s at most", longest.Seconds(), s.Grace.Seconds()),
			Why:  "its pods are evicted at once and killed before they are done",
			Fix:  shorten(of, s.Grace),
		})
	}
	return found
}

// shorten is how the pods of a workload get a shorter grace period. Only these kinds roll their
// pods, or make new ones, when their template changes.
func shorten(of owned, grace time.Duration) string {
	kind, name, _ := strings.Cut(of.object, "/")
	if !slices.Contains([]string{"deployment", "statefulset"}, kind) {
		return fmt.Sprintf("in the manifest of %s: terminationGracePeriodSeconds: %.0f", of.object, grace.Seconds())
	}
	return fmt.Sprintf(`kubectl -n %s patch %s %s -p '{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":%.0f}}}}'`,
		of.namespace, kind, name, grace.Seconds())
}

// deploymentsWithoutSurge: a Deployment does not allow that successors are made before its pods
// leave, so it is short of them until those are ready elsewhere.
func deploymentsWithoutSurge(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner() {
		d, ok := s.deploymentOf(theirs[0])
		if !ok || d.surges() {
			continue
		}
		what := "has maxSurge 0"
		if d.Strategy != rolling {
			what = "has the strategy " + d.Strategy
		}
		why := "its pods leave before their successors are ready: it is short of them while a node boots"
		if d.Replicas == 1 {
			why = "its only pod leaves before its successor is ready: it is down while a node boots"
		}
		found = append(found, Finding{
			Namespace: of.namespace, Object: of.object, Pods: len(theirs), What: what, Why: why,
			Fix: fmt.Sprintf(`kubectl -n %s patch %s -p '{"spec":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%%"}}}}'`,
				of.namespace, strings.Replace(of.object, "/", " ", 1)),
		})
	}
	return found
}

const rolling = "RollingUpdate"

func (d Deployment) surges() bool {
	return d.Strategy == rolling && d.MaxSurge != "0" && d.MaxSurge != "0%"
}

const deploymentPrefix = "deployment/"

func (s Snapshot) deploymentOf(p Pod) (Deployment, bool) {
	name, ok := strings.CutPrefix(p.Owner, deploymentPrefix)
	if !ok {
		return Deployment{}, false
	}
	d, ok := s.Deployments[p.Namespace+"/"+name]
	return d, ok
}

// canSurge reports whether the pod's successor can be made before it leaves.
func (s Snapshot) canSurge(p Pod) bool {
	d, ok := s.deploymentOf(p)
	return ok && d.surges()
}

// owned is a workload.
type owned struct{ namespace, object string }

// byOwner are the pods of each workload. Pods without one stand for themselves.
func (s Snapshot) byOwner() map[owned][]Pod {
	of := map[owned][]Pod{}
	for _, p := range s.Pods {
		key := owned{p.Namespace, p.Owner}
		of[key] = append(of[key], p)
	}
	return of
}
