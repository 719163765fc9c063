package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner/karpenter"
)

// judge holds every change, and what is left in the end, to the invariants.
type judge struct {
	w      *World
	broken []string
	said   map[string]bool

	nodes    map[string]*nodeLife
	pods     map[types.UID]*podLife
	closed   map[string]time.Time // when a budget has last let nobody go
	messages []sentMessage
	repeats  map[string][]time.Time // failed requests by process and what they are
	requests int
	led      string    // the process that has the lease
	ledSince time.Time // and since when
}

// nodeLife is what happens to a node that EC2 says something about.
type nodeLife struct {
	loss      Loss
	announced time.Time                       // by EC2, for the first time
	recorded  map[interruption.Kind]time.Time // when a record of that kind was first there
	changed   time.Time                       // when the record's deadline last changed
	canceled  time.Time
	over      time.Time // when the record says so
	gone      time.Time
}

type sentMessage struct {
	id, node string
	kind     interruption.Kind
	at       time.Time
}

// podLife is what happens to a pod.
type podLife struct {
	pod     *corev1.Pod // as it was last
	bound   time.Time
	refused time.Time // when an eviction was last refused, or not answered
	asked   time.Time // when the first request for its end succeeded, and by whom
	by      string
	grace   int64 // that it was given, in seconds
	whole   bool
	gone    time.Time
	lost    bool // its machine ended under it
	stopped bool // it ended in its own time
	judged  bool
}

func newJudge(w *World) *judge {
	return &judge{
		w:       w,
		said:    map[string]bool{},
		nodes:   map[string]*nodeLife{},
		pods:    map[types.UID]*podLife{},
		repeats: map[string][]time.Time{},
		closed:  map[string]time.Time{},
	}
}

// meet takes in the pods that there are at the beginning.
func (j *judge) meet() {
	for _, pod := range memapi.List[*corev1.Pod](j.w.Server, memapi.Pods) {
		j.pods[pod.UID] = &podLife{pod: pod}
		if pod.Spec.NodeName != "" {
			j.pods[pod.UID].bound = pod.CreationTimestamp.Time
		}
	}
}

// breaks notes that an invariant is broken, once for what it says.
func (j *judge) breaks(invariant, format string, args ...any) {
	text := invariant + ": " + fmt.Sprintf(format, args...)
	if j.said[text] {
		return
	}
	j.said[text] = true
	j.broken = append(j.broken, fmt.Sprintf("%.3f %s", j.w.since().Seconds(), text))
	j.w.note("BROKEN %s", text)
}

// Broken are the invariants that were broken so far, and how.
func (w *World) Broken() (list []string) {
	w.Do(func() { list = slices.Clone(w.judge.broken) })
	return list
}

// The invariants, as they are reported.
const (
	noReason    = "nobody is evicted without a reason"
	graceKept   = "every pod has the grace period that there is time for"
	notOurs     = "nothing is changed that is not ours"
	takenBack   = "all that is ours is taken back"
	oneEach     = "one replacement for each instance"
	notInVain   = "no replacement is kept in vain"
	noticeKept  = "no notice is lost"
	everEnds    = "every interruption ends"
	budgetsKept = "no budget is overridden"
	bounded     = "requests are bounded"
	oneLeads    = "one process drains at a time"
	recordsTrue = "what the record says is so"
)

func (j *judge) life(node string) *nodeLife {
	if j.nodes[node] == nil {
		j.nodes[node] = &nodeLife{recorded: map[interruption.Kind]time.Time{}}
	}
	return j.nodes[node]
}

func (j *judge) announced(l Loss) {
	life := j.life(l.Node)
	if life.loss = l; life.announced.IsZero() {
		life.announced = time.Now()
	}
}

func (j *judge) sent(id, node string, kind interruption.Kind) {
	j.messages = append(j.messages, sentMessage{id, node, kind, time.Now()})
}

