package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
	"spot-handler/handler/dryrun"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

// claimed is a spot node of the pool batch, as Karpenter makes them.
func claimed(name string) *corev1.Node {
	n := aNode(name, "8")
	n.Spec.ProviderID = "aws:///eu-west-1a/i-" + fmt.Sprintf("%017d", len(name))
	n.Labels["karpenter.sh/nodepool"], n.Labels["karpenter.sh/capacity-type"] = "batch", "spot"
	n.Labels[corev1.LabelInstanceTypeStable] = "m5.large"
	return n
}

func (d *Daemon) withRules(rules interruption.Rules) *Daemon {
	d.Rules = func(*corev1.Node, bool) (interruption.Rules, error) { return rules, nil }
	d.Policy, d.Settings = plan.Policy{Strategy: plan.StrategySurge, Blocked: plan.Leave, Margin: 10 * time.Second}, "the default settings"
	d.Marked, d.Offerings = map[string]*corev1.Node{}, offerings.New()
	return d
}

// A spot notice for a node of Karpenter, from the notice to the last pod: what is asked for is asked
// for once per node, before anything is played, and sized by what moves.
func TestForecast(t *testing.T) {
	s := newScene(t)
	s.Nodes, s.Lost = nil, nil
	a, b := claimed("a"), claimed("bb")
	s.Nodes = append(s.Nodes, a, b)
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	}
	s.pods("StatefulSet", "db", "a", 1, tolerant)
	s.pods("DaemonSet", "agent", "a", 1, tolerant)
	s.pods("StatefulSet", "db", "bb", 1, tolerant)
	d := karpenters(t, pool(t, "batch", "spot", "{}"), pool(t, "fallback", "on-demand", "{}")).withRules(interruption.Rules{})
	d.DeletesClaims = true
	s.Unread = []string{"volumes"}
	f, err := d.Forecast(t.Context(), s.Cluster, []*corev1.Node{a, b}, Loss{Kind: interruption.SpotInterruption, Over: 10 * time.Second}, s.Assumptions)
	if err != nil {
		t.Fatal(err)
	}
	if f.DryRun != nil || !slices.Equal(f.Unread, []string{"volumes"}) || f.Settings != "the default settings" {
		t.Errorf("dry run %v, unread %q, settings %q", f.DryRun, f.Unread, f.Settings)
	}
	var got []string
	for _, n := range f.Nodes {
		r := n.Replacement
		if r == nil {
			t.Fatalf("no replacement of %s", n.Name)
		}
		got = append(got, fmt.Sprintf("%s: noticed %.0f, taken %.0f, %s from %s for %d pods and %d agents, Ready %.0f",
			n.Name, float64(n.Notice), float64(*n.Deadline), r.State, r.Pool, r.Pods, r.Daemons, float64(*r.Ready)))
	}
	for _, p := range f.Pods {
		got = append(got, say(p))
	}
	want := []string{
		"a: noticed 0, taken 120, Requested from fallback for 1 pods and 1 agents, Ready 40",
		"bb: noticed 10, taken 130, Requested from fallback for 1 pods and 0 agents, Ready 50",
		"db-0 graceful 40..45 : waits for the replacement",
		"db-1 graceful 50..55 : waits for the replacement",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("forecast (-want +got):\n%s", diff)
	}
	for _, name := range []string{"a", "bb"} {
		if n := d.Marked[name]; n == nil || !n.Spec.Unschedulable || n.Annotations[interruption.Annotation] == "" {
			t.Errorf("%s is asked about as %+v, want it cordoned, with its record", name, n)
		}
	}
	if a.Spec.Unschedulable || len(a.Annotations) > 0 {
		t.Error("the Node that was read has changed")
	}
}

// A node that spot-handler leaves alone gets no replacement, and the reason why.
func TestSparedNode(t *testing.T) {
	s := newScene(t)
	s.Nodes, s.Lost = nil, nil
	n := claimed("a")
	s.Nodes = append(s.Nodes, n)
	d := karpenters(t, pool(t, "fallback", "on-demand", "{}")).withRules(interruption.Rules{Unmanaged: "it is in an excluded pool"})
	f, err := d.Forecast(t.Context(), s.Cluster, []*corev1.Node{n}, Loss{Kind: interruption.SpotInterruption}, s.Assumptions)
	if err != nil {
		t.Fatal(err)
	}
	r := f.Nodes[0].Replacement
	if r == nil || r.State != provisioner.StateUnsupported || !strings.Contains(r.Why, "it is in an excluded pool") || r.Ready != nil {
		t.Errorf("replacement %+v, want none, and why", r)
	}
	if d.Marked["a"] != n {
		t.Error("the node is marked as interrupted")
	}
}

