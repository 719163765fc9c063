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

// ScaleIn is a group that gets smaller by the instance of a node, as by a scaling policy: nobody has drained the node
// before.
type ScaleIn struct {
	Node string
	At   time.Duration // from the beginning of the round
}

var hooksWait = []time.Duration{45 * time.Second, 90 * time.Second, 2 * time.Minute, 4 * time.Minute}

func (s *Scene) drawHooks(d Draw) {
	if !s.Groups.Manage || s.Intake == IntakeIMDS || !d.Chance(0.5, "hooks") { // of hooks only the queue knows
		return
	}
	s.Groups.Hook = Pick(d, hooksWait, "hook waits")
	s.Groups.Launches = d.Chance(0.4, "launch hooks")
	if until := Pick(d, []string{"", "3m", "10m"}, "heartbeats"); until != "" {
		s.Flags = append(s.Flags, "--heartbeat-until="+until)
	}
	for i := range 1 + d.Int(2, "shrinks") {
		name := fmt.Sprintf("shrink-%d", i)
		node := Pick(d, s.Nodes, name, "node").Name
		if d.Chance(0.4, name, "is lost") {
			node = Pick(d, s.Losses, name, "lost").Node
		}
		s.ScaleIns = append(s.ScaleIns, ScaleIn{Node: node, At: d.Between(15*time.Second, 150*time.Second, name, "at")})
	}
}

func (w *World) planScaleIns() {
	for _, s := range w.Scene.ScaleIns {
		id := instanceID(s.Node)
		w.at(s.At, "shrink "+id, func() {
			if i, _ := w.cloud.Instance(id); i.Lifecycle == asgemu.InService {
				w.note("group %s: gets smaller by %s", i.Group, s.Node)
				w.cloud.Shrink(id)
			}
		})
	}
}

// hookLife is a group that waits for an instance.
type hookLife struct {
	asgemu.Wait
	node string
	sent time.Time // when the first message about it was in the queue; zero: none was
}

// announceHook has EventBridge put into the queue that a group waits.
func (w *World) announceHook(wait asgemu.Wait) {
	if wait.Transition == asgemu.Launching {
		w.announceLaunch(wait)
		return
	}
	i := w.instances[wait.Instance]
	if i == nil {
		return
	}
	life := w.judge.life(i.node)
	if life.announced.IsZero() {
		life.announced = time.Now()
	}
	h := &hookLife{Wait: wait, node: i.node}
	w.judge.hooks[i.id] = h
	w.note("group %s: waits for %s (%s) until %.3f", wait.Group, i.node, i.id, wait.Until.Sub(w.began).Seconds())
	w.after(hookLook, "look at hook of "+i.id, func() { w.judge.lookAtHook(h) })

	d, copies := w.draw(), 1
	delay := d.Between(100*time.Millisecond, 3*time.Second, i.node, "hook's delay")
	switch p := d.Float(i.node, "hook's message"); {
	case p < 0.03: // it is lost
		copies = 0
	case p < 0.13:
		delay = d.Between(10*time.Second, w.Scene.Groups.Hook+20*time.Second, i.node, "hook's message is late")
	case p < 0.33:
		copies = 2
	}
	event := fmt.Sprintf("%08x-%04x-4000-8000-400040004000", w.Scene.Seed&0xffffffff, len(w.judge.hooks))
	for n := range copies {
		w.after(delay+time.Duration(n)*5*time.Second, fmt.Sprintf("send hook of %s %d", i.id, n), func() {
			w.note("group %s: message %s about its hook for %s", wait.Group, event, i.node)
			if h.sent.IsZero() {
				h.sent = time.Now()
			}
			id := w.Queue.Send(hookMessage("EC2 Instance-terminate Lifecycle Action", event, wait))
			w.judge.sent(id, i.node, interruption.InstanceTerminating)
		})
	}
}

// hookMessage is what EventBridge makes of a wait.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html
func hookMessage(detailType, event string, wait asgemu.Wait) string {
	return envelope("aws.autoscaling", detailType, event, wait.Since, map[string]string{
		"LifecycleActionToken": wait.Token, "AutoScalingGroupName": wait.Group, "LifecycleHookName": wait.Hook,
		"EC2InstanceId": wait.Instance, "LifecycleTransition": wait.Transition, "NotificationMetadata": "",
	})
}

