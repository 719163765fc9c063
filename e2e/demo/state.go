package main

import (
	"fmt"
	"time"

	"spot-handler/handler/interruption"
)

// state is what is known at one moment. All but the log comes from watches of the API;
// each time is when the watch showed it to this program, zero for what has not happened
// yet.
type state struct {
	now  time.Time
	mode string
	node string // the interrupted one

	notice   time.Time // when the notice was handed to the emulator
	deadline time.Time

	phase       interruption.Phase
	result      *interruption.Pods // what the record says once the drain has ended
	replacement claim

	cordoned  time.Time
	requested time.Time // the replacement's NodeClaim exists
	launched  time.Time // it has an instance
	ready     time.Time // pods can be scheduled to its Node
	drained   time.Time // the last pod that had to leave is gone
	claimGone time.Time // of the interrupted node
	nodeGone  time.Time

	places      []place // interrupted first, then others, then the replacement
	unscheduled int     // pods without a node

	readyPods int
	fewest    int // ready pods at any time since the notice
	moving    int // pods that were on the node at the notice
	remaining int // of these, those that are still there

	// shortestGrace is the shortest time that a pod of the node was given to end; -1 as
	// long as none has begun to.
	shortestGrace time.Duration

	log []entry
}

// claim is the replacement's NodeClaim.
type claim struct{ name, state string }

// place is a node and the service's pods on it.
type place struct {
	role, node, capacity      string
	ready, starting, stopping int
}

// What a place is to the interruption.
const (
	roleInterrupted = "interrupted"
	roleOther       = ""
	roleReplacement = "replacement"
)

// entry is a line of spot-handler's log.
type entry struct {
	at   time.Time
	text string
}

// over reports whether nothing more will happen.
func (s state) over() bool {
	return !s.drained.IsZero() && !s.claimGone.IsZero() && !s.nodeGone.IsZero() && s.readyPods == replicas
}

// slack is the time left until the deadline when the node was drained.
func (s state) slack() time.Duration { return s.deadline.Sub(s.drained) }

// progress counts the service's pods: ready on the interrupted node, between two
// nodes, and ready elsewhere.
func (s state) progress() (waiting, underWay, arrived int) {
	underWay = s.unscheduled
	for _, p := range s.places {
		underWay += p.starting + p.stopping
		if p.role == roleInterrupted {
			waiting += p.ready
		} else {
			arrived += p.ready
		}
	}
	return waiting, underWay, arrived
}

// problems are the reasons why an interruption has not ended well.
func (s state) problems() []string {
	var list []string
	add := func(bad bool, format string, args ...any) {
		if bad {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(s.cordoned.IsZero(), "the node was not cordoned")
	add(s.ready.IsZero(), "the replacement did not become ready")
	add(s.drained.IsZero(), "%d of %d pods were still on the node", s.remaining, s.moving)
	add(!s.drained.IsZero() && s.slack() < 0, "drained %s after the deadline", seconds(-s.slack()))
	add(s.fewest < budget, "only %d pods were ready at some time, the budget asks for %d", s.fewest, budget)
	add(s.readyPods != replicas, "%d pods are ready in the end, want %d", s.readyPods, replicas)
	add(s.shortestGrace >= 0 && s.shortestGrace < grace, "a pod had %s to end, and asks for %s", s.shortestGrace, grace)
	if s.result == nil {
		add(true, "the record on the Node did not tell a result")
	} else {
		add(s.result.Truncated > 0, "%d pods had less than their grace period", s.result.Truncated)
		add(s.result.Forced > 0, "%d pods were deleted past the budget", s.result.Forced)
		add(s.result.Left > 0, "%d pods were left on the node", s.result.Left)
	}
	add(s.claimGone.IsZero(), "the old NodeClaim is still there")
	add(s.nodeGone.IsZero(), "the old Node is still there")
	return list
}