// What is lost besides: nodes that drain already. Those that wait for their time, and those whose drain is
// over, are not.
func TestLoseInterrupted(t *testing.T) {
	marked := func(name string, phase interruption.Phase, r *interruption.Replacement) *corev1.Node {
		n := claimed(name)
		rec := interruption.NewRecord(interruption.Notice{
			Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "e", InstanceID: n.Spec.ProviderID[len("aws:///eu-west-1a/"):],
			Noticed: at.Add(-time.Minute), Received: at.Add(-time.Minute), Deadline: at.Add(time.Minute),
		})
		rec.Phase, rec.Replacement = phase, r
		n.Annotations = map[string]string{interruption.Annotation: rec.String()}
		return n
	}
	pending := &interruption.Replacement{Backend: provisioner.Karpenter, Name: "x", State: provisioner.StateRequested}
	ready := &interruption.Replacement{Backend: provisioner.Karpenter, Name: "x", State: provisioner.StateReady}
	broken := claimed("broken")
	broken.Annotations = map[string]string{interruption.Annotation: "{"}
	asked := marked("asked", interruption.Draining, nil)
	in := Input{Lost: []Lost{{Node: asked}}}
	in.Nodes = []*corev1.Node{
		claimed("plain"), broken, asked, marked("alone", interruption.Draining, nil), marked("booting", interruption.Draining, pending),
		marked("booted", interruption.Draining, ready), marked("waiting", interruption.Waiting, nil), marked("drained", interruption.Drained, nil),
	}
	in.loseInterrupted()
	var got []string
	for _, l := range in.Lost[1:] {
		becomes := "-"
		if l.Becomes != nil {
			becomes = l.Becomes.Name
		}
		got = append(got, fmt.Sprintf("%s %s %t %v %v %v %s", l.Node.Name, l.Kind, l.Underway, l.Noticed.Sub(at), l.Deadline.Sub(at), l.Capacity, becomes))
	}
	want := []string{
		fmt.Sprintf("alone spot-interruption true -1m0s 1m0s %v in-place-of-alone", plan.PendingCapacity),
		fmt.Sprintf("booting spot-interruption true -1m0s 1m0s %v in-place-of-booting", plan.PendingCapacity),
		fmt.Sprintf("booted spot-interruption true -1m0s 1m0s %v -", plan.ReadyCapacity),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lost besides (-want +got):\n%s", diff)
	}
}

// Each kind of interruption has the time that is usual for it, unless one is given, and is noticed as
// EC2 says it.
func TestLoss(t *testing.T) {
	d := (&Daemon{}).withRules(interruption.Rules{ScheduledLead: 20 * time.Minute})
	n := claimed("a")
	for _, tt := range []struct {
		kind   interruption.Kind
		left   time.Duration
		ends   bool
		action string
	}{
		{interruption.SpotInterruption, 2 * time.Minute, true, interruption.ActionTerminate},
		{interruption.CapacityReservationInterruption, 2 * time.Minute, true, interruption.ActionTerminate},
		{interruption.RebalanceRecommendation, 0, false, ""},
		{interruption.ScheduledEvent, 20 * time.Minute, true, interruption.ActionRetirement},
		{interruption.CapacityBlockExpiration, 10 * time.Minute, true, interruption.ActionTerminate},
		{interruption.InstanceTerminating, 5 * time.Minute, true, ""},
		{interruption.StateChange, 0, true, ""},
	} {
		l := Loss{Kind: tt.kind}
		if left, ends := d.deadline(n, l); left != tt.left || ends != tt.ends {
			t.Errorf("%s: %v, %t; want %v, %t", tt.kind, left, ends, tt.left, tt.ends)
		}
		l.Deadline = time.Minute
		if left, ends := d.deadline(n, l); left != time.Minute || !ends {
			t.Errorf("%s within a minute: %v, %t", tt.kind, left, ends)
		}
		want := interruption.Notice{
			Kind: tt.kind, Source: interruption.Queue, EventID: "plan", InstanceID: "i-00000000000000001", NodeName: "a",
			Noticed: at, Received: at, Action: tt.action,
		}
		if diff := cmp.Diff(want, l.Notice(n, at)); diff != "" {
			t.Errorf("notice of %s (-want +got):\n%s", tt.kind, diff)
		}
	}
	over := Loss{Over: time.Minute}
	for i, want := range []time.Duration{0, 20 * time.Second, 40 * time.Second, time.Minute} {
		if got := over.After(i, 4); got != want {
			t.Errorf("notice %d of 4 after %v, want %v", i+1, got, want)
		}
	}
	if got := over.After(0, 1); got != 0 {
		t.Errorf("the only notice after %v", got)
	}
}

