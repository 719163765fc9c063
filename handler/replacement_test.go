package handler

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// While a replacement cannot be requested, pods wait for it: at no moment does the drain go on without one.
func TestFailedRequestIsWaitedFor(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		var capacities []plan.Capacity
		d := h.opts.Drainer.(*fakeDrainer)
		drainFunc := d.DrainFunc
		d.DrainFunc = func(node string, in plan.NodeState) (plan.Status, bool) {
			capacities = append(capacities, in.Capacity)
			return drainFunc(node, in)
		}
		s.state = "" // the request fails
		accept(t, h, notice(interruption.SpotInterruption))
		for range 3 {
			if _, err := step(t, h); err == nil {
				t.Fatal("the request has not failed")
			}
		}
		if want := slices.Repeat([]plan.Capacity{plan.PendingCapacity}, 3); !slices.Equal(capacities, want) {
			t.Errorf("drained with capacity %v, want it pending each time, and one plan a visit", capacities)
		}
	})
}

// A backend may carry on only once the record names what it has found, so that is written as soon as it is known. That
// the same replacement has been launched is not, nor, for a second, that a backend is still finding out.
func TestRecordNamesTheReplacementAtOnce(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		got := interruption.Replacement{Backend: "asg", State: provisioner.StateRequested}
		h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(interruption.Record) (interruption.Replacement, error) { return got, nil }}
		accept(t, h, notice(interruption.SpotInterruption))
		again, err := step(t, h)
		if err != nil {
			t.Fatal(err)
		}
		if wantPhase(t, f, interruption.Noticed); f.patches != 1 || again > time.Second {
			t.Errorf("%d patches, again in %s, want the notice's, and a second", f.patches, again)
		}
		for _, c := range []struct {
			name, state string
			patches     int // with the notice's
			recorded    string
		}{
			{"group", provisioner.StateRequested, 2, "group"},
			{"group", provisioner.StateRequested, 2, "group"},
			{"group", provisioner.StateLaunched, 2, "group"},
			{"i-2", provisioner.StateReady, 3, "i-2"},
			{"i-2", provisioner.StateReady, 3, "i-2"},
		} {
			got.Name, got.State = c.name, c.state
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
			phase := interruption.Replacing
			if c.state == provisioner.StateReady {
				phase = interruption.Draining
			}
			rec := wantPhase(t, f, phase)
			if rec.Replacement.Name != c.recorded || f.patches != c.patches {
				t.Errorf("%s %s: %d patches, record %s", c.name, c.state, f.patches, rec)
			}
		}
	})
}

// A backend that takes longer than that is recorded as still finding out. What the next process has to know is recorded
// at once.
func TestSlowAnswerIsRecorded(t *testing.T) {
	for name, tt := range map[string]struct {
		got   interruption.Replacement
		after time.Duration
	}{
		"after a second": {interruption.Replacement{State: provisioner.StateRequested}, time.Second},
		"detached":       {interruption.Replacement{State: provisioner.StateRequested, Detached: true}, 0},
		"tried":          {interruption.Replacement{State: provisioner.StateRequested, Tried: "spot"}, 0},
		"launched":       {interruption.Replacement{State: provisioner.StateLaunched}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				tt.got.Backend = "asg"
				h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(interruption.Record) (interruption.Replacement, error) { return tt.got, nil }}
				accept(t, h, notice(interruption.SpotInterruption))
				if _, err := step(t, h); err != nil {
					t.Fatal(err)
				}
				time.Sleep(tt.after)
				if _, err := step(t, h); err != nil {
					t.Fatal(err)
				}
				if rec := wantPhase(t, f, interruption.Replacing); *rec.Replacement != tt.got {
					t.Errorf("record %s, want replacement %+v", rec, tt.got)
				}
			})
		})
	}
}

// Pods wait for a replacement that could not be requested yet, as long as they can.
func TestFailedRequestIsRepeatedWhileDraining(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		s.state = ""
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err == nil {
			t.Fatal("no error, so nothing asks again")
		}
		if s.in.Capacity != plan.PendingCapacity {
			t.Errorf("capacity %v, want pending", s.in.Capacity)
		}
		wantPhase(t, f, interruption.Replacing)
	})
}

