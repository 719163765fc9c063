package provisioner

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// fakeBackend answers what it is told to.
type fakeBackend struct {
	name     string
	made     bool
	answer   interruption.Replacement
	err      error
	asked    []*interruption.Replacement // what the records said
	released int
}

var _ Backend = (*fakeBackend)(nil)

func (f *fakeBackend) Name() string { return f.name }

func (f *fakeBackend) Made(*corev1.Node) bool { return f.made }

func (f *fakeBackend) Run(context.Context) error { return nil }

func (f *fakeBackend) Terminate(context.Context, *corev1.Node, interruption.Record) error {
	f.released++
	return f.err
}

func (f *fakeBackend) Request(_ context.Context, _ *corev1.Node, rec interruption.Record, _ Need) (interruption.Replacement, error) {
	f.asked = append(f.asked, rec.Replacement)
	r := f.answer
	r.Backend = f.name
	return r, f.err
}

// bench is a Provisioner over three fakes.
type bench struct {
	*testing.T
	*Provisioner
	karpenter, asg, placeholder *fakeBackend
	registry                    *prometheus.Registry
	log                         bytes.Buffer
}

func newBench(t *testing.T, choice string) *bench {
	t.Helper()
	b := &bench{T: t, registry: prometheus.NewRegistry()}
	no := interruption.Replacement{State: StateUnsupported, Reason: "not mine"}
	b.karpenter = &fakeBackend{name: Karpenter, answer: no}
	b.asg = &fakeBackend{name: ASG, answer: no}
	b.placeholder = &fakeBackend{name: Placeholder, answer: no}
	b.Provisioner = New(Options{
		Choice: cmp.Or(choice, Auto), Backends: []Backend{b.karpenter, b.asg, b.placeholder}, Room: &fakeRoom{},
		Registerer: b.registry, Logger: zerolog.New(&b.log),
	})
	return b
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// Nobody is there to ask: the Node says so.
func TestNobodyToAsk(t *testing.T) {
	p := New(Options{Choice: Auto, Room: &fakeRoom{}, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop()})
	rec := interruption.Record{}
	want := interruption.Replacement{Backend: None, State: StateUnsupported, Reason: "there is no provisioner"}
	if got := (&bench{T: t, Provisioner: p}).ask("node-a", &rec); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// ask keeps the answer in the record, as the handler does.
func (b *bench) ask(name string, rec *interruption.Record) interruption.Replacement {
	b.Helper()
	r, err := b.Request(b.Context(), node(name), *rec, Need{})
	if err != nil {
		b.Fatal(err)
	}
	rec.Replacement = &r
	return r
}

func (b *bench) wantCount(backend, result string, want float64) {
	b.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "spot_handler_replacements_total" && labels["backend"] == backend && labels["result"] == result {
				if got := m.GetCounter().GetValue(); got != want {
					b.Errorf("replacements_total{%s,%s} is %v, want %v", backend, result, got, want)
				}
				return
			}
		}
	}
	b.Errorf("no replacements_total{%s,%s}", backend, result)
}

func (b *bench) wantLog(lines int, contains ...string) {
	b.Helper()
	text := b.log.String()
	if got := strings.Count(text, "\n"); got != lines {
		b.Errorf("%d log lines, want %d:\n%s", got, lines, text)
	}
	for _, c := range contains {
		if !strings.Contains(text, c) {
			b.Errorf("log lacks %q:\n%s", c, text)
		}
	}
}

