package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// podsNeverToBeDisrupted: what protects pods from being moved for no good reason also keeps them
// on a node that is about to be lost.
func podsNeverToBeDisrupted(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		i := slices.IndexFunc(theirs, func(p *Pod) bool { return p.Stays != "" })
		if i < 0 {
			continue
		}
		found = append(found, Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: fmt.Sprintf("has the annotation %s, which never lapses", theirs[i].Stays),
			Why:  "its pods are not surged, leave as late as they can, and stay on a rebalance recommendation",
			Fix:  patchPods(of, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, theirs[i].Stays)),
		})
	}
	return found
}

// sleepsAsLongAsTheGrace: the grace period runs during preStop too, so nothing of it remains for
// the process to end by itself.
// https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/#hook-handler-execution
func sleepsAsLongAsTheGrace(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		i := slices.IndexFunc(theirs, func(p *Pod) bool { return p.Sleep > 0 && p.Sleep >= p.Grace })
		if i < 0 {
			continue
		}
		p := theirs[i]
		f := Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: fmt.Sprintf("sleeps %.0f s in preStop, of a grace period of %.0f s", p.Sleep.Seconds(), p.Grace.Seconds()),
			Why:  "its containers are killed as soon as they are asked to end",
			Fix:  setGrace(of, p.Sleep+toEnd),
		}
		if p.Sleep+toEnd > s.Grace {
			f.Fix = fmt.Sprintf("in the manifest of %s: a preStop sleep of %.0f s at most", of.Object, (s.Grace - toEnd).Seconds())
		}
		found = append(found, f)
	}
	return found
}

// toEnd is the grace period that Kubernetes gives to pods that ask for none.
const toEnd = 30 * time.Second

// blanketTolerations: the toleration of every taint is one of the cordon too.
func blanketTolerations(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		i := slices.IndexFunc(theirs, func(p *Pod) bool { return p.Blanket >= 0 })
		if i < 0 {
			continue
		}
		f := Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: "tolerates every taint",
			Why:  "its successors might be put on the very node that is about to be lost, so its pods are not surged",
			Fix:  fmt.Sprintf("in the manifest of %s: no toleration with operator Exists and without a key", of.Object),
		}
		if kind, _, _ := strings.Cut(of.Object, "/"); templated(kind) {
			at := fmt.Sprintf("/spec/template/spec/tolerations/%d", theirs[i].Blanket)
			f.Fix = of.kubectl("patch", "--type=json", "-p", fmt.Sprintf(`[{"op":"test","path":"%s/operator","value":"Exists"},{"op":"remove","path":"%s"}]`, at, at))
		}
		found = append(found, f)
	}
	return found
}

// successorsTrustedAtOnce: a surge ends a pod when its successor is ready, which without a probe
// it is as soon as it runs.
func successorsTrustedAtOnce(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		d, ok := s.deployment(of)
		if !ok || d.MinReady > 0 || d.Refuses != "" || !slices.ContainsFunc(theirs, func(p *Pod) bool { return p.Unprobed && p.Surges }) {
			continue
		}
		found = append(found, Finding{
			Namespace: of.Namespace, Object: of.Object, Pods: len(theirs),
			What: "has no readiness probe",
			Why:  "its successors count as ready as soon as they run, and its pods leave before these can serve",
			Fix:  of.kubectl("patch", "-p", `{"spec":{"minReadySeconds":10}}`),
		})
	}
	return found
}
