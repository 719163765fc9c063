package status

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/karpenter"
)

// fleet has a node for each thing that an interruption can wait for, and for each end.
func fleet() (all []*corev1.Node, pods map[string][]*corev1.Pod) {
	over := func(phase interruption.Phase, p interruption.Pods, ended int) func(*interruption.Record) {
		return func(r *interruption.Record) { r.Phase, r.Pods, r.Ended = phase, &p, after(ended) }
	}
	total := func(n int) *interruption.Pods { return &interruption.Pods{Total: n} }
	odd := node("other-instance", "batch", func(r *interruption.Record) { r.Instance = "i-0aaaaaaaaaaaaaaaa" })
	off := node("cancelled", "batch", as(interruption.Draining, total(2), nil))
	off.Annotations[interruption.CancelAnnotation] = "true"
	quiet := node("quiet", "batch", func(*interruption.Record) {})
	delete(quiet.Annotations, interruption.Annotation)
	all = []*corev1.Node{
		quiet, odd, off,
		node("just-noticed", "batch", func(*interruption.Record) {}),
		node("booting", "batch", as(interruption.Replacing, total(3), replacement("Requested", ""))),
		node("no-room", "batch", as(interruption.Draining, total(2), replacement("Failed", "limits of pool fallback: cpu"))),
		node("surging", "batch", as(interruption.Draining, total(4), replacement("Ready", ""))),
		node("ending", "batch", as(interruption.Draining, total(3), replacement("Ready", ""))),
		node("refused", "batch", as(interruption.Draining, &interruption.Pods{Total: 1, Refusal: "needs 2 healthy pods and has 2 currently"}, replacement("Ready", ""))),
		node("detaching", "batch", as(interruption.Draining, total(1), replacement("Ready", ""))),
		node("unread", "batch", as(interruption.Draining, total(5), nil)),
		node("first-in-line", "spot", recommended(-60, func(*interruption.Record) {})),
		node("third-in-line", "spot", recommended(-20, func(*interruption.Record) {})),
		node("second-in-line", "spot", recommended(-40, func(*interruption.Record) {})),
		node("has-its-turn", "spot", recommended(-10, func(r *interruption.Record) { r.Begun, r.Phase = after(-9), interruption.Replacing })),
		node("secured", "other", recommended(-9, func(r *interruption.Record) {
			r.Phase, r.Begun, r.Replacement = interruption.Waiting, after(-8), replacement("Requested", "")
		})),
		node("not-replaced", "third", recommended(-8, func(r *interruption.Record) { r.Replacement = replacement("Failed", "no capacity") })),
		node("kept", "fourth", recommended(-6, func(r *interruption.Record) { r.Replacement = replacement("Requested", "") })),
		node("may-stay", "other", recommended(-7, as(interruption.Draining, total(3), replacement("Ready", "")))),
		node("in-days", "batch", func(r *interruption.Record) {
			r.Kind, r.Action, r.Phase, r.Deadline = interruption.ScheduledEvent, interruption.ActionReboot, interruption.Waiting, after(4*24*3600)
		}),
		node("well", "batch", over(interruption.Released, interruption.Pods{Total: 7, Graceful: 7}, 42)),
		node("badly", "batch", over(interruption.DeadlineReached, interruption.Pods{Total: 4, Graceful: 1, Truncated: 1, Left: 2, Refusal: "needs 2 healthy pods"}, 115)),
		node("empty", "batch", over(interruption.Drained, interruption.Pods{}, 10)),
		node("hooked", "batch", func(r *interruption.Record) {
			over(interruption.Released, interruption.Pods{Total: 1, Graceful: 1}, 30)(r)
			r.Hooks = []interruption.Hook{{Group: "group", Name: "hook"}}
		}),
	}
	pods = map[string][]*corev1.Pod{
		"cancelled":    {pod(1, running), pod(2, running)},
		"just-noticed": {pod(1, running), pod(2, daemon)},
		"booting":      {pod(1, running), pod(2, running), pod(3, daemon), pod(4, running)},
		"no-room":      {pod(1, running), pod(2, running)},
		"surging":      {pod(1, surged), pod(2, surged), pod(3, terminating)},
		"ending":       {pod(1, terminating), pod(2, daemon)},
		"refused":      {pod(1, running)},
		"detaching":    {pod(1, daemon)},
		"may-stay":     {pod(1, stays), pod(2, stays)},
	}
	return all, pods
}