func (j *judge) canceled(node string) { j.life(node).canceled = time.Now() }

// judgeCancel: what an operator cancels is undone, unless there is nothing left to cancel.
func (j *judge) judgeCancel(name string, since time.Duration) {
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, name)
	if node == nil || node.DeletionTimestamp != nil || j.w.disturbed(since-recovery, j.w.since()) || j.hung() {
		return
	}
	rec, has := recordOf(node)
	at, fate := j.w.began.Add(since), j.nodes[name]
	if has && rec.Kind == interruption.SpotInterruption && !rec.Phase.Over() && !fate.recorded[rec.Kind].After(at) {
		j.breaks(takenBack, "node %s: the interruption that was cancelled at %.3f is %s", name, since.Seconds(), summary(rec, has))
	}
}

// hung reports whether writes of Nodes hang, or have done so.
func (j *judge) hung() bool {
	return slices.ContainsFunc(j.w.faulty.spans, func(f Fault) bool { return f.What == FaultMarks })
}

// heldUp: the eviction of a pod waits for a webhook.
func (j *judge) heldUp(pod string) {
	if of := memapi.Get[*corev1.Pod](j.w.Server, memapi.Pods, pod); of != nil && j.pods[of.UID] != nil {
		j.pods[of.UID].refused = time.Now()
	}
}

// deletesBlocked reports whether the pod is to be deleted if its eviction is refused to the end.
func (j *judge) deletesBlocked(pod *corev1.Pod) bool {
	policy := pod.Annotations["spot-handler/blocked-pods"]
	return policy == "delete" || policy == "" && slices.Contains(j.w.Scene.Flags, "--blocked-pods=delete")
}

// ended: a machine has ended, and with it what ran there.
func (j *judge) ended(i *instance) {
	for _, pod := range j.w.podsOn(i.node) {
		if life := j.pods[pod.UID]; life != nil && life.gone.IsZero() {
			life.lost, life.gone = true, time.Now()
			j.judgePod(life)
		}
	}
}

// stopped: a pod has ended as its kubelet ends pods.
func (j *judge) stopped(pod *corev1.Pod) {
	if life := j.pods[pod.UID]; life != nil {
		life.stopped = true
	}
}

func (j *judge) nodeGoes(i *instance) {}

func (j *judge) changed(c memapi.Change) {
	ours := j.w.ours(c.By)
	switch c.Kind {
	case memapi.Nodes:
		j.nodeChanged(c, ours)
	case memapi.Pods:
		j.podChanged(c, ours)
	case memapi.NodeClaims:
		j.claimChanged(c, ours)
	case memapi.Leases:
		if ours && c.By != j.led {
			j.led, j.ledSince = c.By, time.Now()
		}
	case memapi.Events, memapi.ConfigMaps:
		if ours && c.Kind == memapi.ConfigMaps && c.Key != Namespace+"/spot-handler-offerings" {
			j.breaks(notOurs, "%s changes ConfigMap %s", c.By, c.Key)
		}
	case memapi.Budgets: // an eviction charges them
		j.budgetChanged(c)
	default:
		if ours {
			j.breaks(notOurs, "%s changes %s %s", c.By, c.Kind.Plural, c.Key)
		}
	}
}

// without is a Node without what is ours to change.
func without(node *corev1.Node) *corev1.Node {
	c := node.DeepCopy()
	c.ResourceVersion, c.Spec.Unschedulable = "", false
	ourKeys := func(m map[string]string) map[string]string {
		maps.DeleteFunc(m, func(k, v string) bool {
			excluded := k == interruption.ExcludeFromLoadBalancers && v == interruption.ExcludeFromLoadBalancersValue
			return strings.HasPrefix(k, "spot-handler/") || excluded || k == doNotDisrupt
		})
		if len(m) == 0 {
			return nil
		}
		return m
	}
	c.Annotations, c.Labels = ourKeys(c.Annotations), ourKeys(c.Labels)
	c.Spec.Taints = slices.DeleteFunc(c.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == interruption.TaintKey || t.Key == corev1.TaintNodeOutOfService
	})
	if len(c.Spec.Taints) == 0 {
		c.Spec.Taints = nil
	}
	c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, nodes.OurCondition)
	return c
}