func TestNothingToWaitForWithoutReplacement(t *testing.T) {
	for _, state := range []string{provisioner.StateFailed, provisioner.StateUnsupported} {
		story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
			s.state = state
			accept(t, h, notice(interruption.SpotInterruption))
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
			if s.in.Capacity != plan.NoCapacity {
				t.Errorf("%s: capacity %v, want none", state, s.in.Capacity)
			}
			wantPhase(t, f, interruption.Draining)
		})
	}
}

// A pool that came to nothing is recorded on the Node before the drain goes on: no process
// tries it again.
func TestTriedPoolsAreRecordedAtOnce(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		answer := interruption.Replacement{Backend: "b", Name: "first-1", Pool: "first", State: provisioner.StateRequested}
		h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(interruption.Record) (interruption.Replacement, error) { return answer, nil }}
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		answer.Name, answer.Pool, answer.Tried = "second-1", "second", "first"
		for range 2 { // the second time changes nothing
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
			if rec := wantPhase(t, f, interruption.Replacing); *rec.Replacement != answer {
				t.Fatalf("record %s, want %+v", rec, answer)
			}
		}
		if f.patches != 3 {
			t.Errorf("%d patches, want 3: the notice, the first pool, the second", f.patches)
		}
	})
}

// Another reason or capacity of a replacement that is still pending is not worth a write: two replicas that both
// believed they led overwrote each other's without end.
func TestReplacementMoved(t *testing.T) {
	of := func(name, state, reason string) *interruption.Replacement {
		return &interruption.Replacement{Backend: provisioner.Karpenter, Name: name, State: state, Reason: reason}
	}
	for name, tt := range map[string]struct {
		recorded, now *interruption.Replacement
		want          bool
	}{
		"nothing is known":            {of("a", provisioner.StateReady, ""), nil, false},
		"the first":                   {nil, of("a", provisioner.StateRequested, ""), true},
		"the same":                    {of("a", provisioner.StateRequested, ""), of("a", provisioner.StateRequested, ""), false},
		"another":                     {of("a", provisioner.StateRequested, ""), of("b", provisioner.StateRequested, ""), true},
		"launched":                    {of("a", provisioner.StateRequested, ""), of("a", provisioner.StateLaunched, ""), false},
		"Ready":                       {of("a", provisioner.StateRequested, ""), of("a", provisioner.StateReady, ""), true},
		"awaited for another reason":  {of("a", provisioner.StateRequested, ""), of("a", provisioner.StateRequested, "it was requested before"), false},
		"refused for another reason":  {of("", provisioner.StateFailed, "no room"), of("", provisioner.StateFailed, "no capacity"), true},
		"awaited again after refusal": {of("a", provisioner.StateFailed, "no room"), of("a", provisioner.StateRequested, ""), true},
	} {
		if got := replacementMoved(tt.recorded, tt.now); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// A leader that starts with a stale watch asks about the replacement as it was then. Once the watch catches up, the
// record is newer than that answer: a replacement that is Ready is not looked for again.
func TestRecordKnowsMoreThanTheLastAnswer(t *testing.T) {
	ready := interruption.Replacement{Backend: "asg", Name: "i-2", Pool: "group", State: provisioner.StateReady, Detached: true}
	launched := interruption.Replacement{Backend: "asg", Name: "group", Pool: "group", State: provisioner.StateLaunched, Detached: true}
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(rec interruption.Record) (interruption.Replacement, error) {
			if a := rec.Replacement; a != nil && a.State == provisioner.StateReady {
				return *a, nil // that is final
			}
			return launched, nil
		}}
		accept(t, h, notice(interruption.SpotInterruption))
		for range 3 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		if rec := wantPhase(t, f, interruption.Replacing); rec.Replacement == nil || *rec.Replacement != launched {
			t.Fatalf("record %s, want the group named", rec)
		}
		f.change(func(n *corev1.Node) {
			rec, err := interruption.ParseRecord(n.Annotations[interruption.Annotation])
			if err != nil {
				t.Fatal(err)
			}
			rec.Phase, rec.Replacement = interruption.Draining, &ready
			n.Annotations[interruption.Annotation] = rec.String()
		})
		for range 3 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		if rec := wantPhase(t, f, interruption.Draining); rec.Replacement == nil || *rec.Replacement != ready || s.in.Capacity != plan.ReadyCapacity {
			t.Errorf("record %s, capacity %v; want the record to name the new node, and the pods to leave", rec, s.in.Capacity)
		}
	})
}

