package sim

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"spot-handler/e2e/sim/memapi"
)

// podLife is what happens to a pod.
type podLife struct {
	pod     *corev1.Pod // as it was last
	bound   time.Time
	ready   time.Time // when it was first
	surged  time.Time // when its ReplicaSet had to let it go
	refused time.Time // when an eviction was last refused, or held up by a webhook
	asked   time.Time // when the first request for its end succeeded, and by whom
	by      string
	grace   int64 // that it was given, in seconds
	whole   bool
	gone    time.Time
	lost    bool // its machine ended under it
	stopped bool // it ended in its own time
	judged  bool
}

// hung reports whether writes of Nodes hang, or have done so.
func (j *judge) hung() bool {
	return slices.ContainsFunc(j.w.faulty.spans, func(f Fault) bool { return f.What == FaultMarks })
}

// webhookHolds reports whether a webhook holds up evictions at this time.
func (j *judge) webhookHolds() bool {
	for _, f := range j.w.faulty.under {
		if f.What == FaultAdmit && (f.Takes >= holdsUp || f.Fails) {
			return true
		}
	}
	return j.w.Scene.Webhook >= holdsUp
}

// heldUp: the eviction of a pod waits for a webhook, and so do those of the others under its budget.
func (j *judge) heldUp(pod string) {
	of := memapi.Get[*corev1.Pod](j.w.Server, memapi.Pods, pod)
	if of == nil {
		return
	}
	shares := len(j.w.BudgetsOf(of)) > 0
	for uid, life := range j.pods {
		if uid == of.UID || shares && life.pod.Labels[appLabel] == of.Labels[appLabel] {
			life.refused = time.Now()
		}
	}
}

// allHeldUp changes the number of evictions that wait for a webhook. Once manyWait are waiting, others may find no place.
func (j *judge) allHeldUp(more int) {
	if j.waiting >= manyWait || j.waiting+more >= manyWait {
		j.crowded = time.Now()
	}
	j.waiting += more
}

// manyWait is about half of the evictions that can be under way at once.
const manyWait = 16

// deletesBlocked reports whether the pod is to be deleted if its eviction is refused to the end.
func (j *judge) deletesBlocked(pod *corev1.Pod) bool {
	policy := pod.Annotations["spot-handler/blocked-pods"]
	return policy == "delete" || policy == "" && slices.Contains(j.w.Scene.Flags, "--blocked-pods=delete")
}

// stopped: a pod has ended as its kubelet ends pods.
func (j *judge) stopped(pod *corev1.Pod) {
	if life := j.pods[pod.UID]; life != nil {
		life.stopped = true
	}
}

// What the daemon and Karpenter call things on pods and Nodes, as users see it.
const (
	doNotDisrupt = "karpenter.sh/do-not-disrupt"
	surgedLabel  = "pod-template-hash.spot-handler/surged"
)

func isSurged(pod *corev1.Pod) bool { return pod.Labels[surgedLabel] != "" }

// hasToMove reports whether the pod has to leave an interrupted node.
func hasToMove(pod *corev1.Pod) bool { return !isDaemon(pod) && !memapi.Finished(pod) }

func (j *judge) podChanged(c memapi.Change, ours bool) {
	before, _ := c.Before.(*corev1.Pod)
	after, _ := c.After.(*corev1.Pod)
	pod := after
	if after == nil {
		pod = before
	}
	life := j.pods[pod.UID]
	if life == nil {
		life = &podLife{}
		j.pods[pod.UID] = life
	}
	life.pod = pod
	if after == nil {
		if ours && pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" && memapi.GraceOf(pod) > 0 {
			j.breaks(graceKept, "%s removes pod %s without any grace", c.By, c.Key)
		}
		if life.gone.IsZero() {
			life.gone = time.Now()
			j.moved(pod.Spec.NodeName)
			j.judgePod(life)
		}
		return
	}
	if after.Spec.NodeName != "" && life.bound.IsZero() {
		life.bound = time.Now()
	}
	if memapi.Ready(after) && life.ready.IsZero() {
		life.ready = time.Now()
	}
	if isSurged(after) && life.surged.IsZero() {
		life.surged = time.Now()
	}
	ends := after.DeletionTimestamp != nil && (before == nil || before.DeletionTimestamp == nil)
	if ends {
		life.asked, life.by, life.grace = time.Now(), c.By, *after.DeletionGracePeriodSeconds
		life.whole = life.grace >= memapi.GraceOf(after)
		j.moved(after.Spec.NodeName)
	}
	if ours && before == nil {
		j.breaks(notOurs, "%s makes pod %s", c.By, c.Key)
	}
	if !ours || before == nil {
		return
	}
	a, b := podWithout(before), podWithout(after)
	if !equality.Semantic.DeepEqual(a, b) {
		j.breaks(notOurs, "%s changes pod %s in what is not ours", c.By, c.Key)
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		j.w.note("DIFF\n%s\n%s", x, y)
	}
	if after.Spec.NodeName == "" {
		j.breaks(noReason, "%s changes pod %s, which has no node", c.By, c.Key)
		return
	}
	if !j.noticed(after.Spec.NodeName) {
		j.breaks(noReason, "%s changes pod %s, and nobody has announced anything about %s", c.By, c.Key, after.Spec.NodeName)
	}
	if life := j.nodes[after.Spec.NodeName]; ends && life != nil && life.announced.IsZero() {
		j.judgeRehearsed(c, after, life)
	}
	if ends {
		j.w.note("%s: ends pod %s on %s with %d of %d s", c.By, c.Key, after.Spec.NodeName, life.grace, memapi.GraceOf(after))
		if isDaemon(after) {
			j.breaks(noReason, "%s ends pod %s of a DaemonSet", c.By, c.Key)
		}
		j.judgeEnd(life)
		j.judgeLeader(c)
	}
}

