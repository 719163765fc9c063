package stories

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// heard is a notice as a pod got it.
type heard struct {
	ID, Type, Subject string
	Data              struct {
		Kind, Action, Node, Replacement string
		Deadline, EvictBy               time.Time
		Grace                           int `json:"gracePeriodSeconds"`
	}

	at time.Time
}

// servers play those of all pods: kwok gives each pod the IP that it is annotated with. The path
// says how a server behaves.
type servers struct {
	port string

	mu    sync.Mutex
	heard []heard
}

func (s *story) servers() *servers {
	all := &servers{}
	server := httptest.NewServer(all)
	s.Cleanup(server.Close)
	all.port = server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	return all
}

func (a *servers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	event := heard{at: time.Now()}
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/cloudevents+json") {
		http.Error(w, "no CloudEvent", http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.heard = append(a.heard, event)
	a.mu.Unlock()
	switch r.URL.Path {
	case "/silent":
	case "/slow":
		time.Sleep(time.Second)
		fmt.Fprint(w, `{"when":"last"}`)
	case "/never":
		<-r.Context().Done()
	case "/nonsense":
		fmt.Fprint(w, "now! {")
	case "/megabyte":
		fmt.Fprint(w, `{"when":"now"}`, strings.Repeat(" ", 1<<20))
	default:
		fmt.Fprintf(w, `{"when":%q}`, r.URL.Path[1:])
	}
}

// by are the types of the events that a pod has heard, by the beginning of its name.
func (a *servers) by(pod string) (types []string, last heard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.heard {
		if _, name, _ := strings.Cut(h.Subject, "/"); strings.HasPrefix(name, pod+"-") {
			types, last = append(types, h.Type), h
		}
	}
	return types, last
}

// asks has the pods of a workload ask for notices, and reach a server that behaves so.
func (a *servers) asks(path string, more ...string) map[string]string {
	annotations := map[string]string{"spot-handler/notice": a.port + "/" + path, "e2e.spot-handler/ip": "127.0.0.1"}
	for i := 0; i < len(more); i += 2 {
		annotations[more[i]] = more[i+1]
	}
	return annotations
}

// noticing are the flags with which pods are notified, also where tests have them.
var noticing = []string{"--workload-notices", "--notice-networks=127.0.0.0/8"}

// patched are the pods that the daemon has patched, by the beginning of their names.
func (s *story) patched() map[string]int {
	s.Helper()
	pods := map[string]int{}
	for _, r := range s.requests(func(r request) bool {
		return r.Verb == "patch" && r.ObjectRef.Resource == "pods" && r.ObjectRef.Subresource == "" && r.ResponseStatus.Code == 200
	}) {
		name, _, _ := strings.Cut(r.ObjectRef.Name, "-")
		pods[name]++
	}
	return pods
}

// Pods that ask are notified that their node is interrupted, and leave when they answer: at once, or at
// their latest safe start. A pod that asks to be notified of the replacement is, and one without a server finds
// annotations. A pod that does not ask, or whose namespace is shut out, costs no request, and one
// that asks in a way that means nothing gets an Event.
func TestWorkloadsHearAndAnswer(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true, Audit: true})
	s.pools(20 * time.Second)
	node := s.node("batch")
	all := s.servers()
	names := map[types.UID]string{}
	run := func(name, namespace string, annotations map[string]string) *corev1.Pod {
		spec := controlplane.DeploymentSpec{Name: name, Namespace: namespace, Replicas: 1, Annotations: annotations}
		quick(&spec)
		_, err := s.cluster.RunDeployment(s.ctx, spec)
		s.must(err)
		pods, err := s.cluster.WaitReady(s.ctx, namespace, name, 1)
		s.must(err)
		names[pods[0].UID] = name
		return pods[0]
	}
	_, err := s.cluster.Client.CoreV1().Namespaces().Create(s.ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "shut-out", Annotations: map[string]string{"spot-handler/notice": "off"}},
	}, metav1.CreateOptions{})
	s.must(err)
	const when = "spot-handler/when"
	run("goes", "default", all.asks("now"))
	run("stays", "default", all.asks("last"))
	run("curious", "default", all.asks("silent", when, "last", "spot-handler/notice-replacement", "true"))
	files := run("files", "default", map[string]string{"spot-handler/notice": "files", when: "last"})
	wrong := run("wrong", "default", all.asks("", when, "last", "spot-handler/notice", "http"))
	run("quiet", "default", map[string]string{when: "last"})
	run("closed", "shut-out", all.asks("now", when, "last"))
	d, queue := s.drill(noticing...)

	deadline := interrupt(queue, node.Name, 70*time.Second)
	latest := deadline.Add(-10*time.Second - 5*time.Second)
	gone := func() map[string]time.Time {
		at := map[string]time.Time{}
		for _, r := range s.evicted() {
			at[names[types.UID(r.RequestObject.DeleteOptions.Preconditions.UID)]] = r.RequestReceivedTimestamp
		}
		return at
	}
	s.eventually("departure of the pod that answers now", func() bool { return !gone()["goes"].IsZero() })
	if at := gone(); len(at) != 1 || len(d.Lines("replacement ready")) > 0 {
		t.Errorf("evicted %v, want the one alone, while the replacement boots", at)
	}
	s.eventually("annotations on the pod without a server", func() bool {
		pod, err := s.cluster.Client.CoreV1().Pods("default").Get(s.ctx, files.Name, metav1.GetOptions{})
		s.must(err)
		return pod.Annotations["spot-handler/deadline"] == deadline.UTC().Format(time.RFC3339) &&
			pod.Annotations["spot-handler/evict-by"] == latest.UTC().Format(time.RFC3339)
	})
	s.waitLine(d, "drained")
	at := gone()
	for _, name := range []string{"stays", "curious", "files", "wrong", "quiet", "closed"} {
		if early := latest.Sub(at[name]); at[name].IsZero() || early > 0 {
			t.Errorf("pod %s was evicted at %s, %s before its latest safe start", name, at[name], early)
		}
	}
	got, said := all.by("stays")
	if want := []string{"spot-handler.notice"}; !slices.Equal(got, want) || said.Data.Kind != string(interruption.SpotInterruption) || said.Data.Action != "terminate" ||
		said.Data.Node != node.Name || !said.Data.Deadline.Equal(deadline) || !said.Data.EvictBy.Equal(latest) || said.Data.Grace != 5 || said.Data.Replacement == "" {
		t.Errorf("notified of %v: %+v", got, said)
	}
	if got, said := all.by("curious"); !slices.Equal(got, []string{"spot-handler.notice", "spot-handler.replacement-ready"}) || said.Data.Replacement != "Ready" {
		t.Errorf("notified of %v: %+v", got, said)
	}
	for _, name := range []string{"files", "wrong", "quiet", "closed"} {
		if got, _ := all.by(name); len(got) > 0 {
			t.Errorf("pod %s was notified of %v", name, got)
		}
	}
	patched := s.patched()
	for name, most := range map[string]int{"quiet": 0, "closed": 0, "goes": 1, "stays": 1, "curious": 1, "files": 1} {
		if patched[name] > most {
			t.Errorf("pod %s was patched %d times, want at most %d", name, patched[name], most)
		}
	}
	s.eventually("Event on the pod that asks in vain", func() bool { return len(s.events("AnnotationMeaningless", wrong.Name)) == 1 })
	for result, want := range map[string]float64{"answered": 2, "delivered": 2, "invalid": 1, "failed": 0} {
		if got := s.metric(d, fmt.Sprintf(`spot_handler_workload_notices_total{result=%q}`, result)); got != want {
			t.Errorf("%v notices counted as %s, want %v", got, result, want)
		}
	}
}

