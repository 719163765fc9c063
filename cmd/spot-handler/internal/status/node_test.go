package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

var inForce = InForce{Policy: plan.Policy{Strategy: plan.StrategyHold, Margin: 10 * time.Second}, From: "the settings of pod a/b"}

// shown is the status of a node with these pods as people read it after 50 s.
func shown(t sources, pods ...*corev1.Pod) string {
	t.now, t.in = after(50), inForce
	rec, err := interruption.ParseRecord(t.node.Annotations[interruption.Annotation])
	if err == nil {
		in := t.in.interruption(rec, t.now)
		t.survey, _ = plan.NewSurvey(t.now, t.in.Policy, t.node.Name, in, func(s plan.Subject) ([]plan.Event, error) {
			switch {
			case s.Kind == plan.PodsOfNode && len(pods) > 0:
				return plan.AllPods(t.node.Name, pods), nil
			case s.Kind == plan.PreferencesOfNamespace:
				return []plan.Event{plan.LookedUp{Subject: s, Value: plan.Preferences{}}}, nil
			}
			return nil, nil // it cannot be read
		})
	}
	return "\n" + strings.Join(t.status().Lines(t.now, 0), "\n") + "\n"
}

// refusal is an Event in a namespace, about a pod that it names.
func refusal(in, namespace, pod, uid, text string) corev1.Event {
	return corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: in}, Message: "cannot leave: " + text,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: pod, UID: types.UID(uid)},
	}
}