func podWithout(pod *corev1.Pod) *corev1.Pod {
	c := pod.DeepCopy()
	c.ResourceVersion, c.DeletionTimestamp, c.DeletionGracePeriodSeconds = "", nil, nil
	for _, m := range []map[string]string{c.Labels, c.Annotations} {
		maps.DeleteFunc(m, func(k, _ string) bool {
			return strings.HasPrefix(k, "spot-handler/") || k == surgedLabel || k == hashLabel
		})
	}
	if len(c.Annotations) == 0 {
		c.Annotations = nil
	}
	c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(t corev1.PodCondition) bool { return t.Type == corev1.DisruptionTarget })
	return c
}

// margin is that of the drain, by default.
const margin = 10 * time.Second

// slack is how late or short something may be for which there was time.
func (j *judge) slack() time.Duration {
	if j.w.Scene.Rates == (Rates{}) {
		return 2 * time.Second
	}
	return 8 * time.Second
}

// onTheWay is the longest time from a decision to its effect: an admission webhook can delay a request, and a watch can
// lag.
func (j *judge) onTheWay() time.Duration {
	admit := j.w.Scene.Webhook
	for _, f := range j.w.Scene.Faults {
		if f.What == FaultAdmit {
			admit = max(admit, f.Takes)
		}
	}
	return 5*time.Second + admit + j.w.Scene.Rates.Lag
}

// unseen reports whether a change of that time might not have been seen yet: it is on its way, or was when a fault
// began that has not been over for long.
func (j *judge) unseen(at time.Time) bool {
	from, now, takes := at.Sub(j.w.began), j.w.since(), j.onTheWay()
	return time.Since(at) < takes || slices.ContainsFunc(j.w.faulty.spans, func(f Fault) bool {
		return f.excuses() && f.From < from+takes && now < f.to()+takes
	})
}

// judgeEnd holds the grace period that a pod is given to what the node's record leaves.
func (j *judge) judgeEnd(life *podLife) {
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, life.pod.Spec.NodeName)
	if node == nil {
		return
	}
	j.judgeBack(life, node)
	rec, has := recordOf(node)
	fate := j.nodes[node.Name]
	if has {
		j.judgeBefore(life.pod, rec)
		j.judgeSurge(life, rec)
	}
	if life.whole {
		return
	}
	if !has || fate == nil || j.unseen(fate.changed) {
		return
	}
	deadline := j.deadlineOf(node.Name, rec)
	if deadline.IsZero() {
		j.breaks(graceKept, "pod %s is ended with %d of %d s, and there is no deadline",
			memapi.Key(life.pod), life.grace, memapi.GraceOf(life.pod))
		return
	}
	left := time.Until(deadline) - margin - j.slack()
	if given := time.Duration(life.grace) * time.Second; given < left {
		j.breaks(graceKept, "pod %s is ended with %d of %d s, and %s are left",
			memapi.Key(life.pod), life.grace, memapi.GraceOf(life.pod), time.Until(deadline))
	}
}

// judgePod looks back on the life of a pod that has ended: where there was time, it has had its whole grace period.
func (j *judge) judgePod(life *podLife) {
	pod := life.pod
	fate := j.nodes[pod.Spec.NodeName]
	if fate == nil || life.judged || !hasToMove(pod) || pod.Spec.NodeName == "" || j.cameBack(pod) {
		return
	}
	life.judged = true
	switch {
	case life.whole && !life.asked.IsZero() && (life.stopped || j.w.ours(life.by) || life.by == byController):
		return // its owner or we have asked for its end, and left it all its time
	case !life.asked.IsZero() && !j.w.ours(life.by) && life.by != byKarpenter:
		return // others have ended it
	}
	j.judgeTime(life, fate)
}

func (j *judge) finishPods() {
	for _, pod := range memapi.List[*corev1.Pod](j.w.Server, memapi.Pods) {
		node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, pod.Spec.NodeName)
		if !isSurged(pod) || pod.DeletionTimestamp != nil || node == nil {
			continue
		}
		if _, has := recordOf(node); !has {
			j.breaks(takenBack, "pod %s is surged, and its node %s is not interrupted", memapi.Key(pod), node.Name)
		}
	}
}
