package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// nodeLife is what happens to a node that EC2 says something about, or an operator.
type nodeLife struct {
	loss      Loss
	announced time.Time                       // by EC2, for the first time
	rehearsed time.Time                       // by an operator, for the last time
	restored  time.Time                       // when its record went
	recorded  map[interruption.Kind]time.Time // when a record of that kind, of EC2's announcement, was first there
	released  time.Time                       // when a rehearsal had ended, with the node to be terminated
	changed   time.Time                       // when the record's deadline last changed, or is about to
	later     time.Time                       // when that last became a later one, or none
	asked     time.Time                       // when the record first named the replacement that's on its way
	without   time.Time                       // when it last said that none is
	canceled  time.Time
	over      time.Time   // when its drain had ended; zero if another has begun since
	turned    bool        // a recommendation has had its turn
	progress  []time.Time // when its record, or what is on it, last changed
	gone      time.Time
	needs     []need // what its pods needed when there was no room for them
}

// need is what the pods of a node needed at some time, in thousandths of a processor.
type need struct {
	at  time.Time
	cpu int64
}

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

func (j *judge) canceled(node string) { j.life(node).canceled = time.Now() }

// judgeCancel: what an operator cancels is undone, unless there is nothing left to cancel.
func (j *judge) judgeCancel(name string, since time.Duration) {
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, name)
	if node == nil || node.DeletionTimestamp != nil || j.w.disturbed(since-recovery, j.w.since()) || j.hung() {
		return
	}
	rec, has := recordOf(node)
	at, fate := j.w.began.Add(since), j.nodes[name]
	if has && rec.Kind == interruption.SpotInterruption && !rec.Rehearsed() && !rec.Phase.Over() && !fate.recorded[rec.Kind].After(at) {
		j.breaks(takenBack, "node %s: the interruption that was cancelled at %.3f is %s", name, since.Seconds(), summary(rec, has))
	}
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

func (j *judge) nodeGoes(i *instance) {}

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
	if had && !has && life != nil {
		life.restored = time.Now()
		j.judgeTurn(after, was, life)
	}
	if !has {
		return
	}
	if !had && ours && rec.Returns() && j.standsIn(c.Key) { // we may say so ourselves
		if life = j.life(c.Key); life.announced.IsZero() {
			life.announced = time.Now()
		}
	}
	switch {
	case rec.Rehearsed() && life != nil && !life.rehearsed.IsZero():
	case rec.Rehearsed() || life == nil || life.announced.IsZero():
		j.breaks(noReason, "node %s has a record, and nobody has announced anything", c.Key)
		return
	}
	if rec.Rehearsed() && rec.Phase == interruption.Released && life.released.IsZero() {
		life.released = time.Now()
	}
	if life.recorded[rec.Kind].IsZero() && !rec.Rehearsed() {
		life.recorded[rec.Kind] = time.Now()
	}
	if !had || !was.Deadline.Equal(rec.Deadline) || len(was.Hooks) != len(rec.Hooks) { // a hook's deadline follows
		life.changed = time.Now()
	}
	if had && (rec.Deadline.IsZero() || rec.Deadline.After(was.Deadline)) && !was.Deadline.IsZero() {
		life.later = time.Now()
	}
	if onItsWay(rec.Replacement) && (!had || !onItsWay(was.Replacement)) {
		life.asked = time.Now()
	}
	if a := rec.Replacement; a != nil && !onItsWay(a) {
		life.without = time.Now()
	}
	if r, now := was.Replacement, rec.Replacement; ours && had && was.Event == rec.Event && r != nil && r.Name != "" &&
		r.State == provisioner.StateReady && now != nil && provisioner.Pending(now.State) {
		j.breaks(recordsTrue, "node %s: its replacement %s was Ready, and the record is now %s", c.Key, r.Name, summary(rec, has))
	}
	j.judgeDeadline(after, rec, life)
	if ours && had && was.Phase == interruption.Waiting {
		j.judgeReadyFirst(after, rec)
	}
	if life.turned = life.turned || rec.TurnTaken(); !had || was.String() != rec.String() {
		j.moved(c.Key)
		j.judgeRoom(after, was, rec)
	}
	if !rec.Phase.Over() {
		life.over = time.Time{}
	}
	if rec.Phase.Over() && (!had || !was.Phase.Over()) {
		life.over = time.Now()
		j.recordOver(after, rec)
	}
}

