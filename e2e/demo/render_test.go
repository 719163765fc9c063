package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

var noticed = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time {
	return noticed.Add(time.Duration(seconds * float64(time.Second)))
}

// draining is a state in the middle, with the longest names that occur.
func draining() state {
	return state{
		now: after(26.5), mode: queueMode, node: "kwok-batch-tj8xg-bisondew-1-gedbvup1n8-802230442",
		notice: noticed, deadline: after(119.6),
		phase:       interruption.Draining,
		replacement: claim{name: "batch-fallback-i-d0f11142c25c6655c", state: claimInitialized},
		cordoned:    after(0.012), requested: after(0.08), launched: after(0.23), ready: after(20.4),
		places: []place{
			{role: roleInterrupted, node: "kwok-batch-tj8xg-bisondew-1-gedbvup1n8-802230442", capacity: "spot", ready: 3, stopping: 1},
			{role: roleOther, node: "kwok-batch-9dj2k", capacity: "spot", ready: 6},
			{role: roleReplacement, node: "kwok-batch-fallback-i-d0f11142c25c6655c", capacity: "on-demand", ready: 1, starting: 1},
		},
		unscheduled: 1, readyPods: 10, fewest: 10, moving: 6, remaining: 4, shortestGrace: grace,
		log: []entry{
			{after(0.01), "interruption accepted, node cordoned  took_seconds=0.0104"},
			{after(0.1), "replacement requested  backend=karpenter pool=batch-fallback"},
			{after(21.4), "replacement ready  backend=karpenter pool=batch-fallback"},
			{after(21.4), "draining  pods=6"},
			{after(22), "warn: a line that goes on and on, for the API server has a lot to say about its troubles"},
		},
	}
}

// ended is the state at a good end.
func ended() state {
	s := draining()
	s.now, s.phase, s.unscheduled, s.readyPods, s.remaining = after(40), interruption.Released, 0, 12, 0
	s.drained, s.claimGone, s.nodeGone = after(35.5), after(39.9), after(39.8)
	s.result = &interruption.Pods{Total: 6, Graceful: 6}
	s.places = []place{
		{role: roleOther, node: "kwok-batch-9dj2k", capacity: "spot", ready: 6},
		{role: roleReplacement, node: "kwok-batch-fallback-i-d0f11142c25c6655c", capacity: "on-demand", ready: 6},
	}
	return s
}

