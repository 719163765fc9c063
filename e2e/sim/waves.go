package sim

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/handler/interruption"
)

// surges reports whether the replacement pods of a workload can be made first.
func (j *judge) surges(of *Workload) bool {
	return of.Kind == "Deployment" && of.MaxSurge != "0" && !slices.Contains(j.w.Scene.Flags, "--drain-strategy=hold")
}

// wavesFit reports whether all pods of the workload that have to leave could have left in waves, each with its whole
// grace period and as its budget allows, from able on until latest. It knows only cases without doubt: no fault, no
// webhook, requests that hardly ever fail, a budget of maxUnavailable, and pods that all have room, the replacement pods
// at once and on nodes that stayed.
func (j *judge) wavesFit(pod *corev1.Pod, able, latest time.Time) bool {
	of := j.w.workloadOf(pod)
	text, sure := strings.CutPrefix(of.Budget, "maxUnavailable=")
	value := intstr.Parse(text)
	atOnce, err := intstr.GetScaledValueFromIntOrPercent(&value, of.Replicas, true)
	if !sure || err != nil || j.surges(of) || of.Kind == "Job" || len(of.Annotations) > 0 || of.Gang || of.Tolerates {
		return false
	}
	if j.w.Scene.Webhook > 0 || !j.w.Scene.Rates.rare() || slices.ContainsFunc(j.w.faulty.spans, func(f Fault) bool {
		return j.w.began.Add(f.From).Before(latest) && j.w.began.Add(f.to()+recovery).After(able)
	}) {
		return false
	}
	if atOnce -= of.Broken; atOnce < 1 {
		return false
	}
	if j.replaces(pod) {
		return false // it may not be Ready yet, and a PDB that requires no healthy pods refuses evictions until it is
	}
	leave := 0
	for _, life := range j.pods {
		switch {
		case j.w.workloadOf(life.pod) != of:
		case life.bound.IsZero(), !j.replaces(life.pod) && life.bound.After(able): // no node has room for it, or none had
			return false
		case j.replaces(life.pod):
			if life.bound.Sub(life.pod.CreationTimestamp.Add(-j.w.Ahead)) > 3*time.Second ||
				j.noticed(life.pod.Spec.NodeName) {
				return false
			}
		case j.noticed(life.pod.Spec.NodeName):
			fate := j.nodes[life.pod.Spec.NodeName]
			at := fate.recorded[interruption.SpotInterruption]
			if i := j.w.instanceOf(life.pod.Spec.NodeName); i == nil || !i.taken.IsZero() && i.taken.Before(latest) {
				return false // on a machine that is gone, its pod keeps its name and its volume for half a minute
			}
			if at.IsZero() || at.Sub(able).Abs() > 5*time.Second || fate.loss.Lead == 0 || !fate.canceled.IsZero() {
				return false
			}
			leave++
		}
	}
	cycle := of.Start + 5*time.Second
	if of.Kind == "StatefulSet" {
		cycle += min(of.Stop, time.Duration(of.Grace)*time.Second)
		if of.Volume {
			cycle += 13 * time.Second
		}
	}
	waves := (leave + atOnce - 1) / atOnce
	return able.Add(time.Duration(waves-1)*cycle + recovery).Before(latest)
}

// replaces reports whether the pod was created to replace one that left: the scene's own pods are older.
func (j *judge) replaces(pod *corev1.Pod) bool {
	return pod.CreationTimestamp.After(j.w.began.Add(-time.Minute))
}