func TestDispatch(t *testing.T) {
	requested := interruption.Replacement{State: StateRequested, Name: "r-1"}
	unnamed := interruption.Replacement{State: StateRequested}
	full := interruption.Replacement{State: StateFailed, Reason: "full"}
	for name, tt := range map[string]struct {
		choice string
		set    func(*bench)
		had    *interruption.Replacement
		want   interruption.Replacement
		why    string
	}{
		"who made it is asked alone, and its no is final": {
			set:  func(b *bench) { b.asg.made, b.placeholder.answer = true, requested },
			want: interruption.Replacement{Backend: ASG, State: StateUnsupported, Reason: "not mine"}, why: "it made the node",
		},
		"first that can": {
			set:  func(b *bench) { b.placeholder.answer = requested },
			want: interruption.Replacement{Backend: Placeholder, State: StateRequested, Name: "r-1"},
			why:  "the first that can: karpenter: not mine; asg: not mine; placeholder",
		},
		"failure is an answer": {
			set:  func(b *bench) { b.asg.answer, b.placeholder.answer = full, requested },
			want: interruption.Replacement{Backend: ASG, State: StateFailed, Reason: "full"}, why: "asg",
		},
		"nobody can": {
			set:  func(*bench) {},
			want: interruption.Replacement{Backend: None, State: StateUnsupported, Reason: "karpenter: not mine; asg: not mine; placeholder: not mine"}, why: "none can",
		},
		"chosen": {
			choice: Placeholder, set: func(b *bench) { b.karpenter.made, b.placeholder.answer = true, requested },
			want: interruption.Replacement{Backend: Placeholder, State: StateRequested, Name: "r-1"}, why: "--provisioner=placeholder",
		},
		"switched off": {
			choice: None, set: func(b *bench) { b.karpenter.made = true },
			want: interruption.Replacement{Backend: None, State: StateUnsupported, Reason: "replacement is switched off"}, why: "--provisioner=none",
		},
		"what was asked for stays its backend's": {
			choice: Karpenter, set: func(b *bench) { b.asg.answer = requested },
			had:  &interruption.Replacement{Backend: ASG, State: StateRequested, Name: "r-1"},
			want: interruption.Replacement{Backend: ASG, State: StateRequested, Name: "r-1"},
		},
		"nobody can follow what was asked for": {
			set: func(*bench) {}, had: &interruption.Replacement{Backend: "old", State: StateLaunched, Name: "r-1"},
			want: interruption.Replacement{Backend: "old", State: StateFailed, Name: "r-1", Reason: "provisioner old is not here to follow it"},
		},
		"looked up in vain: the next": {
			set:  func(b *bench) { b.placeholder.answer = requested },
			had:  &interruption.Replacement{Backend: ASG, State: StateRequested},
			want: interruption.Replacement{Backend: Placeholder, State: StateRequested, Name: "r-1"},
		},
		"still looked up": {
			set:  func(b *bench) { b.asg.answer, b.placeholder.answer = unnamed, requested },
			had:  &interruption.Replacement{Backend: ASG, State: StateRequested},
			want: interruption.Replacement{Backend: ASG, State: StateRequested},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tt.choice)
			tt.set(b)
			rec := interruption.Record{Instance: "i-1", Replacement: tt.had}
			if got := b.ask("node-1", &rec); got != tt.want {
				t.Errorf("Request: %+v, want %+v", got, tt.want)
			}
			if tt.why != "" {
				b.wantLog(1, tt.why)
			}
			for _, f := range []*fakeBackend{b.karpenter, b.asg, b.placeholder} {
				for _, prev := range f.asked {
					if prev != nil && prev.Backend != f.name {
						t.Errorf("%s was shown the replacement of %s", f.name, prev.Backend)
					}
				}
			}
		})
	}
}

func TestReleaseAsksEveryBackend(t *testing.T) {
	b := newBench(t, Karpenter)
	b.asg.err = errors.New("throttled")
	if err := b.Terminate(t.Context(), node("node-1"), interruption.Record{}); !errors.Is(err, b.asg.err) {
		t.Errorf("error %v, want %v", err, b.asg.err)
	}
	if b.karpenter.released+b.asg.released+b.placeholder.released != 3 {
		t.Error("not every backend was asked")
	}
	off := newBench(t, None)
	if err := off.Terminate(t.Context(), node("node-1"), interruption.Record{}); err != nil || off.karpenter.released != 0 {
		t.Errorf("Release with none: %v", err)
	}
}

// fakeRoom answers what it is told to.
type fakeRoom struct {
	fit       Fit
	err       error
	forgotten int
}

var _ Room = (*fakeRoom)(nil)

func (f *fakeRoom) Fit(context.Context, *corev1.Node, []*corev1.Pod) (Fit, error) {
	return f.fit, f.err
}

func (f *fakeRoom) Forget(string) { f.forgotten++ }