func (j *judge) nodeChanged(c memapi.Change, ours bool) {
	before, _ := c.Before.(*corev1.Node)
	after, _ := c.After.(*corev1.Node)
	life := j.nodes[c.Key]
	if after == nil {
		if ours {
			j.breaks(notOurs, "%s removes node %s", c.By, c.Key)
		}
		if life != nil {
			life.gone = time.Now()
		}
		return
	}
	rec, has := recordOf(after)
	if before == nil {
		return
	}
	was, had := recordOf(before)
	if ours {
		j.w.note("%s: node %s: cordon %t, taints %s, record %s", c.By, c.Key, after.Spec.Unschedulable, taints(after), summary(rec, has))
		if a, b := without(before), without(after); !equality.Semantic.DeepEqual(a, b) {
			j.breaks(notOurs, "%s changes node %s in what is not ours", c.By, c.Key)
		}
		if node := j.sceneNode(c.Key); node != nil && node.Cordoned && !after.Spec.Unschedulable {
			j.breaks(notOurs, "%s uncordons node %s, which an operator has cordoned", c.By, c.Key)
		}
	}
	if !has {
		return
	}
	if !had && ours && rec.Returns() && j.standsIn(c.Key) { // we may say so ourselves
		if life = j.life(c.Key); life.announced.IsZero() {
			life.announced = time.Now()
		}
	}
	if life == nil || life.announced.IsZero() {
		j.breaks(noReason, "node %s has a record, and nobody has announced anything", c.Key)
		return
	}
	if life.recorded[rec.Kind].IsZero() {
		life.recorded[rec.Kind] = time.Now()
	}
	if !had || !was.Deadline.Equal(rec.Deadline) {
		life.changed = time.Now()
	}
	if rec.Phase.Over() && (!had || !was.Phase.Over()) {
		life.over = time.Now()
		j.recordOver(after, rec)
	}
}

// standsIn reports whether the node is the on-demand replacement of a spot node, held for its way back.
func (j *judge) standsIn(node string) bool {
	for _, claim := range memapi.List[custom](j.w.Server, memapi.NodeClaims) {
		for _, i := range j.w.instances {
			if i.node == node && i.claim == claim.GetName() {
				return claim.GetAnnotations()[karpenter.StandsInAnnotation] != ""
			}
		}
	}
	return false
}

func summary(rec interruption.Record, has bool) string {
	if !has {
		return "none"
	}
	text := fmt.Sprintf("%s %s", rec.Kind, rec.Phase)
	if rec.Replacement != nil {
		text += fmt.Sprintf(", replacement %s %s", rec.Replacement.Name, rec.Replacement.State)
	}
	if rec.Pods != nil {
		text += fmt.Sprintf(", pods %+v", *rec.Pods)
	}
	return text
}

func taints(node *corev1.Node) string {
	var list []string
	for _, t := range node.Spec.Taints {
		list = append(list, t.Key)
	}
	return strings.Join(list, ",")
}

func (j *judge) sceneNode(name string) *Node {
	for i := range j.w.Scene.Nodes {
		if j.w.Scene.Nodes[i].Name == name {
			return &j.w.Scene.Nodes[i]
		}
	}
	return nil
}

// What the daemon and Karpenter call things on pods and Nodes, as users see it.
const (
	doNotDisrupt = "karpenter.sh/do-not-disrupt"
	surgedLabel  = "pod-template-hash.spot-handler/surged"
)

func isSurged(pod *corev1.Pod) bool { return pod.Labels[surgedLabel] != "" }

