package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
)

// outlived is how long status may go on saying something that is no longer so.
const outlived = 20 * time.Second

// calm reports whether, for a while, nothing has kept the daemon from seeing the cluster and writing its records.
func (j *judge) calm() bool {
	now := j.w.since()
	return !j.w.disturbed(now-outlived-recovery, now) && !j.hung() && !j.twoLead() && j.w.Scene.Rates.rare() &&
		time.Since(j.ledSince) > outlived && j.w.Scene.Webhook == 0
}

// judgeWait: what a node is said to wait for hasn't come, or came just now.
func (j *judge) judgeWait(node *corev1.Node, rec interruption.Record, s said, wrong func(string, ...any)) {
	all, ending, surged, unsure := j.here(node.Name, rec)
	off := func(said, so int) bool { return j.behind() == 0 && sure(rec) && (said < so || said > so+unsure) }
	just := time.Now().Add(-outlived)
	fate := j.life(node.Name)
	still := len(fate.progress) > 0 && fate.progress[len(fate.progress)-1].Before(just) // nothing has moved
	var name string
	var n, m int
	scans := func(format string, into ...any) bool {
		_, err := fmt.Sscanf(s.WaitsFor, format, into...)
		return err == nil
	}
	switch {
	case s.WaitsFor == "volumes to be detached":
		attached := slices.ContainsFunc(memapi.List[attachment](j.w.Server, memapi.Attachments), func(a attachment) bool {
			return a.Spec.NodeName == node.Name
		})
		if off(0, all) || !attached && still && j.calm() {
			wrong("it is said to wait for volumes; %d pods are there, any attached: %t", all, attached)
		}
	case scans("%d pod to end", &n), scans("%d pods to end", &n):
		if off(n, ending) {
			wrong("it is said to wait for %d pods to end, and %d do", n, ending)
		}
	case scans("%d pod to leave, which may stay", &n), scans("%d pods to leave, which may stay", &n):
		if n > all+unsure && j.behind() == 0 || sure(rec) {
			wrong("%d pods are said to be allowed to stay, of %d", n, all+unsure)
		}
	case scans("replacement pods of %d", &n):
		if off(n, surged) {
			wrong("it is said to wait for the replacement pods of %d pods, and %d are surged", n, surged)
		}
	case scans("the turn or the eviction deadline of %d", &n):
		if off(n, all) {
			wrong("it is said to wait for the turn of %d pods, and %d are there", n, all)
		}
	case strings.HasPrefix(s.WaitsFor, "an eviction that was refused: "):
		refused := slices.ContainsFunc(j.w.podsOn(node.Name), func(pod *corev1.Pod) bool {
			life := j.pods[pod.UID]
			return life != nil && !life.refused.IsZero()
		})
		if !refused && still && j.calm() {
			wrong("it is said to wait for an eviction that was refused, and none was")
		}
	case scans("its replacement %s to be Ready", &name), scans("the spot node %s to be Ready", &name):
		if j.calm() && j.readyBy(name, just) {
			wrong("it is said to wait for %s to be Ready, which it is", name)
		}
	case scans("a slot in its pool: %d under way, %d ahead of it", &n, &m):
		// A node ahead of it may have just left the line.
		if most := j.inLine(node); n+m > most || n+m == 0 && still && j.calm() && !j.movedIn(node, just) {
			wrong("%d are said to be under way and %d ahead of it, of %d in line", n, m, most)
		}
	case s.WaitsFor == "its time: --scheduled-lead before its window":
		if begins := rec.Deadline.Add(-scheduledLead); j.calm() && begins.Before(just) {
			wrong("it is said to wait for its time, which came at %.3f", begins.Sub(j.w.began).Seconds())
		}
	case s.WaitsFor == "a notice, or its recommendation to lapse: it is only cordoned":
		if rec.Kind != interruption.RebalanceRecommendation || rec.Phase != interruption.Noticed || rec.TurnTaken() {
			wrong("it is said to be only cordoned")
		}
	case s.WaitsFor == "the drain to begin":
		if still && j.calm() && all > 0 && sure(rec) {
			wrong("its drain is said not to have begun")
		}
	case s.WaitsFor == "its lifecycle hook to be completed":
		if j.calm() && rec.Ended.Before(just) && j.hookOf(rec.Instance, asgemu.TerminateAt) == nil {
			wrong("it is said to wait for its hook")
		}
	case s.WaitsFor == "its replacement to be requested", s.WaitsFor == "its replacement to be Ready":
		if rec.Replacement != nil && onItsWay(rec.Replacement) || still && j.calm() {
			wrong("it is said to wait for %q, and its replacement is %+v", s.WaitsFor, rec.Replacement)
		}
	case s.WaitsFor == "its next turn: no pod would leave on a recommendation this time":
		if rec.Replacement == nil || !onItsWay(rec.Replacement) || rec.TurnTaken() {
			wrong("it is said that no pod would leave, and its replacement is %+v", rec.Replacement)
		}
	case s.WaitsFor == "its next turn: it could not be replaced this time":
		if rec.Replacement == nil || onItsWay(rec.Replacement) {
			wrong("it is said not to have been replaced, and its replacement is %+v", rec.Replacement)
		}
	case s.WaitsFor == "the node to be put back into service":
		if !rec.Rehearsed() || rec.Release {
			wrong("it is said to come back")
		}
	case s.WaitsFor == "the node to be terminated", s.WaitsFor == "its instance to come back":
		if s.Over != (rec.Rehearsed() == rec.Release) {
			wrong("it is said to wait for %q", s.WaitsFor)
		}
	case strings.HasPrefix(s.WaitsFor, "spot-handler to undo what it had set"):
		if !rec.Canceled && node.Annotations[interruption.CancelAnnotation] == "" {
			wrong("it is said to be cancelled")
		}
	case s.WaitsFor == "":
		if rec.Phase != interruption.Released {
			wrong("it is said to wait for nothing")
		}
	default:
		wrong("it is said to wait for %q, which the judge doesn't know", s.WaitsFor)
	}
}

// inLine is how many nodes of the node's pool are recommended, besides itself.
func (j *judge) inLine(node *corev1.Node) (n int) {
	own := j.w.instanceOf(node.Name)
	for _, other := range memapi.List[*corev1.Node](j.w.Server, memapi.Nodes) {
		rec, has := recordOf(other)
		of := j.w.instanceOf(other.Name)
		if has && other.Name != node.Name && rec.Kind == interruption.RebalanceRecommendation && of != nil && own != nil && of.pool == own.pool {
			n++
		}
	}
	return n
}

// movedIn reports whether any record in the node's pool has changed after since.
func (j *judge) movedIn(node *corev1.Node, since time.Time) bool {
	own := j.w.instanceOf(node.Name)
	for name, life := range j.nodes {
		of := j.w.instanceOf(name)
		if len(life.progress) > 0 && life.progress[len(life.progress)-1].After(since) && (own == nil || of == nil || of.pool == own.pool) {
			return true
		}
	}
	return false
}