// Where there is room nobody is asked for a replacement, until the room has gone. One that was
// requested is followed, room or not.
func TestNoReplacementWhereThereIsRoom(t *testing.T) {
	b, room := newBench(t, Auto), &fakeRoom{fit: Fit{Known: true}}
	b.opts.Room = room
	b.karpenter.answer = interruption.Replacement{State: StateRequested, Name: "claim"}
	rec := interruption.Record{Instance: "i-1"}
	ask := func(pods int) interruption.Replacement {
		t.Helper()
		r, err := b.Request(t.Context(), node("a"), rec, Need{Moving: make([]*corev1.Pod, pods)})
		if err != nil {
			t.Fatal(err)
		}
		rec.Replacement = &r
		return r
	}
	for _, pods := range []int{2, 1, 0} {
		if r := ask(pods); r.Backend != Spare || r.State != StateReady || r.Name != "" {
			t.Errorf("%d pods: %+v, want none", pods, r)
		}
	}
	b.wantCount(Spare, "ready", 1)
	if n := strings.Count(b.log.String(), "provisioner chosen"); n != 1 {
		t.Errorf("said %d times, want once: %s", n, b.log.String())
	}
	room.fit.Against = "no room"
	if r := ask(2); r.Backend != Karpenter || r.Name != "claim" {
		t.Errorf("%+v, want a replacement when the room has gone", r)
	}
	room.fit = Fit{Known: true}
	if r := ask(2); r.Backend != Karpenter {
		t.Errorf("%+v, want what was requested", r)
	}
	if err := b.Terminate(t.Context(), node("a"), rec); err != nil || room.forgotten != 1 {
		t.Errorf("%v, forgotten %d times", err, room.forgotten)
	}

	rec = interruption.Record{Instance: "i-2"}
	room.fit = Fit{}
	for range 2 {
		if r := ask(1); r.Backend != Spare || r.State != StateRequested {
			t.Errorf("%+v, want nothing requested until it is known", r)
		}
	}
	b.wantCount(Spare, "requested", 0)
	room.fit = Fit{Known: true}
	if r := ask(1); r.Backend != Spare || r.State != StateReady {
		t.Errorf("%+v, want none when it is known", r)
	}
	b.wantCount(Spare, "ready", 2)
	if b.Forget("a"); room.forgotten != 2 {
		t.Errorf("the promise is forgotten %d times, want twice", room.forgotten)
	}

	rec = interruption.Record{Instance: "i-2"}
	room.err = errors.New("away")
	if r := ask(1); r.Backend != Karpenter {
		t.Errorf("%+v, want a replacement where nobody can tell", r)
	}
	b.opts.Choice = None
	room.err, rec.Replacement = nil, nil
	if r := ask(1); r.State != StateUnsupported {
		t.Errorf("%+v, want what --provisioner=none says", r)
	}
}

// What pods can wait for follows from the replacement alone.
func TestCapacity(t *testing.T) {
	want := map[string]plan.Capacity{
		StateRequested: plan.PendingCapacity, StateLaunched: plan.PendingCapacity, StateReady: plan.ReadyCapacity,
		StateFailed: plan.NoCapacity, StateUnsupported: plan.NoCapacity,
	}
	for _, state := range States() {
		if got := CapacityOf(&interruption.Replacement{State: state}); got != want[state] {
			t.Errorf("%s: %v, want %v", state, got, want[state])
		}
	}
	if got := CapacityOf(nil); got != plan.PendingCapacity {
		t.Errorf("not asked for yet: %v", got)
	}
}

// Without a provisioner nothing runs that would follow replacements; with one, its backends do. Both last until ctx ends.
func TestRun(t *testing.T) {
	for choice, want := range map[string]bool{None: false, Auto: true} {
		synctest.Test(t, func(t *testing.T) {
			ran := &running{}
			p := New(Options{Choice: choice, Backends: []Backend{ran}, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop()})
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			began := time.Now()
			if err := p.Run(ctx); err != nil || time.Since(began) != time.Minute {
				t.Errorf("choice %q: %v after %s, want it to last until ctx ends", choice, err, time.Since(began))
			}
			if ran.ran != want {
				t.Errorf("choice %q: the backend has run: %t", choice, ran.ran)
			}
		})
	}
}

// running is a backend that notes that it runs.
type running struct {
	fakeBackend
	ran bool
}

func (r *running) Run(ctx context.Context) error {
	r.ran = true
	<-ctx.Done()
	return nil
}