// Ten offerings are shown, however many there are, and nothing of them is left out where it is narrow
// but what matters least.
func TestTableOfOfferings(t *testing.T) {
	list := List{Interruptions: []Interruption{}}
	for i := range 14 {
		e := offerings.Entry{Loss: offerings.Loss{Offering: offerings.Offering{Type: fmt.Sprint("m", i, ".large"), Zone: "eu-west-1a"}, Pool: "spot"}}
		e.Lost, e.Hours, e.Last = 2.5, 300, after(-i)
		list.Offerings = append(list.Offerings, e)
	}
	lines := list.Table(0)
	if len(lines) != 2+1+10+1 || lines[2] != "LOST OFFERING  ZONE        POOL  LOST  NODE-HOURS  LAST" ||
		lines[3] != "m0.large       eu-west-1a  spot  2.5   300         2026-03-01T12:00:00Z" || lines[13] != "and 4 more: -o json lists all" {
		t.Errorf("got %q", lines)
	}
	if lines := list.Table(66); lines[3] != "m0.large       eu-west-1a  spot  2.5   2026-03-01T12:00:00Z" {
		t.Errorf("on a narrow terminal: %q", lines)
	}
	faded := list
	faded.Offerings = slices.Clone(list.Offerings)
	faded.Offerings[0].Lost = 2.4
	if !list.Same(faded) {
		t.Error("it is shown again because numbers fade")
	}
	if faded.Offerings[0].Last = after(1); list.Same(faded) {
		t.Error("it is not shown again after another loss")
	}
}

