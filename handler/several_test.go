package handler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// converged is what has to be the same whatever the order in which notices came. If two sources
// announce the same thing, the first gives it its name.
func converged(t *testing.T, f *fakeNodes) string {
	t.Helper()
	node, rec := f.now(t)
	var stands, hooks []string
	for _, a := range rec.Announcements() {
		at := "never"
		if !a.Deadline.IsZero() {
			at = a.Deadline.Sub(epoch(t)).String()
		}
		stands = append(stands, fmt.Sprint(a.Kind, " ", a.Action, " ", at))
	}
	for _, hook := range rec.Hooks {
		hooks = append(hooks, hook.Name)
	}
	slices.Sort(hooks)
	ours := slices.Sorted(slices.Values(rec.Ours))
	return fmt.Sprintln(rec.Kind, rec.Action, rec.Deadline.Sub(epoch(t)), rec.Phase, rec.Canceled, rec.ComesBack(), rec.Terminated(),
		stands, hooks, ours, node.Spec.Unschedulable)
}

// epoch is when a synctest bubble begins.
func epoch(t *testing.T) time.Time { t.Helper(); return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) }

// Whatever EC2 says about one instance, by both sources, twice and in any order: it is one
// record, of the strongest kind, with the earliest deadline and all hooks, and every message is
// settled.
func TestSeveralAtOnceConverge(t *testing.T) {
	at := func(d time.Duration) func(*interruption.Notice) {
		return func(n *interruption.Notice) { n.Deadline = n.Noticed.Add(d) }
	}
	hook := func(name string) func(*interruption.Notice) {
		return func(n *interruption.Notice) {
			n.Deadline = n.Noticed.Add(5 * time.Minute)
			n.Hook = &interruption.Hook{Group: "workers", Name: name, Token: name, Since: n.Noticed}
		}
	}
	act := func(action string, more func(*interruption.Notice)) func(*interruption.Notice) {
		return func(n *interruption.Notice) {
			n.Action = action
			more(n)
		}
	}
	type said struct {
		kind   interruption.Kind
		change func(*interruption.Notice)
	}
	const (
		spot, rebalance     = interruption.SpotInterruption, interruption.RebalanceRecommendation
		reservation, event  = interruption.CapacityReservationInterruption, interruption.ScheduledEvent
		terminating, states = interruption.InstanceTerminating, interruption.StateChange
	)
	for name, tt := range map[string]struct {
		all      []said
		withdraw []int // indexes into all: what is withdrawn after its announcement
		want     string
	}{
		"a recommendation, an event and the notice": {
			[]said{{rebalance, act("", func(*interruption.Notice) {})}, {event, act("reboot", at(time.Hour))}, {spot, act("terminate", at(2*time.Minute))}}, nil,
			"spot-interruption terminate 2m0s Noticed",
		},
		"an event is earlier than the notice": {
			[]said{{event, act("reboot", at(time.Minute))}, {spot, act("terminate", at(2*time.Minute))}}, nil,
			"spot-interruption terminate 1m0s Noticed",
		},
		"and is canceled": {
			[]said{{event, act("reboot", at(time.Minute))}, {spot, act("terminate", at(2*time.Minute))}}, []int{0},
			"spot-interruption terminate 2m0s Noticed",
		},
		"a group's hooks and the notice": {
			[]said{{terminating, hook("logs")}, {terminating, hook("dns")}, {spot, act("terminate", at(2*time.Minute))}}, nil,
			"spot-interruption terminate 2m0s Noticed",
		},
		"a stop and another end": {
			[]said{{spot, act("stop", at(2*time.Minute))}, {reservation, act("terminate", at(3*time.Minute))}, {event, act("retirement", at(240*time.Hour))}}, nil,
			"spot-interruption stop 2m0s Noticed false false",
		},
		"states in any order": {
			[]said{{states, act("terminated", at(0))}, {states, act("shutting-down", at(0))}, {states, act("stopping", at(0))}, {states, act("stopped", at(0))}}, nil,
			"state-change terminated 0s Noticed false false true",
		},
		"two events, the earlier canceled": {
			[]said{{event, act("reboot", at(time.Minute))}, {event, act("retirement", at(240*time.Hour))}}, []int{0},
			"scheduled-event retirement 240h0m0s Waiting",
		},
		"everything": {
			[]said{
				{rebalance, act("", func(*interruption.Notice) {})}, {event, act("reboot", at(time.Hour))}, {terminating, hook("logs")},
				{reservation, act("terminate", at(time.Minute))}, {spot, act("terminate", at(2*time.Minute))}, {states, act("shutting-down", at(0))},
			}, []int{1},
			"state-change shutting-down 0s Noticed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			first := ""
			for range 60 {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeNodes(testNode())
					defer f.watcher.Stop()
					h := newTestHandler(t, f, func(o *setup) { o.rules.lead = lead })
					var order []interruption.Notice
					for i, s := range tt.all {
						n := notice(s.kind, s.change)
						n.EventID = fmt.Sprint("event-", i)
						twice := n
						twice.Source, twice.EventID = interruption.IMDS, fmt.Sprint("imds-", i)
						order = append(order, n, n, twice)
					}
					r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
					for _, i := range tt.withdraw {
						last := 0
						for j, n := range order {
							if strings.HasSuffix(n.EventID, fmt.Sprint("-", i)) {
								last = j
							}
						}
						n := notice(tt.all[i].kind, tt.all[i].change)
						n.EventID, n.Withdrawn = fmt.Sprint("event-", i), true
						order = slices.Insert(order, last+1+r.IntN(len(order)-last), n)
					}
					for _, n := range order {
						accept(t, h, n) // fails the test on an error
						synctest.Wait()
					}
					got := converged(t, f)
					if !strings.HasPrefix(got, tt.want) {
						t.Fatalf("%s\nwant %s", got, tt.want)
					}
					if first == "" {
						first = got
					}
					if got != first {
						t.Fatalf("in one order\n%sin another\n%s", first, got)
					}
				})
			}
		})
	}
}

// What an earlier interruption has set is still ours when the next one takes its place.
func TestNextLifeKeepsWhatIsOurs(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		s.left = 0
		untilStable(t, f, h)
		wantPhase(t, f, interruption.Released)
		time.Sleep(time.Hour)
		accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.EventID = "next" }))
		f.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		untilStable(t, f, h)
		wantNoRecord(t, f)
	})
}