// The deadline comes earlier than was said, and in the end the interruption is cancelled: the
// pods are notified of both, and neither leaves a trace on them or on the Node.
func TestWorkloadsHearThatItIsCanceled(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	all := s.servers()
	s.service("web", 2, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Annotations = all.asks("silent", "spot-handler/when", "last")
	})
	d, queue := s.drill(noticing...)
	waitNotified := func(n int, what string) heard {
		var last heard
		s.eventually(what, func() bool {
			got, newest := all.by("web")
			last = newest
			return len(got) == n && got[n-1] == what
		})
		return last
	}
	interrupted := func() *corev1.NodeCondition {
		conditions := s.freshNode(node.Name).Status.Conditions
		if i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == "spot-handler/Interrupted" }); i >= 0 {
			return &conditions[i]
		}
		return nil
	}
	shows := func(deadline time.Time) {
		message := "spot-interruption, deadline " + deadline.UTC().Format(time.RFC3339)
		s.eventually("condition of the Node", func() bool {
			c := interrupted()
			return c != nil && c.Status == corev1.ConditionTrue && c.Reason == "SpotInterruption" && c.Message == message
		})
	}

	first := interrupt(queue, node.Name, 2*time.Minute)
	if h := waitNotified(2, "spot-handler.notice"); !h.Data.Deadline.Equal(first) {
		t.Errorf("heard %+v, want the deadline %s", h, first)
	}
	shows(first)
	earlier := first.Add(-20 * time.Second)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-earlier", controlplane.InstanceID(node.Name), earlier.Add(-2*time.Minute)))
	if h := waitNotified(4, "spot-handler.notice"); !h.Data.Deadline.Equal(earlier) {
		t.Errorf("heard %+v, want the deadline %s", h, earlier)
	}
	shows(earlier)
	cancel := fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, interruption.CancelAnnotation)
	_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node.Name, types.MergePatchType, []byte(cancel), metav1.PatchOptions{})
	s.must(err)
	waitNotified(6, "spot-handler.canceled")
	s.eventually("end of the condition", func() bool { return interrupted() == nil })
	s.eventually("end of the annotations", func() bool {
		return !slices.ContainsFunc(s.podsOn(node.Name, "web"), func(p corev1.Pod) bool {
			return p.Annotations["spot-handler/deadline"]+p.Annotations["spot-handler/evict-by"] != ""
		})
	})
	if n := len(s.podsOn(node.Name, "web")); n != 2 || len(s.evicted()) > 0 {
		t.Errorf("%d pods left on the node", n)
	}
	written := s.requests(func(r request) bool { return r.ObjectRef.Resource == "nodes" && r.ObjectRef.Subresource == "status" })
	if len(written) != 3 {
		t.Errorf("%d writes of the condition, want one for each of the notices, and one for the end: %+v", len(written), written)
	}
	if d.Stop() != 0 {
		t.Error("the daemon did not stop cleanly")
	}
}

// freshNode is the Node as the API server has it.
func (s *story) freshNode(name string) *corev1.Node {
	s.Helper()
	node, err := s.cluster.Client.CoreV1().Nodes().Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return node
}