// The same with a record that names a group while the provisioner still looks for one: an instance leaves its group
// only as long as its record names that.
func TestRecordNamesWhatIsLookedFor(t *testing.T) {
	named := interruption.Replacement{Backend: "asg", Name: "group", Pool: "group", State: provisioner.StateRequested}
	k := known{rec: interruption.Record{Event: "e"}, replacement: &interruption.Replacement{Backend: "asg", State: provisioner.StateRequested}}
	k.takeRecord(interruption.Record{Event: "e", Replacement: &named})
	if *k.replacement != named {
		t.Errorf("the replacement is %+v, want that of the record", k.replacement)
	}
	launched := named
	launched.State = provisioner.StateLaunched
	k.replacement, k.rec.Replacement = &launched, nil
	k.takeRecord(interruption.Record{Event: "e", Replacement: &named})
	if *k.replacement != launched {
		t.Errorf("the replacement is %+v, want it still launched", k.replacement)
	}
}

// A backend that is still finding out, as it has begun with an older record, takes no name off the record.
func TestNameStaysOnTheRecord(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		named := interruption.Replacement{Backend: "asg", Name: "group", Pool: "group", State: provisioner.StateRequested}
		got := named
		h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(interruption.Record) (interruption.Replacement, error) { return got, nil }}
		accept(t, h, notice(interruption.SpotInterruption))
		for _, answer := range []interruption.Replacement{named, {Backend: "asg", State: provisioner.StateRequested}} {
			got = answer
			for range 3 {
				if _, err := step(t, h); err != nil {
					t.Fatal(err)
				}
			}
			if rec := wantPhase(t, f, interruption.Replacing); rec.Replacement == nil || *rec.Replacement != named {
				t.Errorf("after %+v: record %s, want %s named", answer, rec, named.Name)
			}
		}
	})
}

// The watch of a new leader is behind: the last one has detached the instance and written that, and the watch doesn't
// say so yet. What the new leader asks about, and what it writes, rests on the record as it is.
func TestNewLeaderReadsRecordsFirst(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		detached := interruption.Replacement{
			Backend: provisioner.ASG, Name: "group", Pool: "group", State: provisioner.StateLaunched, Detached: true,
		}
		node, _ := f.raw(t)
		rec, err := nodes.Record(node)
		if err != nil {
			t.Fatal(err)
		}
		rec.Replacement = &detached
		node.Annotations[interruption.Annotation] = rec.String()
		f.mu.Lock()
		f.put(node) // and the watch is silent
		f.mu.Unlock()
		var asked []interruption.Replacement
		h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(rec interruption.Record) (interruption.Replacement, error) {
			asked = append(asked, ptr.Deref(rec.Replacement, interruption.Replacement{}))
			return detached, nil
		}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- h.Run(ctx) }()
		time.Sleep(time.Second)
		f.mu.Lock()
		f.watcher.Modify(node.DeepCopy()) // it has caught up
		f.mu.Unlock()
		time.Sleep(time.Second)
		stop()
		<-ended
		if len(asked) == 0 || slices.ContainsFunc(asked, func(a interruption.Replacement) bool { return a != detached }) {
			t.Errorf("asked about %+v, want %+v alone", asked, detached)
		}
		if len(h.memory.ahead) > 0 {
			t.Error("the Node is still kept although the watch has caught up")
		}
		if rec := wantPhase(t, f, interruption.Replacing); !rec.Replacement.Detached {
			t.Errorf("record %s, want it to say that the instance has left its group", rec)
		}
	})
}