// Placeholders and Auto Scaling groups bring a node like the one that is lost.
func TestNodeAlike(t *testing.T) {
	lost := claimed("a")
	lost.Spec.Unschedulable = true
	lost.Spec.Taints = []corev1.Taint{{Key: interruption.TaintKey}, {Key: corev1.TaintNodeUnschedulable}, {Key: "dedicated"}}
	got := alike(lost, "life=od,team=web")
	if got.Name != "in-place-of-a" || got.Spec.Unschedulable || len(got.Spec.Taints) != 1 || got.Spec.Taints[0].Key != "dedicated" {
		t.Errorf("%+v", got.Spec)
	}
	for key, want := range map[string]string{
		corev1.LabelHostname: "in-place-of-a", "life": "od", "team": "web", corev1.LabelTopologyZone: "a", "karpenter.sh/nodepool": "batch",
	} {
		if got.Labels[key] != want {
			t.Errorf("label %s is %q, want %q", key, got.Labels[key], want)
		}
	}
	if len(lost.Spec.Taints) != 3 || !lost.Spec.Unschedulable || lost.Labels["life"] != "" {
		t.Error("the lost Node has changed")
	}
	if got := alike(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, "life in (od)"); got.Labels[corev1.LabelHostname] != "in-place-of-b" {
		t.Errorf("labels %v", got.Labels)
	}
}

// What placeholders ask for is added up.
func TestPlaceholdersAreSummedUp(t *testing.T) {
	q := &Requests{}
	created := func(resource string, p *corev1.Pod) {
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		q.create(dryrun.Created{Resource: resource, Object: text})
	}
	created("podtemplates", asking("template", "9"))
	created("pods", asking("one", "500m"))
	created("pods", asking("two", "1"))
	r := &Replacement{Pods: 7, Daemons: 3, Why: "x"}
	describePlaceholders(r, q.collect())
	if cpu := r.Requests.Cpu(); cpu.String() != "1500m" || r.Pods != 2 || r.Daemons != 0 || !strings.Contains(r.Why, "pods of low priority hold the room") {
		t.Errorf("%+v", r)
	}
	r = &Replacement{Pods: 7, Daemons: 3, Why: "x"}
	if describePlaceholders(r, nil); r.Pods != 7 || r.Daemons != 3 || r.Why != "x" || r.Requests != nil {
		t.Errorf("nothing was made: %+v", r)
	}
}

// Startup times are those of a workload's own pods; one that became Ready again much later says
// nothing.
func TestStartups(t *testing.T) {
	s := newScene(t)
	took := func(d time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions[1].LastTransitionTime.Time = p.Status.Conditions[0].LastTransitionTime.Add(d)
		}
	}
	for _, d := range []time.Duration{10, 12, 14, 600} {
		s.pods("StatefulSet", "db", "other", 1, took(d*time.Second))
	}
	s.pods("StatefulSet", "new", "other", 1, func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[:1] })
	s.pods("", "bare", "other", 1)
	s.pods("Job", "done", "other", 1, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	want := map[string]Assumption{
		"shop/statefulset/db": {Value: 12, From: "history: 3 of its pods"},
		"shop/pod/bare":       {Value: 10, From: "history: 1 of its pods"},
	}
	if WorkloadOf(s.Pods[len(s.Pods)-2]) == "" {
		delete(want, "shop/pod/bare")
	}
	if diff := cmp.Diff(want, readyOf(s.Pods)); diff != "" {
		t.Errorf("startups (-want +got):\n%s", diff)
	}
}

// What is assumed if nobody says otherwise.
func TestAssumed(t *testing.T) {
	from := func(v Seconds) Assumption { return Assumption{Value: v, From: "assumed"} }
	if diff := cmp.Diff(Assumptions{Boot: from(45), Ready: from(10), Stop: from(5), Detach: from(6)}, Assumed()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// coreOver is a client of the core API whose requests all succeed but for those that fail.
func coreOver(t *testing.T, fail func(path string) error) rest.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://server"}, &http.Client{
		Transport: promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			if err := fail(r.URL.Path); err != nil {
				return nil, err
			}
			return &http.Response{
				StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(`{"apiVersion":"v1","kind":"Status","status":"Success"}`)), Request: r,
			}, nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client.CoreV1().RESTClient()
}

// A dry run tries what moves each pod, and nothing for those that stay or leave already.
func TestDryRunOfPods(t *testing.T) {
	s := newScene(t)
	s.deployment("web", "lost", 1)
	s.pods("StatefulSet", "db", "lost", 1)
	s.pods("StatefulSet", "leaving", "lost", 1, func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(at)) })
	s.pods("DaemonSet", "agent", "lost", 1)
	q := &Requests{DryRun: true}
	refused := errors.New("connection refused")
	client := coreOver(t, func(path string) error {
		if strings.Contains(path, "/pods/db-0/") {
			return refused
		}
		return nil
	})
	err := q.drain(t.Context(), client, firstDecisions(s.Input)["lost"], at)
	if err == nil || !strings.Contains(err.Error(), "try to evict pods/shop/db-0") {
		t.Errorf("%v, want the request that nobody answered", err)
	}
	q = &Requests{DryRun: true}
	if err := q.drain(t.Context(), coreOver(t, func(string) error { return nil }), firstDecisions(s.Input)["lost"], at); err != nil {
		t.Fatal(err)
	}
	if got := q.result(); got.Tried != 3 || len(got.Refused) != 0 {
		t.Errorf("%+v, want a surge and two evictions", got)
	}
}
