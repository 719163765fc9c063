// Package plan draws what happens in a round of chaos: which nodes are lost, what fails
// meanwhile, and what the owners of the workloads do. A round is a pure function of a seed
// and the round's number, so one that found something can be played again.
package plan

import (
	"fmt"
	"strings"
	"time"
)

// What can happen.
type What string

const (
	// To instances. Left is the time until their end when the message arrives.
	Interrupt What = "spot interruption notice"
	Stop      What = "spot interruption notice, stop" // the instance comes back afterwards
	Reserve   What = "capacity reservation interruption"
	Recommend What = "rebalance recommendation"
	Shutdown  What = "state shutting-down"

	// About an interruption that was announced before.
	Repeat    What = "the same message again"
	SecondID  What = "the same end under another id"
	Cancel    What = "cancelled"
	Duplicate What = "next messages delivered twice" // Count of them
	Cordon    What = "node cordoned by an operator"  // who means it

	// To a replica.
	Kill      What = "replica killed"
	Terminate What = "replica stopped in order"
	Pause     What = "replica paused"

	// Between a replica and the API server.
	CutAPI      What = "network to the API server cut"
	SlowAPI     What = "API server slow"
	ThrottleAPI What = "API server throttles"
	FailAPI     What = "API server fails"
	LoseAPI     What = "API server's answers lost"

	// To the API server itself, for everybody.
	FreezeAPI What = "API server hangs"

	// Between a replica and the queue.
	CutQueue      What = "network to the queue cut"
	SlowQueue     What = "queue slow"
	ThrottleQueue What = "queue throttles"
	FailQueue     What = "queue fails"
	LoseQueue     What = "queue's answers lost"

	// By the owners of workloads.
	Roll   What = "Deployment rolls"
	Scale  What = "Deployment scaled"       // to Count
	Remove What = "Deployment deleted"      // for good
	Refuse What = "budget allows nothing"   // For so long
	Loosen What = "budget deleted for good" // its pods need no permission any more
)

// Step is one thing that happens.
type Step struct {
	At, For time.Duration // after the begin of the round; For is 0 for what has no end
	What    What

	Node, Replica, Service int // which; -1 where it is about none; Replica can be Leader

	Left  time.Duration
	Skew  time.Duration // by which the clock of whoever sent the message is ahead
	Count int
	Share float64 // of requests that the fault hits
}

// IsFault reports whether the step takes something away that a drain needs: until it is over,
// and a moment longer, nobody can be asked to be in time.
func (s Step) IsFault() bool {
	switch s.What {
	case Kill, Terminate, Pause, CutAPI, SlowAPI, ThrottleAPI, FailAPI, LoseAPI, FreezeAPI,
		CutQueue, SlowQueue, ThrottleQueue, FailQueue, LoseQueue:
		return true
	}
	return false
}

// Announces reports whether the step announces the end of an instance, or a risk of it.
func (s Step) Announces() bool {
	switch s.What {
	case Interrupt, Stop, Reserve, Recommend, Shutdown:
		return true
	}
	return false
}

func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.1fs", s.At.Seconds())
	if s.For > 0 {
		fmt.Fprintf(&b, " for %4.1fs", s.For.Seconds())
	} else {
		b.WriteString("          ")
	}
	b.WriteString("  " + string(s.What))
	for _, part := range []struct {
		name string
		n    int
	}{{"node", s.Node}, {"replica", s.Replica}, {"service", s.Service}} {
		if part.name == "replica" && part.n == Leader {
			b.WriteString(", the leader")
		} else if part.n >= 0 {
			fmt.Fprintf(&b, ", %s %d", part.name, part.n)
		}
	}
	if s.Left > 0 {
		fmt.Fprintf(&b, ", %.0fs left", s.Left.Seconds())
	}
	if s.Skew != 0 {
		fmt.Fprintf(&b, ", clock %+.0fs", s.Skew.Seconds())
	}
	if s.Count > 0 || s.What == Scale {
		fmt.Fprintf(&b, ", %d", s.Count)
	}
	if s.Share > 0 {
		fmt.Fprintf(&b, ", %.0f%% of requests", 100*s.Share)
	}
	return b.String()
}

// What receivers answer besides when their pods want to go.
const (
	Silence  = "nothing"
	Hang     = "never"
	Nonsense = "nonsense"
)

// Service is a Deployment with a disruption budget.
type Service struct {
	Name     string
	Replicas int

	Ready, Stop, Grace time.Duration

	MaxSurge    int
	Unavailable int // that its budget allows; -1: it has none

	Stays     bool // its pods ask not to be disrupted
	Tolerates bool // its pods tolerate every taint

	When    string // that its pods ask to be evicted; empty: as the strategy has it
	Gang    bool   // its pods live and die together
	Notices string // how the pods' receivers answer; empty: they have none
}

func (s Service) String() string {
	budget := "no budget"
	if s.Unavailable >= 0 {
		budget = fmt.Sprintf("budget of %d", s.Unavailable)
	}
	text := fmt.Sprintf("%s: %d pods, ready after %s, stop in %s of %s, surge %d, %s", s.Name, s.Replicas, s.Ready, s.Stop, s.Grace, s.MaxSurge, budget)
	if s.Stays {
		text += ", do not disrupt"
	}
	if s.Tolerates {
		text += ", tolerate everything"
	}
	if s.When != "" {
		text += ", when: " + s.When
	}
	if s.Gang {
		text += ", a gang"
	}
	if s.Notices != "" {
		text += ", receivers that answer " + s.Notices
	}
	return text
}

// Round is what is there, and what happens.
type Round struct {
	Seed   uint64
	Number int
	// Mode of the chart, for all rounds of a seed: queue, or imds, where a process on each node
	// marks it and the replicas drain. There is no queue then: what would befall that befalls the
	// processes that mark.
	Mode     string
	Services []Service
	Steps    []Step // by time
}

// The size of things. Of as many nodes, some always stay.
const (
	Nodes    = 6
	Replicas = 3

	// Leader is the number of whichever replica leads at that moment.
	Leader = Replicas
)

// Flags are those of the replicas, for all rounds of a seed.
func (r Round) Flags() []string { return flags(r.Seed) }

// Boot is how long replacements take to boot, in all rounds of a seed.
func (r Round) Boot() time.Duration { return boot(r.Seed) }

// Calm is when the last fault is over.
func (r Round) Calm() time.Duration {
	calm := time.Duration(0)
	for _, s := range r.Steps {
		if s.IsFault() {
			calm = max(calm, s.At+s.For)
		}
	}
	return calm
}

// Last is when the last instance comes to its end, or the last step is over.
func (r Round) Last() time.Duration {
	last := time.Duration(0)
	for _, s := range r.Steps {
		last = max(last, s.At+s.For, s.At+s.Left)
	}
	return last
}

func (r Round) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, round %d: mode %s, %d nodes, replacements boot in %s, replicas with %s\n", r.Seed, r.Number, r.Mode, Nodes, r.Boot(), strings.Join(r.Flags(), " "))
	for _, s := range r.Services {
		fmt.Fprintf(&b, "  %s\n", s)
	}
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "  %s\n", s)
	}
	return b.String()
}
