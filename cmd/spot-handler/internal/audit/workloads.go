package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// gracesThatDoNotFit: a pod asks for more time to end than a spot notice leaves in all.
func gracesThatDoNotFit(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		longest := slices.MaxFunc(theirs, func(a, b *Pod) int { return int(a.Grace - b.Grace) }).Grace
		if longest <= s.Grace {
			continue
		}
		found = append(found, Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: fmt.Sprintf("asks for %.0f s to end, and a spot notice leaves %.0f s at most", longest.Seconds(), s.Grace.Seconds()),
			Why:  "its pods are evicted at once and killed before they are done",
			Fix:  setGrace(of, s.Grace),
		})
	}
	return found
}

// deploymentsWithoutSurge: a Deployment does not allow that successors are made before its pods
// leave, so it is short of them until those are ready elsewhere.
func deploymentsWithoutSurge(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		d, ok := s.deployment(of)
		if !ok || d.Refuses == "" {
			continue
		}
		f := Finding{Namespace: of.Namespace, Object: of.Object, Pods: len(theirs), What: d.Refuses, Why: dip(d.Replicas)}
		f.Fix = of.kubectl("patch", "-p", `{"spec":{"paused":false,"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%"}}}}`)
		found = append(found, f)
	}
	return found
}

// podsThatCannotBeSurged: a workload's only pod, or one of a Deployment that allows surge, leaves
// before its successor is ready all the same.
func podsThatCannotBeSurged(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		i := slices.IndexFunc(theirs, func(p *Pod) bool { return p.NoSurge != "" })
		d, known := s.deployment(of)
		if i < 0 || known && d.Refuses != "" || !known && s.Replicas[of] > 1 {
			continue
		}
		why := dip(s.Replicas[of])
		if strings.HasPrefix(of.Object, "pod/") {
			why = "once it has left, it is gone for good"
		}
		found = append(found, Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: "cannot be surged: " + theirs[i].NoSurge, Why: why,
			Fix: patchPods(of, fmt.Sprintf(`{"spec":{"nodeSelector":{%q:%q}}}`, s.OnDemand.Key, s.OnDemand.Value)),
		})
	}
	return found
}

// dip is what becomes of a workload whose pods leave before their successors are ready.
func dip(replicas int) string {
	if replicas == 1 {
		return "its only pod leaves before its successor is ready: it is down while a node boots"
	}
	return "its pods leave before their successors are ready: it is short of them while a node boots"
}

func (s Snapshot) deployment(of Owned) (Deployment, bool) {
	name, ok := strings.CutPrefix(of.Object, deploymentPrefix)
	if !ok {
		return Deployment{}, false
	}
	d, ok := s.Deployments[of.Namespace+"/"+name]
	return d, ok
}

// templated are the kinds that roll their pods when their template changes.
func templated(kind string) bool { return slices.Contains([]string{"deployment", "statefulset"}, kind) }

// patchPods is how the pods of a workload get another template.
func patchPods(of Owned, patch string) string {
	kind, _, _ := strings.Cut(of.Object, "/")
	switch {
	case templated(kind):
		return of.kubectl("patch", "-p", `{"spec":{"template":`+patch+"}}")
	case kind == "pod":
		return fmt.Sprintf("in the manifest of %s: %s", of.Object, patch)
	}
	return fmt.Sprintf("in the template of %s for its pods: %s", of.Object, patch)
}

func setGrace(of Owned, grace time.Duration) string {
	return patchPods(of, fmt.Sprintf(`{"spec":{"terminationGracePeriodSeconds":%.0f}}`, grace.Seconds()))
}