// hookOf is the wait of that transition of an instance, if it lasts.
func (j *judge) hookOf(id, transition string) *asgemu.Wait {
	if j.w.cloud == nil {
		return nil
	}
	for _, wait := range j.w.cloud.Waits(id) {
		if wait.Result == "" && wait.Transition == transition {
			return &wait
		}
	}
	return nil
}

// deadlineOf is the record's deadline, or an earlier one of the node's hook: the daemon asks the group for that, and
// goes by it before the record says so.
func (j *judge) deadlineOf(node string, rec interruption.Record) time.Time {
	i := j.w.instanceOf(node)
	if i == nil || j.hooks[i.id] == nil || len(rec.Hooks) == 0 {
		return rec.Deadline
	}
	return interruption.Earlier(rec.Deadline, j.hookUntil(j.hooks[i.id]))
}

// hookUntil is when the group stops waiting if the daemon sends all the heartbeats that it may. If it's notified too
// late to send any, that's the hook's own timeout.
func (j *judge) hookUntil(h *hookLife) time.Time {
	longest := j.w.Scene.Groups.Hook
	if h.sent.IsZero() || h.sent.Sub(h.Since) > longest-recovery {
		return h.Since.Add(longest)
	}
	for _, flag := range j.w.Scene.Flags {
		if text, is := strings.CutPrefix(flag, "--heartbeat-until="); is {
			most, _ := time.ParseDuration(text) // drawn above
			longest = max(longest, most)
		}
	}
	return h.Since.Add(longest)
}

// hookLook is how often a hook is looked at.
const hookLook = 5 * time.Second

// lookAtHook: once the drain has ended, the group is kept no longer.
func (j *judge) lookAtHook(h *hookLife) {
	i := j.w.instances[h.Instance]
	if !i.runs || j.hookOf(h.Instance, asgemu.TerminateAt) == nil || j.w.ended() {
		return
	}
	j.w.after(hookLook, "look at hook of "+i.id, func() { j.lookAtHook(h) })
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, h.node)
	if node == nil || h.sent.IsZero() {
		return
	}
	rec, has := recordOf(node)
	if !has || !rec.Phase.Over() || rec.Ended.IsZero() || j.life(h.node).canceled.After(h.sent) {
		return // what is canceled is forgotten with its hook
	}
	since := interruption.Later(rec.Ended, h.sent)
	if time.Since(since) > recovery && !j.w.disturbed(since.Sub(j.w.began)-recovery, j.w.since()) && !j.hung() {
		j.breaks(notInVain, "group %s waits for %s, and its drain was over at %.3f: %s",
			h.Group, h.node, since.Sub(j.w.began).Seconds(), summary(rec, has))
	}
}

// hookEnded: a group has ended an instance. If that was because its hook's time was over, nobody was there to say that
// it need wait no longer, or the news of it had come too late.
func (j *judge) hookEnded(id string) {
	h := j.hooks[id]
	if h == nil {
		return
	}
	waits := j.w.cloud.Waits(id)
	last := waits[len(waits)-1]
	j.w.note("group %s: its hook for %s has ended: %s after %d heartbeats, timed out %t",
		h.Group, h.node, last.Result, last.Heartbeats, last.TimedOut)
	life := j.life(h.node)
	switch {
	case !last.TimedOut, j.w.ended(), h.sent.IsZero(), !life.canceled.IsZero(), j.hung():
		return
	case last.Until.Sub(h.sent) < margin+recovery:
		return
	case j.w.disturbed(h.sent.Sub(j.w.began)-recovery, last.Until.Sub(j.w.began)):
		return
	case !j.w.Scene.Rates.rare() && j.drainedLate(h.node, last.Until):
		return
	}
	if i := j.w.instances[id]; i != nil && !i.ended.IsZero() && i.ended.Before(last.Until) {
		return // EC2 has taken it before
	}
	j.breaks(everEnds, "group %s has waited for %s from %.3f until its hook's timeout at %.3f",
		h.Group, h.node, last.Since.Sub(j.w.began).Seconds(), last.Until.Sub(j.w.began).Seconds())
}

// drainedLate reports whether the drain has used all of its time. What is left until the deadline is for the record and
// for the group, and a slow API server can take it.
func (j *judge) drainedLate(node string, deadline time.Time) bool {
	there := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, node)
	if there == nil {
		return false
	}
	rec, has := recordOf(there)
	return has && !rec.Ended.IsZero() && deadline.Sub(rec.Ended) < margin+time.Second
}