func TestView(t *testing.T) {
	booting := draining()
	booting.now, booting.phase, booting.ready = after(14.3), interruption.Replacing, time.Time{}
	booting.replacement.state = claimLaunched
	booting.places = []place{{role: roleInterrupted, node: "kwok-batch-1", capacity: "spot", ready: 6}}
	booting.unscheduled, booting.log = 0, booting.log[:1]

	unnoticed := state{
		now: noticed, mode: imdsMode, notice: noticed, deadline: after(120), readyPods: 12, fewest: 12,
		places: []place{{role: roleInterrupted, node: "kwok-batch-1", capacity: "spot", ready: 6}},
	}

	for _, test := range []struct {
		name  string
		state state
		want  string
	}{
		{"the notice is on its way", unnoticed, `
spot interruption, from the notice to the end                          imds mode

time left    120.0 s  [========================================]
phase        none, the notice is on its way
replacement  none
web          12 of 12 ready, fewest 12, the budget asks for 10
pods         6 wait on the node, 0 on the way, 0 ready elsewhere

             NODE                      CAPACITY   PODS
interrupted  kwok-batch-1              spot       ######  6 ready
`},
		{"booting", booting, `
spot interruption, from the notice to the end                         queue mode

time left    105.3 s  [===================================     ]
phase        Replacing, cordoned 0.01 s after the notice
replacement  batch-fallback-i-d0f11142c25c6655c launched, boots for 14 s
web          10 of 12 ready, fewest 10, the budget asks for 10
pods         6 wait on the node, 0 on the way, 0 ready elsewhere

             NODE                      CAPACITY   PODS
interrupted  kwok-batch-1              spot       ######  6 ready

    0.0 s  interruption accepted, node cordoned  took_seconds=0.0104
`},
		{"draining", draining(), `
spot interruption, from the notice to the end                         queue mode

time left     93.1 s  [===============================         ]
phase        Draining, cordoned 0.01 s after the notice
replacement  batch-fallback-i-d0f11142c25c6655c ready after 20.4 s
web          10 of 12 ready, fewest 10, the budget asks for 10
pods         3 wait on the node, 3 on the way, 7 ready elsewhere

             NODE                      CAPACITY   PODS
interrupted  kwok-batch-tj8xg-bisonde… spot       ###x  3 ready, 1 stopping
             kwok-batch-9dj2k          spot       ######  6 ready
replacement  kwok-batch-fallback-i-d0… on-demand  #~  1 ready, 1 starting
no node yet                                       .  1 pending

    0.0 s  interruption accepted, node cordoned  took_seconds=0.0104
    0.1 s  replacement requested  backend=karpenter pool=batch-fallback
   21.4 s  replacement ready  backend=karpenter pool=batch-fallback
   21.4 s  draining  pods=6
   22.0 s  warn: a line that goes on and on, for the API server has a lot to sa…
`},
		{"ended", ended(), `
spot interruption, from the notice to the end                         queue mode

time left     84.1 s  [============================            ] to spare
phase        Released, cordoned 0.01 s after the notice, Node gone
replacement  batch-fallback-i-d0f11142c25c6655c ready after 20.4 s
web          12 of 12 ready, fewest 10, the budget asks for 10
pods         0 wait on the node, 0 on the way, 12 ready elsewhere

             NODE                      CAPACITY   PODS
             kwok-batch-9dj2k          spot       ######  6 ready
replacement  kwok-batch-fallback-i-d0… on-demand  ######  6 ready

    0.0 s  interruption accepted, node cordoned  took_seconds=0.0104
    0.1 s  replacement requested  backend=karpenter pool=batch-fallback
   21.4 s  replacement ready  backend=karpenter pool=batch-fallback
   21.4 s  draining  pods=6
   22.0 s  warn: a line that goes on and on, for the API server has a lot to sa…
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			lines := view(test.state)
			want := strings.Trim(test.want, "\n")
			if got := strings.Trim(strings.Join(lines, "\n"), "\n"); got != want {
				t.Errorf("view (-want +got):\n%s", cmp.Diff(want, got))
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); n > width {
					t.Errorf("%d columns, want %d at most: %s", n, width, line)
				}
			}
		})
	}
}

// A service's view with everything in it still fits a terminal of 24 lines, the last of
// which belongs to the cursor.
func TestViewFits24Lines(t *testing.T) {
	s := draining()
	for range 20 {
		s.log = append(s.log, entry{after(30), "again"})
	}
	if n := len(view(s)); n > 23 {
		t.Errorf("%d lines, want 23 at most", n)
	}
}

func TestChanges(t *testing.T) {
	before := draining()
	for _, test := range []struct {
		name          string
		before, after state
		want          []string
	}{
		{"nothing new", before, before, nil},
		{"time alone", before, func() state { s := before; s.now = after(30); return s }(), nil},
		{"end, in order of time", before, func() state {
			s := ended()
			s.log = append(s.log, entry{after(35.6), "drained  graceful=6"})
			return s
		}(), []string{
			"   35.5 s  node        drained, 84.1 s left",
			"   35.6 s  log         drained  graceful=6",
			"   39.8 s  node        Node gone",
			"   39.9 s  node        NodeClaim gone",
			"   40.0 s  phase       Released",
			"   40.0 s  pods        12 ready: other [######] replacement [######]",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := changes(test.before, test.after); !cmp.Equal(got, test.want) {
				t.Errorf("changes (-want +got):\n%s", cmp.Diff(test.want, got))
			}
		})
	}
}

func TestSummary(t *testing.T) {
	bad := draining()
	bad.fewest = 9
	for _, test := range []struct {
		name  string
		state state
		want  string
	}{
		{"good", ended(), `
  notice to cordon                0.01 s
  notice to replacement launched  0.23 s
  notice to replacement ready     20.4 s
  notice to drained               35.5 s
  slack, drained to deadline      84.1 s of 120
  notice to old NodeClaim gone    39.9 s
  notice to old Node gone         39.8 s
  pods that had to leave          6: 6 graceful, 0 truncated, 0 forced, 0 left
  shortest grace given            30 of 30 s
  fewest ready pods               10 of 12, the budget asks for 10

Times run from the moment before the notice is handed to the emulator to the
watch event in which this program sees the change, delivery of both included.

The interruption ended well.`},
		{"bad", bad, `
  notice to cordon                0.01 s
  notice to replacement launched  0.23 s
  notice to replacement ready     20.4 s
  notice to drained               never
  slack, drained to deadline      none
  notice to old NodeClaim gone    never
  notice to old Node gone         never
  pods that had to leave          6: the record on the Node told no result
  shortest grace given            30 of 30 s
  fewest ready pods               9 of 12, the budget asks for 10

Times run from the moment before the notice is handed to the emulator to the
watch event in which this program sees the change, delivery of both included.

The interruption did not end well:
  4 of 6 pods were still on the node
  only 9 pods were ready at some time, the budget asks for 10
  10 pods are ready in the end, want 12
  the record on the Node did not tell a result
  the old NodeClaim is still there
  the old Node is still there`},
	} {
		t.Run(test.name, func(t *testing.T) {
			lines := summary(test.state)
			if got := strings.Join(lines, "\n"); got != test.want {
				t.Errorf("summary (-want +got):\n%s", cmp.Diff(test.want, got))
			}
			for _, line := range lines {
				if n := utf8.RuneCountInString(line); n > width {
					t.Errorf("%d columns, want %d at most: %s", n, width, line)
				}
			}
		})
	}
}

func TestLogText(t *testing.T) {
	for _, test := range []struct {
		name, line, want string
		shown            bool
	}{
		{"the node's story", `{"level":"info","node":"n1","kind":"spot-interruption","graceful":6,"truncated":0,"slack_seconds":84.4239,"message":"drained"}`,
			"drained  graceful=6 truncated=0 slack_seconds=84.4", true},
		{"another node", `{"level":"info","node":"n2","message":"drained"}`, "", false},
		{"start", `{"level":"info","message":"leading"}`, "", false},
		{"start on the node", `{"level":"info","node":"n1","message":"polling instance metadata"}`, "", false},
		{"trouble", `{"level":"error","error":"receive: refused","message":"read queue"}`, "error: read queue  error=receive: refused", true},
		{"no JSON", "panic: oh\n", "panic: oh", true},
		{"empty", "\n", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, shown := logText(test.line, "n1"); got != test.want || shown != test.shown {
				t.Errorf("got %q, %t, want %q, %t", got, shown, test.want, test.shown)
			}
		})
	}
}