// hasToMove reports whether the pod has to leave an interrupted node.
func hasToMove(pod *corev1.Pod) bool { return !isDaemon(pod) && !memapi.Finished(pod) }

// recordOver holds a record to its word: where it says that all have left, none is there.
func (j *judge) recordOver(node *corev1.Node, rec interruption.Record) {
	if rec.Pods == nil {
		j.breaks(recordsTrue, "node %s is over without a count of its pods", node.Name)
		return
	}
	var stays []string
	for _, pod := range j.w.podsOn(node.Name) {
		life := j.pods[pod.UID]
		fresh := life != nil && time.Since(life.bound) < 12*time.Second // a scheduler may be late
		if hasToMove(pod) && pod.DeletionTimestamp == nil && !fresh {
			stays = append(stays, pod.Name)
		}
	}
	left := rec.Pods.Left
	if j.w.alive(node.Name) && rec.Phase == interruption.Drained && len(stays) > 0 && rec.Deadline.After(time.Now()) {
		j.breaks(recordsTrue, "node %s is drained, and %v are there", node.Name, stays)
	}
	if sum := rec.Pods.Graceful + rec.Pods.Truncated + rec.Pods.Forced + left; sum != rec.Pods.Total {
		j.breaks(recordsTrue, "node %s: %d pods in all, and %d by what became of them", node.Name, rec.Pods.Total, sum)
	}
}

// noticed reports whether EC2 has announced anything about the node by now.
func (j *judge) noticed(node string) bool {
	life := j.nodes[node]
	return life != nil && !life.announced.IsZero()
}

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
			j.judgePod(life)
		}
		return
	}
	if after.Spec.NodeName != "" && life.bound.IsZero() {
		life.bound = time.Now()
	}
	ends := after.DeletionTimestamp != nil && (before == nil || before.DeletionTimestamp == nil)
	if ends {
		life.asked, life.by, life.grace = time.Now(), c.By, *after.DeletionGracePeriodSeconds
		life.whole = life.grace >= memapi.GraceOf(after)
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
	if ends {
		j.w.note("%s: ends pod %s on %s with %d of %d s", c.By, c.Key, after.Spec.NodeName, life.grace, memapi.GraceOf(after))
		if isDaemon(after) {
			j.breaks(noReason, "%s ends pod %s of a DaemonSet", c.By, c.Key)
		}
		j.judgeEnd(life)
		j.judgeLeader(c)
	}
}