// judgeComplete: a group ends an instance once it need wait no longer. Until then it has what pods need.
func (j *judge) judgeComplete(by, id string) {
	if j.hookOf(id, asgemu.Launching) != nil {
		j.judgeLaunched(by, id)
		return
	}
	h, i := j.hooks[id], j.w.instances[id]
	if i != nil && h == nil && j.w.Scene.Groups.Launches {
		return // the hook for its launch is over
	}
	if h == nil || i == nil {
		j.breaks(notOurs, "%s completes a hook for %s, and no group waits", by, id)
		return
	}
	if j.hookOf(id, asgemu.TerminateAt) == nil {
		return // it is over already
	}
	j.w.note("%s: completes the hook for %s", by, i.node)
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, i.node)
	if node == nil || !i.runs {
		return
	}
	rec, has := recordOf(node)
	switch {
	case !has, !rec.Phase.Over():
		j.breaks(recordsTrue, "%s completes the hook for %s, and its record is %s", by, i.node, summary(rec, has))
	case rec.Ended.Before(h.sent): // EC2 had announced its end before, and its drain was over
		return
	case !rec.Deadline.IsZero() && time.Until(rec.Deadline) < margin+j.slack():
		return // the time is over
	}
	stays := slices.DeleteFunc(j.w.podsOn(i.node), func(pod *corev1.Pod) bool {
		life := j.pods[pod.UID]
		return !hasToMove(pod) || j.cameBack(pod) || life == nil || time.Since(life.bound) < justBound+j.behind()
	})
	if len(stays) > 0 {
		j.breaks(graceKept, "%s completes the hook for %s, and pod %s is there", by, i.node, stays[0].Name)
	}
}

// announceLaunch has EventBridge put into the queue that a group waits for an instance that it has launched.
func (w *World) announceLaunch(wait asgemu.Wait) {
	d := w.draw()
	delay := d.Between(100*time.Millisecond, 3*time.Second, wait.Instance, "launch hook's delay")
	event := fmt.Sprintf("%08x-%s-4000-8000-40004000aaaa", w.Scene.Seed&0xffffffff, wait.Instance[len(wait.Instance)-4:])
	w.note("group %s: waits for %s, launched, until %.3f", wait.Group, wait.Instance, wait.Until.Sub(w.began).Seconds())
	w.after(delay, "send launch hook of "+wait.Instance, func() {
		w.Queue.Send(hookMessage("EC2 Instance-launch Lifecycle Action", event, wait))
		w.after(launchLook, "look at launch hook of "+wait.Instance, func() { w.judge.lookAtLaunch(wait) })
	})
}

// launchLook is how long an instance whose Node is Ready can be kept from going into service: that is looked at again
// after 30 s at the most.
const launchLook = 30*time.Second + recovery

// lookAtLaunch: an instance whose Node is Ready goes into service.
func (j *judge) lookAtLaunch(wait asgemu.Wait) {
	i := j.w.instances[wait.Instance]
	if j.hookOf(wait.Instance, asgemu.Launching) == nil || i == nil || !i.runs || j.w.ended() {
		return
	}
	node, now := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, i.node), j.w.since()
	ready := node != nil && isReady(node) && time.Since(node.CreationTimestamp.Add(-j.w.Ahead)) > launchLook
	if ready && !j.w.disturbed(now-launchLook-recovery, now) && !j.hung() {
		j.breaks(notInVain, "group %s waits for %s, launched at %.3f, whose node is Ready",
			wait.Group, i.node, wait.Since.Sub(j.w.began).Seconds())
	}
	j.w.after(hookLook, "look at launch hook of "+wait.Instance, func() { j.lookAtLaunch(wait) })
}

// judgeLaunched: an instance goes into service once its Node is Ready, and not before.
func (j *judge) judgeLaunched(by, id string) {
	i := j.w.instances[id]
	if i == nil {
		j.breaks(recordsTrue, "%s completes the launch hook for %s, which is no node yet", by, id)
		return
	}
	j.w.note("%s: completes the launch hook for %s", by, i.node)
	if node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, i.node); node == nil || !isReady(node) {
		j.breaks(recordsTrue, "%s completes the launch hook for %s, which is not Ready", by, i.node)
	}
}