// standsIn reports whether the node is the on-demand replacement of a spot node, held for its way back. One that has
// ceased to be it a moment ago still counts, as the leader's watch can be behind.
func (j *judge) standsIn(node string) bool {
	i := j.w.instanceOf(node)
	if i == nil {
		return false
	}
	claim := memapi.Get[custom](j.w.Server, memapi.NodeClaims, i.claim)
	return claim != nil && (claim.GetAnnotations()[karpenter.StandsInAnnotation] != "" || j.unseen(j.stoodIn[i.claim]))
}

// judgeReadyFirst: a node that nobody takes serves until the new one is there that its pods go to, unless it is empty.
func (j *judge) judgeReadyFirst(node *corev1.Node, rec interruption.Record) {
	cordonOnly := !rec.Returns() && slices.Contains(j.w.Scene.Flags, "--rebalance=cordon")
	if rec.Kind != interruption.RebalanceRecommendation || rec.Phase == interruption.Waiting || len(rec.Announcements()) > 1 || cordonOnly {
		return
	}
	serves := func(pod *corev1.Pod) bool {
		life := j.pods[pod.UID]
		return hasToMove(pod) && life != nil && time.Since(life.bound) > justBound+j.behind()
	}
	a := rec.Replacement
	if ready := a != nil && (a.State == provisioner.StateReady || a.Detached); !ready && slices.ContainsFunc(j.w.podsOn(node.Name), serves) {
		j.breaks(noReason, "node %s is cordoned by a recommendation, and there is no new node for its pods", node.Name)
	}
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

// behind is how old the watch cache is that answers now: it stays as it was when the fault began. Once the fault is
// over, each watch catches up in its own time: the Nodes can be new, and the pods still as they were.
func (j *judge) behind() (by time.Duration) {
	now := j.w.since()
	for _, f := range j.w.faulty.spans {
		if f.What == FaultOlder && now < f.to()+caughtUp+j.w.Scene.Rates.Lag {
			by = max(by, f.Behind+now-f.From)
		}
	}
	return by
}

// caughtUp is how long a process may take, beyond the lag of its watches, to know what such a fault has kept from it.
const caughtUp = 2 * time.Second

// justBound is how long a pod might not be seen that a scheduler has bound late.
const justBound = 12 * time.Second

// recordOver holds a record to its word: where it says that all have left, none is there.
func (j *judge) recordOver(node *corev1.Node, rec interruption.Record) {
	if rec.Pods == nil {
		j.breaks(recordsTrue, "node %s is over without a count of its pods", node.Name)
		return
	}
	var stays []string
	for _, pod := range j.w.podsOn(node.Name) {
		life := j.pods[pod.UID]
		fresh := life != nil && time.Since(life.bound) < justBound+j.behind() || j.cameBack(pod)
		fresh = fresh || life == nil && toleratesAll(pod) // a placeholder: it is made again, as its pod is
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

// noticed reports whether EC2 has announced anything about the node by now, or an operator has rehearsed that.
func (j *judge) noticed(node string) bool {
	life := j.nodes[node]
	return life != nil && (!life.announced.IsZero() || !life.rehearsed.IsZero())
}

// stands reports whether a record may be there in the end: of a node that was only to be cordoned, or of one that
// nobody is to terminate, as EC2 has not.
func (j *judge) stands(node *corev1.Node, rec interruption.Record) bool {
	if !mayRelease(node) {
		return false
	}
	flags := j.w.Scene.Flags
	cordonOnly := rec.Kind == interruption.RebalanceRecommendation && slices.Contains(flags, "--rebalance=cordon")
	// An instance that has left its group doesn't go back, and its last pods may stay, unless its drain still waits
	// for what the group launches. Where all of them stay, nobody waits for that until EC2 gives notice.
	if a := rec.Replacement; a != nil && a.Backend == provisioner.ASG && a.Name != "" && slices.ContainsFunc(j.w.podsOn(node.Name), hasToMove) {
		leaves := func(pod *corev1.Pod) bool {
			of := j.w.workloadOf(pod)
			// On a recommendation alone, a pod stays if its PDB never lets any go, even if it could be surged.
			blocked := j.closedUntil(pod).Equal(time.Now()) && (of == nil || !j.surges(of)) ||
				slices.ContainsFunc(j.w.BudgetsOf(pod), neverAllows)
			last := of != nil && (of.Gang || of.Kind == "Job") || pod.Annotations["spot-handler/when"] == "last"
			return hasToMove(pod) && pod.Annotations[doNotDisrupt] == "" && !blocked && !last
		}
		return a.State != provisioner.StateLaunched || rec.Phase.Over() ||
			rec.Phase == interruption.Waiting && !slices.ContainsFunc(j.w.podsOn(node.Name), leaves)
	}
	// What EC2 has taken back does not stand, unless the instance was terminated meanwhile, or a recommendation stands,
	// or a rehearsal that ends with the node.
	detached := rec.Replacement != nil && rec.Replacement.Detached
	if life := j.nodes[node.Name]; j.w.cloud != nil && life != nil && life.loss.Withdrawn > 0 && life.loss.Withdrawn < j.w.since() {
		return rec.Phase.Over() && (detached || rec.Kind != interruption.ScheduledEvent || rec.Rehearsed() && rec.Release)
	}
	// EC2 has given a notice for an instance of a group and not taken it: nobody else does. Nor does anybody without
	// detaching it, but for an autoscaler that makes groups smaller, which is not played.
	scheduled := slices.ContainsFunc(rec.Announcements(), func(a interruption.Announcement) bool {
		return a.Kind == interruption.ScheduledEvent
	})
	leftToEC2 := slices.Contains(flags, "--provisioner=none") || j.w.Scene.Groups.Placeholders ||
		j.w.cloud != nil && (rec.Kind.Certain() || scheduled && !detached)
	return cordonOnly || leftToEC2 && rec.Phase.Over() && j.w.alive(node.Name)
}

// mayReturn is how long an attempt to go back to spot can take: the TTL of the scenes, four times where leaders change
// meanwhile, as what happened before counts as progress for three, and what it takes to begin.
const mayReturn = 17 * time.Minute

// onItsWayBack reports whether the node has begun to go back to spot a while ago: that is tried again and
// again, and can be under way when the round ends.
func onItsWayBack(rec interruption.Record) bool {
	return rec.Returns() && time.Since(rec.Received) < mayReturn
}

// mayWaitOutOfGroup is how long an instance may wait, outside its group, for what the group launches. It counts from
// when the notice was received.
const mayWaitOutOfGroup = 16 * time.Minute

func waitsOutOfGroup(rec interruption.Record) bool {
	a := rec.Replacement
	return a != nil && a.Backend == provisioner.ASG && a.State == provisioner.StateLaunched && time.Since(rec.Received) < mayWaitOutOfGroup
}

// waitsForLong reports whether the node has had a pod with a grace period of a quarter of an hour, and has made
// progress within about that time.
func (j *judge) waitsForLong(node string) bool {
	life, long := j.nodes[node], false
	for _, pod := range j.pods {
		long = long || pod.pod.Spec.NodeName == node && memapi.GraceOf(pod.pod) >= longGrace
	}
	return long && life != nil && len(life.progress) > 0 && time.Since(life.progress[len(life.progress)-1]) < longGrace*time.Second+mayReturn
}

// leavesWithin is how long a surged pod takes to leave: its new pod has to start, and perhaps a machine first.
const leavesWithin = 2 * time.Minute

// stillLeave reports whether the node's pods are leaving one after the other, as their Deployment surges one at a time.
// A node can have 110 pods, and a recommendation has no deadline.
func (j *judge) stillLeave(node string) bool {
	for _, life := range j.pods {
		if of := j.w.workloadOf(life.pod); life.pod.Spec.NodeName == node && of != nil && j.surges(of) &&
			!life.asked.IsZero() && time.Since(life.asked) < leavesWithin && j.w.ours(life.by) {
			return true
		}
	}
	return false
}

// justRestored reports whether the node's record went only just now: its conditions follow a second later.
func (j *judge) justRestored(node string) bool {
	life := j.nodes[node]
	return life != nil && time.Since(life.restored) < recovery
}

func (j *judge) finishNodes() {
	for _, node := range memapi.List[*corev1.Node](j.w.Server, memapi.Nodes) {
		rec, has := recordOf(node)
		if has {
			if !j.stands(node, rec) && !onItsWayBack(rec) && !waitsOutOfGroup(rec) && !j.waitsForLong(node.Name) && !j.stillLeave(node.Name) {
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
		if slices.ContainsFunc(node.Status.Conditions, nodes.OurCondition) && !j.justRestored(node.Name) {
			j.breaks(takenBack, "node %s has the condition %s", node.Name, interruption.ConditionType)
		}
		if node.Annotations[interruption.CancelAnnotation] != "" {
			j.breaks(takenBack, "node %s has the annotation %s", node.Name, interruption.CancelAnnotation)
		}
	}
}