// judgeLeader holds what drains to the process that has the lease. What it had sent before it lost that may
// arrive a little later.
func (j *judge) judgeLeader(c memapi.Change) {
	now := j.w.since()
	if c.By != j.led && time.Since(j.ledSince) > 5*time.Second && !j.w.disturbed(now-30*time.Second, now) {
		j.breaks(oneLeads, "%s ends pod %s, and %s has had the lease since %s", c.By, c.Key, j.led, j.ledSince.Sub(j.w.began))
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

// judgeEnd holds the grace period that a pod is given to what the node's record leaves.
func (j *judge) judgeEnd(life *podLife) {
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, life.pod.Spec.NodeName)
	if node == nil || life.whole {
		return
	}
	rec, has := recordOf(node)
	fate := j.nodes[node.Name]
	if !has || fate == nil || time.Since(fate.changed) < 5*time.Second {
		return
	}
	if rec.Deadline.IsZero() {
		j.breaks(graceKept, "pod %s is ended with %d of %d s, and there is no deadline",
			memapi.Key(life.pod), life.grace, memapi.GraceOf(life.pod))
		return
	}
	left := time.Until(rec.Deadline) - margin - j.slack()
	if given := time.Duration(life.grace) * time.Second; given < left {
		j.breaks(graceKept, "pod %s is ended with %d of %d s, and %s are left",
			memapi.Key(life.pod), life.grace, memapi.GraceOf(life.pod), time.Until(rec.Deadline))
	}
}

// judgePod looks back on the life of a pod that has ended: where there was time, it has had its whole grace period.
func (j *judge) judgePod(life *podLife) {
	pod := life.pod
	fate := j.nodes[pod.Spec.NodeName]
	if fate == nil || life.judged || !hasToMove(pod) || pod.Spec.NodeName == "" {
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

// budgetChanged notes until when a budget let nobody go: then no eviction need be asked for.
func (j *judge) budgetChanged(c memapi.Change) {
	before, _ := c.Before.(*policyv1.PodDisruptionBudget)
	after, _ := c.After.(*policyv1.PodDisruptionBudget)
	if before != nil && before.Status.DisruptionsAllowed == 0 || after != nil && after.Status.DisruptionsAllowed == 0 {
		j.closed[c.Key] = time.Now()
	}
}

// closedUntil is when a budget of the pod has last let nobody go; zero if it always has let some.
func (j *judge) closedUntil(pod *corev1.Pod) (until time.Time) {
	for _, budget := range j.w.BudgetsOf(pod) {
		if budget.Status.DisruptionsAllowed == 0 {
			return time.Now()
		}
		until = interruption.Later(until, j.closed[memapi.Key(budget)])
	}
	return until
}

// judgeTime looks whether there was time enough.
func (j *judge) judgeTime(life *podLife, fate *nodeLife) {
	pod, w := life.pod, j.w
	recorded := fate.recorded[interruption.SpotInterruption]
	if recorded.IsZero() || fate.loss.Lead == 0 || !fate.canceled.IsZero() {
		return // nobody knew in time; recommendations have no deadline
	}
	if i := w.instanceOf(pod.Spec.NodeName); i != nil && !i.taken.IsZero() && i.taken.Before(w.began.Add(fate.loss.At+fate.loss.Lead-margin)) {
		return // EC2 was early
	}
	deadline := w.began.Add(fate.loss.At + fate.loss.Lead)
	if fate.loss.Renews {
		deadline = deadline.Add(-2 * time.Second)
	}
	latest := deadline.Add(-margin - time.Duration(memapi.GraceOf(pod))*time.Second)
	able := interruption.Later(recorded, life.bound)
	from, to := able.Sub(w.began), latest.Sub(w.began)
	held := latest.Sub(interruption.Later(life.refused, j.closedUntil(pod))) < recovery
	switch {
	case able.Add(recovery).After(latest): // there was no time to lose
		j.judgeLate(life, able, held)
		return
	case w.disturbed(from, to+2*time.Second):
		return
	case held && j.wavesFit(pod, able, latest):
	case held && (!j.deletesBlocked(pod) || life.gone.Sub(latest) < 2*recovery):
		return // nobody let it go
	case held && !life.asked.IsZero():
		return // it was deleted past what held it
	}
	what := "was never asked to end"
	if !life.asked.IsZero() {
		what = fmt.Sprintf("was asked to end at %.3f with %d s by %s", life.asked.Sub(w.began).Seconds(), life.grace, life.by)
		if life.asked.Sub(latest) < j.slack() {
			return
		}
	}
	j.breaks(graceKept, "pod %s on %s, grace %d s, could leave from %.3f to %.3f, and %s",
		memapi.Key(pod), pod.Spec.NodeName, memapi.GraceOf(pod), from.Seconds(), to.Seconds(), what)
}

// judgeLate: where it was too late for a whole grace period, the pod is asked to end as soon as can be.
func (j *judge) judgeLate(life *podLife, able time.Time, held bool) {
	// One that came with the cordon, or in the 10 s after it, may be put back by its controller again and again.
	comes := able.Sub(life.pod.CreationTimestamp.Time) < 12*time.Second
	disturbed := j.w.disturbed(able.Sub(j.w.began), life.gone.Sub(j.w.began))
	if !life.asked.IsZero() || held || comes || life.gone.Sub(able) < recovery || disturbed {
		return
	}
	j.breaks(graceKept, "pod %s on %s could leave from %.3f to %.3f, if not with its whole grace period, and was never asked to end",
		memapi.Key(life.pod), life.pod.Spec.NodeName, able.Sub(j.w.began).Seconds(), life.gone.Sub(j.w.began).Seconds())
}

func (j *judge) claimChanged(c memapi.Change, ours bool) {
	after, _ := c.After.(custom)
	before, _ := c.Before.(custom)
	if !ours {
		return
	}
	if after == nil || after.GetDeletionTimestamp() != nil {
		j.w.note("%s: deletes NodeClaim %s", c.By, c.Key)
		j.claimDeleted(c, before)
		return
	}
	if before != nil {
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
	for _, other := range memapi.List[custom](j.w.Server, memapi.NodeClaims) {
		stands := other.GetDeletionTimestamp() == nil && other.GetLabels()[karpenter.SettledLabel] == ""
		if other.GetName() != c.Key && other.GetLabels()[karpenter.ReplacesLabel] == replaces && stands {
			j.breaks(oneEach, "%s makes NodeClaim %s for %s, and there is %s", c.By, c.Key, replaces, other.GetName())
		}
	}
}

// claimDeleted: we delete claims that we have made, and those of nodes whose interruption is over.
func (j *judge) claimDeleted(c memapi.Change, before custom) {
	if before == nil || before.GetDeletionTimestamp() != nil || before.GetLabels()[karpenter.ReplacesLabel] != "" {
		return
	}
	for _, i := range j.w.instances {
		if i.claim != c.Key {
			continue
		}
		if !j.noticed(i.node) {
			j.breaks(notOurs, "%s deletes NodeClaim %s of %s, about which nobody has announced anything", c.By, c.Key, i.node)
		}
	}
}

// manyTimes is how often the same request may fail within a while.
const (
	manyTimes = 40
	aWhile    = 10 * time.Second
)

func (w *World) requested(q memapi.Request) { w.judge.requested(q) }

func (j *judge) requested(q memapi.Request) {
	j.requests++
	if q.Code >= 400 || q.Lost {
		j.w.note("%s: %s: %d %s lost=%t", q.By, q.What(), q.Code, q.Error, q.Lost)
	}
	if q.Kind == memapi.Pods && q.Subresource == "eviction" && q.Code >= 400 {
		if pod, ok := q.Before.(*corev1.Pod); ok && j.pods[pod.UID] != nil {
			j.pods[pod.UID].refused = time.Now()
		}
	}
	if q.Kind == memapi.Pods && q.Verb == "delete" && q.Code < 400 {
		j.judgeDeletion(q)
	}
	if q.Kind != nil && q.Verb != "get" && q.Verb != "list" && q.Verb != "watch" {
		what := q.By + " " + q.What()
		now := time.Now()
		recent := slices.DeleteFunc(append(j.repeats[what], now), func(at time.Time) bool { return now.Sub(at) > aWhile })
		j.repeats[what] = recent
		if len(recent) > manyTimes {
			j.breaks(bounded, "%s: more than %d times in %s", what, manyTimes, aWhile)
		}
	}
}

// judgeDeletion: a pod is deleted past a budget only if that was asked for, if the budget was charged for it, or
// if its ReplicaSet has no more use for it.
func (j *judge) judgeDeletion(q memapi.Request) {
	pod, ok := q.Before.(*corev1.Pod)
	if !ok || !j.w.ours(q.By) || pod.DeletionTimestamp != nil || !memapi.Ready(pod) || isSurged(pod) {
		return
	}
	asked := j.deletesBlocked(pod)
	for _, budget := range j.w.BudgetsOf(pod) {
		if _, granted := budget.Status.DisruptedPods[pod.Name]; !granted && !asked && budget.Status.DisruptionsAllowed <= 0 {
			j.breaks(budgetsKept, "%s deletes pod %s, and its budget allows none", q.By, memapi.Key(pod))
		}
	}
}

// Settled reports whether nothing more is under way.
func (w *World) Settled() (settled bool) {
	for _, m := range w.Queue.Messages() {
		if m.State != sqsemu.Deleted {
			return false
		}
	}
	w.Do(func() {
		settled = len(w.judge.unsettled()) == 0
	})
	return settled
}

// unsettled is what has yet to end.
func (j *judge) unsettled() (list []string) {
	w := j.w
	for _, l := range w.Scene.Losses {
		last := l.At + l.Lead + max(0, -l.Early)
		if w.since() < max(last, l.Cancel) {
			list = append(list, "EC2 has yet to act on "+l.Node)
		}
	}
	for _, f := range w.Scene.Faults {
		if f.For < longest && w.since() < f.to()+recovery {
			list = append(list, "a fault is yet to come")
		}
	}
	for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
		rec, has := recordOf(node)
		switch {
		case !has && slices.ContainsFunc(node.Status.Conditions, nodes.OurCondition):
			list = append(list, "node "+node.Name+" still has a condition of ours")
			continue
		case !has, j.stands(node, rec):
			continue
		}
		list = append(list, fmt.Sprintf("node %s: %s", node.Name, node.Annotations[interruption.Annotation]))
	}
	for _, claim := range memapi.List[custom](w.Server, memapi.NodeClaims) {
		if claim.GetDeletionTimestamp() != nil {
			list = append(list, "NodeClaim "+claim.GetName()+" is going")
		}
		if claim.GetLabels()[karpenter.ReplacesLabel] != "" && claim.GetLabels()[karpenter.SettledLabel] == "" {
			list = append(list, fmt.Sprintf("NodeClaim %s is not settled", claim.GetName()))
		}
	}
	return list
}

// Finish holds what is left to the invariants.
func (w *World) Finish() {
	messages := w.Queue.Messages()
	w.Do(func() {
		j := w.judge
		j.finishNotices(messages)
		j.finishNodes()
		j.finishPods()
		j.finishClaims()
	})
}

func (j *judge) finishNotices(messages []sqsemu.Message) {
	ignored := slices.Contains(j.w.Scene.Flags, "--rebalance=ignore") || slices.Contains(j.w.Scene.Flags, "--provisioner=none")
	for _, m := range messages {
		at := slices.IndexFunc(j.messages, func(s sentMessage) bool { return s.id == m.ID })
		if at < 0 {
			continue
		}
		sent := j.messages[at]
		life := j.life(sent.node)
		gone := !life.gone.IsZero()
		if m.State != sqsemu.Deleted {
			if !gone {
				j.breaks(noticeKept, "the %s of %s is still in the queue", sent.kind, sent.node)
			}
			continue
		}
		if gone && !life.gone.After(m.DeletedAt) || sent.kind == interruption.RebalanceRecommendation && ignored {
			continue
		}
		recorded := slices.ContainsFunc(slices.Collect(maps.Keys(life.recorded)), func(kind interruption.Kind) bool {
			return (kind == sent.kind || kind.Stronger(sent.kind)) && !life.recorded[kind].After(m.DeletedAt)
		})
		stale := m.DeletedAt.Sub(sent.at) > 3*time.Minute || sent.at.Sub(j.w.began.Add(life.loss.At)) > 4*time.Minute
		if !recorded && !stale {
			j.breaks(noticeKept, "the %s of %s was deleted at %.3f, and was never recorded",
				sent.kind, sent.node, m.DeletedAt.Sub(j.w.began).Seconds())
		}
	}
}

// stands reports whether a record may be there in the end: of a node that was only to be cordoned, or of one that
// nobody is to terminate, as EC2 has not.
func (j *judge) stands(node *corev1.Node, rec interruption.Record) bool {
	flags := j.w.Scene.Flags
	cordonOnly := rec.Kind == interruption.RebalanceRecommendation && slices.Contains(flags, "--rebalance=cordon")
	return cordonOnly || slices.Contains(flags, "--provisioner=none") && rec.Phase.Over() && j.w.alive(node.Name)
}

// mayReturn is how long an attempt to go back to spot can take: the TTL of the scenes, twice.
const mayReturn = 8 * time.Minute

// onItsWayBack reports whether the node has begun to go back to spot a while ago: that is tried again and
// again, and can be under way when the round ends.
func onItsWayBack(rec interruption.Record) bool {
	return rec.Returns() && time.Since(rec.Received) < mayReturn
}

func (j *judge) finishNodes() {
	for _, node := range memapi.List[*corev1.Node](j.w.Server, memapi.Nodes) {
		rec, has := recordOf(node)
		if has {
			if !j.stands(node, rec) && !onItsWayBack(rec) {
				j.breaks(everEnds, "node %s is in phase %s: %s", node.Name, rec.Phase, node.Annotations[interruption.Annotation])
			}
			continue
		}
		if text := node.Annotations[interruption.Annotation]; text != "" {
			j.breaks(recordsTrue, "node %s has a record that cannot be read: %s", node.Name, text)
		}
		for _, t := range node.Spec.Taints {
			if t.Key == interruption.TaintKey || t.Key == corev1.TaintNodeOutOfService {
				j.breaks(takenBack, "node %s has the taint %s", node.Name, t.Key)
			}
		}
		scene := j.sceneNode(node.Name)
		if node.Spec.Unschedulable && (scene == nil || !scene.Cordoned) {
			j.breaks(takenBack, "node %s is cordoned", node.Name)
		}
		if _, set := node.Labels[interruption.ExcludeFromLoadBalancers]; set {
			j.breaks(takenBack, "node %s is out of its load balancers", node.Name)
		}
		if slices.ContainsFunc(node.Status.Conditions, nodes.OurCondition) {
			j.breaks(takenBack, "node %s has the condition %s", node.Name, interruption.ConditionType)
		}
		if node.Annotations[interruption.CancelAnnotation] != "" {
			j.breaks(takenBack, "node %s has the annotation %s", node.Name, interruption.CancelAnnotation)
		}
	}
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

// mayBoot is how long a replacement can take to become Ready before it is taken back: 15 minutes from
// its launch, and the TTL of the scenes.
const mayBoot = 17 * time.Minute

func (j *judge) finishClaims() {
	for _, claim := range memapi.List[custom](j.w.Server, memapi.NodeClaims) {
		replaces := claim.GetLabels()[karpenter.ReplacesLabel]
		if replaces == "" || claim.GetDeletionTimestamp() != nil {
			continue
		}
		used := slices.ContainsFunc(j.w.podsOn(claim.GetName()), hasToMove)
		consolidates := j.w.Scene.Karpenter.Consolidates > 0 && claim.GetLabels()[karpenter.SettledLabel] != "" && j.initialized(claim)
		coming := !j.initialized(claim) && time.Since(claim.GetCreationTimestamp().Time) < mayBoot || j.takesBack(claim)
		if !used && !consolidates && !coming {
			j.breaks(notInVain, "NodeClaim %s for %s has no pod, labels %v, annotations %v",
				claim.GetName(), replaces, claim.GetLabels(), claim.GetAnnotations())
		}
	}
}

// takesBack reports whether the claim is for a node that is on its way back.
func (j *judge) takesBack(claim custom) bool {
	for _, node := range memapi.List[*corev1.Node](j.w.Server, memapi.Nodes) {
		if rec, has := recordOf(node); has && onItsWayBack(rec) && rec.Replacement != nil && rec.Replacement.Name == claim.GetName() {
			return true
		}
	}
	return false
}

func (j *judge) initialized(claim custom) bool {
	list, _, _ := unstructuredSlice(claim, "status", "conditions")
	return slices.ContainsFunc(list, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == "Initialized"
	})
}
