package dryrun

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// request always has a pool.
func request(context.Context, *corev1.Node, interruption.Record, provisioner.Need) (interruption.Replacement, error) {
	return interruption.Replacement{Backend: "karpenter", Name: "new", Pool: "fallback", State: provisioner.StateRequested}, nil
}

// fakeNodes is a cluster of one node. Nothing here can write.
type fakeNodes struct{}

func (fakeNodes) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	return &corev1.NodeList{Items: []corev1.Node{{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a"}, Spec: corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/i-a"},
	}}}, nil
}

func (fakeNodes) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "", nil) // like an old server: list instead
	}
	return watch.NewFake(), nil
}

type dry struct {
	*Accepter
	log *bytes.Buffer
}

// setup is what a test sets.
type setup struct {
	Options
	rules interruption.Rules
}

func newDry(t *testing.T, change func(*setup)) *dry {
	t.Helper()
	d := &dry{log: &bytes.Buffer{}}
	index := nodes.New(fakeNodes{}, "", zerolog.Nop())
	go func() { _ = index.Run(t.Context()) }()
	if err := index.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	survey := func(_ context.Context, node string, in plan.NodeState) (*plan.Survey, error) {
		return plan.NewSurvey(time.Now(), plan.Policy{Strategy: plan.StrategyHold}, node, in, onePod)
	}
	o := &setup{
		Options: Options{
			Index: index, ReleaseNode: true, Survey: survey, Request: request, Logger: zerolog.New(d.log),
		},
		rules: interruption.Rules{Rebalance: interruption.RebalanceReplace, ScheduledLead: 30 * time.Minute},
	}
	if change != nil {
		change(o)
	}
	o.Rules = func(*corev1.Node, bool) (interruption.Rules, error) { return o.rules, nil }
	d.Accepter = New(o.Options)
	return d
}

// onePod is a cluster with a pod on a node, and with nothing around it.
func onePod(s plan.Subject) ([]plan.Event, error) {
	switch s.Kind {
	case plan.PodsOfNode:
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0"}, Spec: corev1.PodSpec{NodeName: s.Name.Name}}
		return plan.AllPods(s.Name.Name, []*corev1.Pod{pod}), nil
	case plan.Budgets:
		return []plan.Event{plan.BudgetsListed{Namespace: s.Name.Namespace}}, nil
	}
	return []plan.Event{plan.LookedUp{Subject: s, Value: plan.Preferences{}}}, nil
}