func TestNode(t *testing.T) {
	graceful := func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		*p.Spec.TerminationGracePeriodSeconds = 5
	}
	node := node("node-1", "batch", func(r *interruption.Record) {
		as(interruption.Draining, &interruption.Pods{Total: 4}, replacement("Requested", ""))(r)
		r.Ours = []string{interruption.OursCordon, interruption.OursTaint}
		r.Hooks = []interruption.Hook{{Group: "group", Name: "hook", Until: after(300)}}
	})
	got := shown(sources{
		node: node, surveyed: true,
		refusals: []corev1.Event{
			refusal("mine", "shop", "web-2", "uid-2", "forged"), refusal("mine", "mine", "web-2", "uid-2", "forged"),
			refusal("shop", "shop", "web-2", "uid-1", "of an older pod"), refusal("shop", "shop", "web-3", "uid-2", "of no pod"),
			refusal("shop", "shop", "web-2", "uid-2", "needs 2 healthy pods"),
		},
		events: []corev1.Event{
			{LastTimestamp: metav1.Time{Time: noon}, Type: corev1.EventTypeWarning, Reason: "SpotInterruption", Message: "the notice"},
			{LastTimestamp: metav1.Time{Time: after(1)}, Type: corev1.EventTypeNormal, Reason: "ReplacementRequested", Message: "requested fallback-1"},
		},
	}, pod(1, terminating), pod(2, running), pod(3, graceful), pod(4, daemon))
	want := `
NODE    KIND               PHASE     TIME LEFT  MOVING  NOT EVICTED  REPLACEMENT           SLACK  WAITS FOR, OR RESULT
node-1  spot-interruption  Draining  70 s       3/4     -            fallback-1 Requested  -      its replacement fallback-1 to be Ready

POD         NEXT  AT THE LATEST  GRACE  WHY
shop/web-1  wait  -              30 s   terminating
shop/web-2  hold  in 30 s        30 s   waits for the replacement; refused: needs 2 healthy pods
shop/web-3  hold  in 55 s        5 s    waits for the replacement
(planned with the settings of pod a/b)

AT                    EVENT                 TEXT
2026-03-01T12:00:00Z  SpotInterruption      the notice
2026-03-01T12:00:01Z  ReplacementRequested  requested fallback-1

---
action: terminate
deadline: "2026-03-01T12:02:00Z"
event: event-node-1
hooks:
- group: group
  name: hook
  since: "0001-01-01T00:00:00Z"
  until: "2026-03-01T12:05:00Z"
instance: i-0123456789abcdef0
kind: spot-interruption
noticed: "2026-03-01T12:00:00Z"
ours:
- cordon
- taint
phase: Draining
pods:
  total: 4
received: "2026-03-01T12:00:00Z"
replacement:
  backend: karpenter
  name: fallback-1
  pool: fallback
  state: Requested
source: queue
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Past the eviction deadline, a pod whose eviction is refused is deleted where that was asked for; others are evicted.
func TestRefusedPodPastItsDeadline(t *testing.T) {
	long := func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64(110))
		p.Annotations = map[string]string{plan.BlockedAnnotation: "delete"}
	}
	got := shown(sources{
		node: node("node-1", "batch", as(interruption.Draining, &interruption.Pods{Total: 2}, nil)), surveyed: true,
		refusals: []corev1.Event{refusal("shop", "shop", "web-1", "uid-1", "needs 2 healthy pods")},
	}, pod(1, long), pod(2, long))
	for _, want := range []string{"web-1  delete", "web-2  evict"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// Pods that wait for their eviction deadline have to leave like any other, unless the node is only
// at risk.
func TestPodsThatLeaveLast(t *testing.T) {
	late := []*corev1.Pod{
		pod(1, func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" }),
		pod(2, func(p *corev1.Pod) { p.Annotations = map[string]string{plan.WhenAnnotation: "last"} }),
		pod(3, func(p *corev1.Pod) { p.Labels = map[string]string{plan.GangLabel: "g"} }),
	}
	for want, change := range map[int]func(*interruption.Record){3: func(*interruption.Record) {}, 0: recommended(0, func(*interruption.Record) {})} {
		n := node("node-1", "batch", change)
		if got := Of(noon, []*corev1.Node{n}, map[string][]*corev1.Pod{n.Name: late})[0].Pods.Here; *got != want {
			t.Errorf("%d pods have to leave, want %d", *got, want)
		}
	}
}

// What is not known is not shown as if it were.
func TestNodeThatCouldNotBeRead(t *testing.T) {
	draining := node("node-1", "batch", as(interruption.Draining, &interruption.Pods{Total: 1}, replacement("Ready", "")))
	got := shown(sources{node: draining}, pod(1, running))
	if want := "not known: see what could not be read"; !strings.Contains(got, want) {
		t.Errorf("does not say %q:\n%s", want, got)
	}
	got = shown(sources{node: draining})
	if !strings.Contains(got, "  ?/1 ") {
		t.Errorf("shows pods that could not be read:\n%s", got)
	}
}

func TestOtherNodes(t *testing.T) {
	quiet := node("quiet", "batch", func(*interruption.Record) {})
	delete(quiet.Annotations, interruption.Annotation)
	odd := node("odd", "batch", func(r *interruption.Record) { r.Instance = "i-0aaaaaaaaaaaaaaaa" })
	over := node("over", "batch", func(r *interruption.Record) {
		r.Phase, r.Pods, r.Ended = interruption.Released, &interruption.Pods{Total: 3, Graceful: 2, Forced: 1}, after(42)
	})
	waiting := node("waiting", "spot", recommended(-10, func(*interruption.Record) {}))
	first := node("first", "spot", recommended(-20, func(*interruption.Record) {}))
	cordoned := node("cordoned", "spot", recommended(-10, func(r *interruption.Record) { r.Phase = interruption.Noticed }))
	for name, tt := range map[string]struct {
		sources sources
		want    string
		pods    []*corev1.Pod
	}{
		"none":    {sources: sources{node: quiet}, want: "\nNo record of an interruption stands on node quiet.\n"},
		"not its": {sources: sources{node: odd}, want: "  nothing: its record is not acted on: "},
		"over":    {sources: sources{node: over}, want: "over  spot-interruption  Released  -          0/3     0            -            78 s   2 graceful, 1 force-deleted\n"},
		"in line": {
			sources: sources{node: waiting, peers: []*corev1.Node{first}, surveyed: true},
			pods:    []*corev1.Pod{pod(1, running)},
			want:    "  a slot in its pool: 0 under way, 1 ahead of it\n\nPOD         NEXT  AT THE LATEST  GRACE  WHY\nshop/web-1  hold  -              30 s   the drain has not begun\n",
		},
		"only cordoned": {
			sources: sources{node: cordoned, surveyed: true},
			pods:    []*corev1.Pod{pod(1, running)},
			want:    "shop/web-1  hold  -              30 s   an interruption notice: its node is only cordoned\n",
		},
	} {
		if got := shown(tt.sources, tt.pods...); !strings.Contains(got, tt.want) {
			t.Errorf("%s: does not say\n%s\nbut%s", name, tt.want, got)
		}
	}
}

// The status of a node is about one namespace, where it is asked for.
func TestNodeOfANamespace(t *testing.T) {
	elsewhere := pod(2, func(p *corev1.Pod) { p.Namespace = "bank" })
	got := shown(sources{
		node: node("node-1", "batch", as(interruption.Draining, nil, nil)), namespace: "bank",
	}, pod(1, running), elsewhere)
	if strings.Contains(got, "shop/web-1") || !strings.Contains(got, "bank/web-2") {
		t.Errorf("want the pods of bank alone:\n%s", got)
	}
}
