package stories

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// A workload says when its pods leave. Those that ask for now go while the replacement boots,
// whether the pod asks or its namespace; those that are to be held go when it is Ready, without
// a replacement pod before; those that go last have every second up to their latest safe start. A
// pod that asks for what nobody knows gets an Event, and is surged like any other.
func TestPodsLeaveWhenTheyAsk(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(20 * time.Second)
	node := s.node("batch")
	names := map[types.UID]string{}
	run := func(name, namespace, when string) {
		spec := controlplane.DeploymentSpec{Name: name, Namespace: namespace, Replicas: 1}
		quick(&spec)
		if when != "" {
			spec.Annotations = map[string]string{"spot-handler/when": when}
		}
		_, err := s.cluster.RunDeployment(s.ctx, spec)
		s.must(err)
		pods, err := s.cluster.WaitReady(s.ctx, namespace, name, 1)
		s.must(err)
		names[pods[0].UID] = name
	}
	_, err := s.cluster.Client.CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "hasty", Annotations: map[string]string{"spot-handler/when": "now"}},
	}, metav1.CreateOptions{})
	s.must(err)
	run("now", "default", "now")
	run("hasty", "hasty", "")
	run("hold", "default", "hold")
	run("last", "default", "last")
	run("unheard-of", "default", "when-the-moon-is-full")
	d, queue := s.drill()

	deadline := interrupt(queue, node.Name, 70*time.Second)
	gone := func() map[string]time.Time {
		at := map[string]time.Time{}
		for _, r := range s.evicted() {
			at[names[types.UID(r.RequestObject.DeleteOptions.Preconditions.UID)]] = r.RequestReceivedTimestamp
		}
		return at
	}
	s.eventually("departure of those that ask for now", func() bool { at := gone(); return len(at) == 2 })
	if at := gone(); at["now"].IsZero() || at["hasty"].IsZero() {
		t.Errorf("evicted first: %v", at)
	}
	if len(d.Lines("replacement ready")) > 0 {
		t.Error("they waited for the replacement")
	}
	s.waitLine(d, "drained")
	at := gone()
	latest := deadline.Add(-10*time.Second - 5*time.Second)
	switch early := latest.Sub(at["last"]); {
	case len(at) != 5:
		t.Errorf("evicted: %v", at)
	case early > 0:
		t.Errorf("the last was evicted %s before its latest safe start", early)
	case !at["hold"].After(at["now"]) || !at["hold"].Before(at["last"]):
		t.Errorf("the one to be held was evicted out of turn: %v", at)
	case readyAt(t, d).After(at["hold"]):
		t.Errorf("the one to be held was evicted at %s, before the replacement was Ready", at["hold"])
	}
	surged := s.requests(func(r request) bool {
		return r.Verb == "patch" && r.ObjectRef.Resource == "pods" && r.ObjectRef.Subresource == ""
	})
	if len(surged) != 1 || !strings.HasPrefix(surged[0].ObjectRef.Name, "unheard-of-") {
		t.Errorf("surged: %v, want the one pod without a wish that counts", surged)
	}
	events := s.events("AnnotationMeaningless", surged[0].ObjectRef.Name)
	if len(events) != 1 || !strings.Contains(events[0].Message, `spot-handler/when="when-the-moon-is-full", want one of ["now" "hold" "last"]`) {
		t.Errorf("Events %v", events)
	}
}

// readyAt is when the daemon says that the replacement was Ready.
func readyAt(t *testing.T, d *daemon.Daemon) time.Time {
	t.Helper()
	lines := d.Lines("replacement ready")
	if len(lines) == 0 {
		t.Fatal("no replacement")
	}
	text, _ := lines[0]["time"].(string)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
