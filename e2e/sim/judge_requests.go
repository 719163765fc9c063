package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

type sentMessage struct {
	id, node string
	kind     interruption.Kind
	at       time.Time
}

func (j *judge) sent(id, node string, kind interruption.Kind) {
	j.messages = append(j.messages, sentMessage{id, node, kind, time.Now()})
}

// judgeLeader holds what drains to the process that has the lease. What it had sent before it lost that may
// arrive a little later.
func (j *judge) judgeLeader(c memapi.Change) {
	now := j.w.since()
	if c.By != j.led && time.Since(j.ledSince) > 5*time.Second && !j.w.disturbed(now-30*time.Second, now) {
		j.breaks(oneLeads, "%s ends pod %s, and %s has had the lease since %s", c.By, c.Key, j.led, j.ledSince.Sub(j.w.began))
	}
}

// twoLead reports whether two processes may believe that they lead, each of which takes the other's writes for
// somebody's who meddles: until the one without the Lease has failed to renew it for seconds.
func (j *judge) twoLead() bool {
	return slices.ContainsFunc(j.w.faulty.spans, func(f Fault) bool {
		return f.What == FaultLease && j.w.since() >= f.From && j.w.since() < f.From+recovery
	})
}

// manyTimes is how often the same request may fail within a while.
const (
	manyTimes = 40
	aWhile    = 10 * time.Second
	endless   = 10_000 // a hot loop: requests take no simulated time, so the round would never end
)

func (w *World) requested(q memapi.Request) { w.judge.requested(q) }

func (j *judge) requested(q memapi.Request) {
	j.requests++
	if q.Code >= 400 || q.Lost {
		j.w.note("%s: %s: %d %s lost=%t", q.By, q.What(), q.Code, q.Error, q.Lost)
	}
	if q.Kind == memapi.Pods && q.Subresource == "eviction" && q.Code >= 400 && !q.Unread {
		if pod, ok := q.Before.(*corev1.Pod); ok && j.pods[pod.UID] != nil {
			j.pods[pod.UID].refused = time.Now()
		}
	}
	if q.Kind == memapi.Pods && q.Subresource == "eviction" && q.Unread && j.webhookHolds() {
		j.heldUp(q.Key()) // had it been read, the webhook would have held it up
	}
	if q.Kind == memapi.Pods && q.Verb == "delete" && q.Code < 400 {
		j.judgeDeletion(q)
	}
	if q.Kind != nil && q.Verb != "get" && q.Verb != "list" && q.Verb != "watch" {
		what := q.By + " " + q.What()
		now := time.Now()
		recent := slices.DeleteFunc(append(j.repeats[what], now), func(at time.Time) bool { return now.Sub(at) > aWhile })
		j.repeats[what] = recent
		if len(recent) > endless {
			panic(fmt.Sprintf("seed %d: %s: more than %d times in %s", j.w.Scene.Seed, what, endless, aWhile))
		}
		if len(recent) > manyTimes && !j.twoLead() {
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
		// A rehearsal has drained the node, which is to be terminated: nothing is left to do for EC2's sake.
		recorded = recorded || !life.released.IsZero() && !life.released.After(m.DeletedAt)
		// A queue doesn't keep order, and EC2 had withdrawn the event by then.
		withdrawn := life.loss.Withdrawn > 0 && j.w.began.Add(life.loss.Withdrawn).Before(m.DeletedAt) && sent.kind == interruption.ScheduledEvent
		stale := m.DeletedAt.Sub(sent.at) > 3*time.Minute ||
			sent.kind != interruption.InstanceTerminating && sent.at.Sub(j.w.began.Add(life.loss.At)) > 4*time.Minute
		if !recorded && !stale && !withdrawn {
			j.breaks(noticeKept, "the %s of %s was deleted at %.3f, and was never recorded",
				sent.kind, sent.node, m.DeletedAt.Sub(j.w.began).Seconds())
		}
	}
}