func TestTable(t *testing.T) {
	all, pods := fleet()
	list := List{Interruptions: Of(after(50), all, pods)}
	want := `
NODE            KIND                      PHASE            TIME LEFT  MOVING  NOT EVICTED  REPLACEMENT                         SLACK  WAITS FOR, OR RESULT
booting         spot-interruption         Replacing        70 s       3/3     -            fallback-1 Requested                -      its replacement fallback-1 to be Ready
cancelled       spot-interruption         Draining         70 s       2/2     -            -                                   -      spot-handler to undo what it had set: cancelled
detaching       spot-interruption         Draining         70 s       0/1     -            fallback-1 Ready                    -      volumes to be detached
ending          spot-interruption         Draining         70 s       1/3     -            fallback-1 Ready                    -      1 pod to end
just-noticed    spot-interruption         Noticed          70 s       1/1     -            -                                   -      the drain to begin
no-room         spot-interruption         Draining         70 s       2/2     -            none: limits of pool fallback: cpu  -      the turn or the eviction deadline of 2 pods
refused         spot-interruption         Draining         70 s       1/1     -            fallback-1 Ready                    -      an eviction that was refused: needs 2 healthy pods and has 2 currently
surging         spot-interruption         Draining         70 s       3/4     -            fallback-1 Ready                    -      replacement pods of 2 pods
unread          spot-interruption         Draining         70 s       ?/5     -            -                                   -      its pods to leave
in-days         scheduled-event           Waiting          4 d        -       -            -                                   -      its time: --scheduled-lead before its window
first-in-line   rebalance-recommendation  Waiting          -          -       -            -                                   -      a slot in its pool: 1 under way, 0 ahead of it
has-its-turn    rebalance-recommendation  Replacing        -          -       -            -                                   -      its pods to leave
kept            rebalance-recommendation  Waiting          -          -       -            fallback-1 Requested                -      its next turn: no pod would leave on a recommendation this time
may-stay        rebalance-recommendation  Draining         -          0/3     -            fallback-1 Ready                    -      2 pods to leave, which may stay until an interruption notice
not-replaced    rebalance-recommendation  Waiting          -          -       -            none: no capacity                   -      its next turn: it could not be replaced this time
other-instance  -                         -                -          -       -            -                                   -      nothing: its record is not acted on: read record: it is about instance "i-0aaaaaaaaaaaaaaaa", and the node is i-0123456789abcdef0
second-in-line  rebalance-recommendation  Waiting          -          -       -            -                                   -      a slot in its pool: 1 under way, 1 ahead of it
secured         rebalance-recommendation  Waiting          -          -       -            fallback-1 Requested                -      its replacement fallback-1 to be Ready
third-in-line   rebalance-recommendation  Waiting          -          -       -            -                                   -      a slot in its pool: 1 under way, 2 ahead of it
badly           spot-interruption         DeadlineReached  -          0/4     2            -                                   5 s    1 graceful, 1 grace period cut short, 2 not evicted: needs 2 healthy pods; waits for the node to be terminated
well            spot-interruption         Released         -          0/7     0            -                                   78 s   7 graceful
hooked          spot-interruption         Released         -          0/1     0            -                                   90 s   1 graceful; waits for its lifecycle hook to be completed
empty           spot-interruption         Drained          -          0/0     0            -                                   110 s  no pod had to leave; waits for the node to be terminated
`
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), strings.Join(list.Table(0), "\n")+"\n"); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// On a terminal the table fits, and is coloured.
func TestTableOnATerminal(t *testing.T) {
	all, pods := fleet()
	list := List{Interruptions: Of(after(50), all, pods)}
	for _, width := range []int{80, 100, 120, 160, 240} {
		coloured := false
		for _, line := range list.Table(width) {
			coloured = coloured || strings.Contains(line, "\x1b[3")
			if n := console.Width(line); n > width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
		if !coloured {
			t.Error("without colours")
		}
	}
	for _, line := range list.Table(0) {
		if strings.ContainsRune(line, 0x1b) {
			t.Errorf("coloured, though no terminal: %q", line)
		}
	}
}

// Warnings among a node's Events stand out.
func TestWarningsStandOut(t *testing.T) {
	lines := Node{Events: []Event{{Type: "Normal", Reason: "Cordoned"}, {Type: "Warning", Reason: "EvictionBlocked"}}}.eventLines(80)
	if len(lines) != 4 || strings.Contains(lines[2], "\x1b[") || !strings.Contains(lines[3], "\x1b[") {
		t.Errorf("%q", lines)
	}
}

// What needs attention stands out, and what waits for its turn doesn't.
func TestColours(t *testing.T) {
	for want, all := range map[console.Colour][]Interruption{
		console.Bad: {
			{}, {Kind: "k", Phase: interruption.DeadlineReached, Over: true},
			{Kind: "k", Over: true, Pods: Pods{Pods: interruption.Pods{Left: 1}}}, {Kind: "k", Over: true, Pods: Pods{Pods: interruption.Pods{Truncated: 1}}},
		},
		console.Good:    {{Kind: "k", Phase: interruption.Released, Over: true}},
		"":              {{Kind: "k", Phase: interruption.Waiting}},
		console.Notable: {{Kind: "k", Phase: interruption.Draining}},
	} {
		for _, i := range all {
			if got := i.colour(); got != want {
				t.Errorf("%+v: colour %q, want %q", i, got, want)
			}
		}
	}
}

// What refused the eviction of a single pod is said.
func TestResult(t *testing.T) {
	for _, p := range []interruption.Pods{{Total: 1, Left: 1}, {Total: 1, Forced: 1}} {
		if p.Refusal = "needs 2 healthy pods"; !strings.HasSuffix(result(p), ": needs 2 healthy pods") {
			t.Errorf("%+v: %s", p, result(p))
		}
	}
	if got := result(interruption.Pods{Total: 1, Graceful: 1, Refusal: "needs 2 healthy pods"}); got != "1 graceful" {
		t.Errorf("of a pod that has left after all: %s", got)
	}
}

func TestNothingIsInterrupted(t *testing.T) {
	list := List{Interruptions: Of(noon, nil, nil)}
	if got := list.Table(0); len(got) != 1 || !strings.HasPrefix(got[0], "No node is interrupted") {
		t.Errorf("%q", got)
	}
	if list.Interruptions == nil {
		t.Error("programs read null, want an empty list")
	}
}

// What stays on demand is shown where nothing is interrupted, too, and again when its hours have changed.
func TestHeld(t *testing.T) {
	held := node("held", "fallback", func(*interruption.Record) {})
	held.CreationTimestamp.Time, held.Annotations = noon, map[string]string{
		karpenter.StandsInAnnotation: "batch",
		karpenter.HeldAnnotation:     `{"until":"2026-01-01T13:00:00Z","why":"its spot node was interrupted within 30m0s"}`,
	}
	held.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "fallback-1"}}
	other := held.DeepCopy()
	other.Name, other.CreationTimestamp.Time = "later", after(3600)
	other.Annotations = map[string]string{karpenter.StandsInAnnotation: "batch", karpenter.HeldAnnotation: strings.Repeat("{", 5000)}
	list := func(at int) List { return List{Held: heldOf(after(at), []*corev1.Node{held, other, {}})} }
	got := list(3600 + 900).Table(0)
	if want := "Held on demand until spot pools are calm: 2 replacements, 1.5 node-hours"; len(got) != 7 || got[2] != want ||
		!strings.Contains(got[5], "2026-01-01T13:00:00Z") || !strings.Contains(got[5], "its spot node was interrupted") || !strings.Contains(got[6], "later") {
		t.Errorf("%q, want %q, and why each is held", got, want)
	}
	want := []HeldReplacement{
		{"held", "fallback-1", "batch", noon.UTC(), time.Date(2026, 1, 1, 13, 0, 0, 0, time.UTC), "its spot node was interrupted within 30m0s"},
		{"later", "fallback-1", "batch", after(3600).UTC(), time.Time{}, ""},
	}
	if got := heldOf(noon, []*corev1.Node{other, held}).Oldest; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	many := heldOf(noon, slices.Repeat([]*corev1.Node{held, other}, mostHeld))
	if n := len(many.Oldest); many.Replacements != 2*mostHeld || n != mostHeld || many.Oldest[n-1] != want[0] {
		t.Errorf("%d are listed of %d, the last is %+v; want the %d oldest", n, many.Replacements, many.Oldest[n-1], mostHeld)
	}
	if !list(4500).Same(list(4510)) || list(4500).Same(list(5000)) || heldOf(noon, []*corev1.Node{{}}) != nil {
		t.Error("want a list to differ by a tenth of an hour, and none where nothing is held")
	}
}

// A list is shown again when anything but the time has changed.
func TestSame(t *testing.T) {
	all, pods := fleet()
	list := func(at int) List { return List{Interruptions: Of(after(at), all, pods)} }
	delete(pods, "ending") // its clause counts seconds
	if !list(50).Same(list(51)) {
		t.Error("a second later the list is another")
	}
	pods["booting"] = pods["booting"][1:]
	before := list(50)
	pods["booting"] = pods["booting"][1:]
	if before.Same(list(50)) {
		t.Error("a pod has left, and the list is the same")
	}
}