// story accepts a notice and returns what was logged, without "dry run: ", and the lines.
func (d *dry) story(t *testing.T, n interruption.Notice) (verdict interruption.Verdict, logged []string, lines map[string]map[string]any) {
	t.Helper()
	d.log.Reset()
	n.Source, n.Noticed, n.Received = interruption.Queue, time.Now(), time.Now()
	verdict, err := d.Accept(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	lines = map[string]map[string]any{}
	for text := range strings.Lines(d.log.String()) {
		line := map[string]any{}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line["level"] == "debug" {
			continue
		}
		message := strings.TrimPrefix(line["message"].(string), "dry run: ")
		logged, lines[message] = append(logged, message), line
	}
	return verdict, logged, lines
}

const (
	logsRecord, logsWait, logsCordon = "would record", "would wait", "would cordon"
	logsRequest, logsPod, logsHook   = "would request replacement", "pod", "would complete lifecycle hook"
	logsKeep, logsRelease            = "would keep node", "would release node"
)

// Every kind has its story, in the order in which it would happen.
func TestDryRunOfEachKind(t *testing.T) {
	soon, later := time.Now().Add(2*time.Minute), time.Now().Add(48*time.Hour)
	hook := &interruption.Hook{Group: "workers", Name: "drain", Token: "t"}
	whole := []string{logsRecord, logsCordon, logsRequest, logsPod, logsRelease}
	for name, tt := range map[string]struct {
		notice interruption.Notice
		change func(*setup)
		want   []string
	}{
		"spot interruption": {interruption.Notice{Kind: interruption.SpotInterruption, Action: interruption.ActionTerminate, Deadline: soon}, nil, whole},
		"spot interruption, stop": {interruption.Notice{Kind: interruption.SpotInterruption, Action: interruption.ActionStop, Deadline: soon}, nil,
			[]string{logsRecord, logsCordon, logsRequest, logsPod, logsKeep}},
		"spot interruption, hibernate": {interruption.Notice{Kind: interruption.SpotInterruption, Action: interruption.ActionHibernate, Deadline: time.Now()}, nil,
			[]string{logsRecord, logsCordon, logsRequest, logsPod, logsKeep}},
		"capacity reservation": {interruption.Notice{Kind: interruption.CapacityReservationInterruption, Action: interruption.ActionTerminate, Deadline: soon}, nil, whole},
		"rebalance": {interruption.Notice{Kind: interruption.RebalanceRecommendation}, nil,
			[]string{logsRecord, logsWait, logsCordon, logsRequest, logsPod, logsRelease}},
		"rebalance, cordon": {interruption.Notice{Kind: interruption.RebalanceRecommendation}, func(o *setup) { o.rules.Rebalance = interruption.RebalanceCordon },
			[]string{logsRecord, logsCordon, "would move no pod"}},
		"rebalance, ignore": {interruption.Notice{Kind: interruption.RebalanceRecommendation}, func(o *setup) { o.rules.Rebalance = interruption.RebalanceIgnore },
			[]string{"would do nothing"}},
		"maintenance": {interruption.Notice{Kind: interruption.ScheduledEvent, Action: interruption.ActionReboot, Deadline: later}, nil,
			[]string{logsRecord, logsWait, logsCordon, logsRequest, logsPod, logsKeep}},
		"retirement": {interruption.Notice{Kind: interruption.ScheduledEvent, Action: interruption.ActionRetirement, Deadline: soon}, nil, whole},
		"hook": {interruption.Notice{Kind: interruption.InstanceTerminating, Deadline: soon, Hook: hook}, nil,
			[]string{logsRecord, logsCordon, logsRequest, logsPod, logsHook, logsRelease}},
		"hook, cordon only": {interruption.Notice{Kind: interruption.InstanceTerminating, Deadline: soon, Hook: hook}, func(o *setup) { o.CordonOnly = true },
			[]string{logsRecord, logsCordon, "would move no pod", logsHook}},
		"shutting down": {interruption.Notice{Kind: interruption.StateChange, Action: interruption.ActionShuttingDown, Deadline: time.Now()}, nil, whole},
		"stopped": {interruption.Notice{Kind: interruption.StateChange, Action: interruption.ActionStopped, Deadline: time.Now()}, nil,
			[]string{logsRecord, logsCordon, logsRequest, logsPod, logsKeep}},
		"terminated": {interruption.Notice{Kind: interruption.StateChange, Action: interruption.ActionTerminated, Deadline: time.Now()}, nil,
			[]string{logsRecord, logsCordon, "would mark node out of service", logsRequest, logsPod, logsRelease}},
		"stale": {interruption.Notice{Kind: interruption.SpotInterruption, InstanceID: "i-a", Deadline: time.Now().Add(-time.Hour)}, nil,
			[]string{logsRecord, logsCordon, logsRequest, logsPod, logsRelease}}, // the tests' Node is not Ready
	} {
		t.Run(name, func(t *testing.T) {
			d := newDry(t, tt.change)
			tt.notice.EventID, tt.notice.InstanceID = "event-1", "i-a"
			_, logged, lines := d.story(t, tt.notice)
			if diff := cmp.Diff(tt.want, logged); diff != "" {
				t.Fatalf("story (-want +got):\n%s", diff)
			}
			for message, line := range lines {
				if line["node"] != "node-a" || line["kind"] != string(tt.notice.Kind) {
					t.Errorf("%s: of node %v and kind %v", message, line["node"], line["kind"])
				}
			}
			if recorded, ok := lines[logsRecord]; ok && (recorded["event_id"] != "event-1" || recorded["ec2_action"] != tt.notice.Action) {
				t.Errorf("recorded %v", recorded)
			}
			if name == "maintenance" {
				if want := later.Add(-30 * time.Minute).Format(time.RFC3339); lines[logsWait]["begin"] != want {
					t.Errorf("begins %v, want %s", lines[logsWait]["begin"], want)
				}
			}
			if verdict, logged, _ := d.story(t, tt.notice); name != "rebalance, ignore" && (verdict != interruption.Duplicate || len(logged) > 0) {
				t.Errorf("the second time: %s, %v", verdict, logged)
			}
		})
	}
}

func TestDryRunOfWithdrawal(t *testing.T) {
	d := newDry(t, nil)
	n := interruption.Notice{
		Kind: interruption.ScheduledEvent, EventID: "event-1", InstanceID: "i-a", Action: interruption.ActionReboot, Deadline: time.Now().Add(48 * time.Hour),
	}
	off := n
	off.Withdrawn = true
	another := off
	another.EventID = "event-2"
	if verdict, logged, _ := d.story(t, another); verdict != interruption.Ignored || !cmp.Equal(logged, []string{"would do nothing"}) {
		t.Errorf("of what was never announced: %s, %v", verdict, logged)
	}
	d.story(t, n)
	want := []string{"would take back what was announced", "would cancel the drain and undo what was set"}
	if verdict, logged, _ := d.story(t, off); verdict != interruption.Accepted || !cmp.Equal(logged, want) {
		t.Errorf("%s, %v", verdict, logged)
	}
	if verdict, logged, _ := d.story(t, n); verdict != interruption.Accepted || len(logged) < 4 {
		t.Errorf("announced again: %s, %v", verdict, logged)
	}
}

// Like a real run, a dry run remembers a withdrawal that comes before its announcement.
func TestDryRunOfWithdrawalThatComesFirst(t *testing.T) {
	d := newDry(t, nil)
	n := interruption.Notice{
		Kind: interruption.ScheduledEvent, Source: interruption.Queue, EventID: "event-1", InstanceID: "i-a",
		Action: interruption.ActionReboot, Deadline: time.Now().Add(48 * time.Hour),
	}
	off := n
	off.Withdrawn = true
	d.story(t, off)
	if verdict, logged, _ := d.story(t, n); verdict != interruption.Duplicate {
		t.Errorf("%s, %v", verdict, logged)
	}
}

// Hooks without a drain: for an instance that is no Node, and for one that starts.
func TestDryRunOfHooksAlone(t *testing.T) {
	d := newDry(t, nil)
	for name, n := range map[string]interruption.Notice{
		"unknown": {Kind: interruption.InstanceTerminating, InstanceID: "i-b", Hook: &interruption.Hook{Group: "workers", Name: "drain"}},
		"launch":  {Kind: interruption.InstanceTerminating, InstanceID: "i-a", Hook: &interruption.Hook{Group: "workers", Name: "drain", Launching: true}},
		"launch of one that is no Node yet": {
			Kind: interruption.InstanceTerminating, InstanceID: "i-b", Hook: &interruption.Hook{Group: "workers", Name: "drain", Launching: true},
		},
	} {
		verdict, logged, lines := d.story(t, n)
		want, why := interruption.Completed, "no Node of this cluster is the instance"
		switch {
		case n.Hook.Launching && n.InstanceID == "i-a":
			want, why = interruption.Ignored, "as soon as its Node is Ready; there is one"
		case n.Hook.Launching:
			want, why = interruption.Ignored, "as soon as its Node is Ready"
		}
		if got := lines[logsHook]["reason"]; got != why {
			t.Errorf("%s: reason %q, want %q", name, got, why)
		}
		if verdict != want || !cmp.Equal(logged, []string{logsHook}) || lines[logsHook]["group"] != "workers" || lines[logsHook]["hook"] != "drain" {
			t.Errorf("%s: %s, %v", name, verdict, lines)
		}
	}
	if verdict, logged, _ := d.story(t, interruption.Notice{Kind: interruption.SpotInterruption, InstanceID: "i-b"}); verdict != interruption.Unknown || len(logged) > 0 {
		t.Errorf("%s, %v", verdict, logged)
	}
}

// A notice that can't be explained because the API server is unreachable counts as new when it comes again.
func TestDryRunThatFails(t *testing.T) {
	unreachable, fails := errors.New("API server is unreachable"), true
	d := newDry(t, func(o *setup) {
		survey := o.Survey
		o.Survey = func(ctx context.Context, node string, in plan.NodeState) (*plan.Survey, error) {
			if fails {
				return nil, unreachable
			}
			return survey(ctx, node, in)
		}
	})
	n := interruption.Notice{Kind: interruption.SpotInterruption, EventID: "e", InstanceID: "i-a", Deadline: time.Now().Add(2 * time.Minute)}
	if _, err := d.Accept(t.Context(), n); !errors.Is(err, unreachable) {
		t.Fatalf("error %v, want the survey's", err)
	}
	fails = false
	if verdict, logged, _ := d.story(t, n); verdict != interruption.Accepted || len(logged) == 0 {
		t.Errorf("%s, %v; want it accepted and explained", verdict, logged)
	}
}

// A group says nothing about how long its hook waits: it would be asked, and until then is taken to wait for as long as
// groups do by default. All other deadlines are the notice's.
func TestDryRunOfHooksDeadline(t *testing.T) {
	var got time.Time
	d := newDry(t, func(o *setup) {
		survey := o.Survey
		o.Survey = func(ctx context.Context, node string, in plan.NodeState) (*plan.Survey, error) {
			got = in.Deadline
			return survey(ctx, node, in)
		}
	})
	soon := time.Now().Add(2 * time.Minute).Truncate(time.Second)
	hook := &interruption.Hook{Group: "workers", Name: "drain", Token: "t"}
	for name, tt := range map[string]struct {
		n    interruption.Notice
		want func() time.Time
	}{
		"unknown": {
			interruption.Notice{Kind: interruption.InstanceTerminating, EventID: "e", InstanceID: "i-a", Hook: hook},
			func() time.Time { return time.Now().Add(interruption.UnknownHookTimeout) },
		},
		"known": {
			interruption.Notice{Kind: interruption.InstanceTerminating, EventID: "e", InstanceID: "i-a", Hook: hook, Deadline: soon},
			func() time.Time { return soon },
		},
		"of no hook": {
			interruption.Notice{Kind: interruption.RebalanceRecommendation, EventID: "e", InstanceID: "i-a"},
			func() time.Time { return time.Time{} },
		},
	} {
		got = time.Time{}
		d.seen.Remove("node-a")
		d.story(t, tt.n)
		if want := tt.want(); got.Sub(want).Abs() > 10*time.Second {
			t.Errorf("%s: planned with the deadline %s, want %s", name, got, want)
		}
	}
}

// Nodes come and go during a dry run: those that were interrupted long ago are forgotten.
func TestDryRunForgetsNodesInTime(t *testing.T) {
	d := newDry(t, nil)
	for i := range maxSeen {
		d.seen.Add(fmt.Sprint("gone-", i), interruption.Record{})
	}
	d.story(t, interruption.Notice{Kind: interruption.SpotInterruption, EventID: "event-1", InstanceID: "i-a"})
	_, there := d.seen.Get("node-a")
	if _, first := d.seen.Get("gone-0"); d.seen.Len() != maxSeen || !there || first {
		t.Errorf("%d nodes remembered, node-a among them: %t, and the first: %t", d.seen.Len(), there, first)
	}
}

// A replacement that the record names is not requested again; without one the pods do not wait.
func TestDryRunOfReplacement(t *testing.T) {
	named := &interruption.Replacement{Backend: provisioner.ASG, Name: "workers", Pool: "workers", State: provisioner.StateLaunched}
	refused := interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateUnsupported, Reason: "the instance is in no Auto Scaling group"}
	room := interruption.Replacement{Backend: provisioner.Spare, State: provisioner.StateReady, Reason: "the pods fit on nodes that are there"}
	for name, tt := range map[string]struct {
		recorded *interruption.Replacement
		answer   interruption.Replacement
		want     interruption.Replacement
		requests int
		pod      string
	}{
		"named":                 {recorded: named, want: *named, pod: "waits for the replacement"},
		"looked for":            {recorded: &interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateRequested}, answer: refused, want: refused, requests: 1, pod: "nothing to wait for"},
		"nothing requested yet": {answer: refused, want: refused, requests: 1, pod: "nothing to wait for"},
		"room elsewhere":        {answer: room, want: room, requests: 1, pod: "replacement is ready"},
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			d := newDry(t, func(o *setup) {
				o.Request = func(context.Context, *corev1.Node, interruption.Record, provisioner.Need) (interruption.Replacement, error) {
					requests++
					return tt.answer, nil
				}
			})
			notice := interruption.Notice{Kind: interruption.SpotInterruption, EventID: "event-1", InstanceID: "i-a", Action: interruption.ActionTerminate, Deadline: time.Now().Add(2 * time.Minute)}
			recommended := interruption.NewRecord(interruption.Notice{Kind: interruption.RebalanceRecommendation, EventID: "event-0", InstanceID: "i-a", Noticed: time.Now(), Received: time.Now()})
			recommended.Replacement = tt.recorded
			d.seen.Add("node-a", recommended)
			_, _, lines := d.story(t, notice)
			if got := lines[logsRequest]; got["backend"] != tt.want.Backend || got["reason"] != tt.want.Reason || got["replacement"] != tt.want.Name || requests != tt.requests {
				t.Errorf("after %d requests, want %d: %v", requests, tt.requests, got)
			}
			if reason := lines[logsPod]["reason"]; reason != tt.pod {
				t.Errorf("the pod: %v, want: %s", reason, tt.pod)
			}
		})
	}
}
