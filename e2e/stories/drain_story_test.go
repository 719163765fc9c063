package stories

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// What the stories of drains share. Their nodes are bare: what they tell does not
// depend on who makes replacements, and a bare node is there at once.

// bare makes nodes that pods can go to. Those that are to be interrupted are made
// before the pods, those that take the replacement pods after them.
func (s *story) bare(prefix string, count, cpus int) []*corev1.Node {
	s.Helper()
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: count, Prefix: prefix, CPUs: cpus})
	s.must(err)
	return nodes
}

// interrupt sends the notice for a node that has so much time left. EventBridge stamps
// whole seconds: it may be up to one less.
func interrupt(queue *sqsemu.Queue, node string, left time.Duration) (deadline time.Time) {
	at := time.Now().Add(left - 2*time.Minute).Truncate(time.Second)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node, controlplane.InstanceID(node), at))
	return at.Add(2 * time.Minute)
}

// quick is a behaviour that costs a story little time.
func quick(d *controlplane.DeploymentSpec) {
	second := time.Second
	d.ReadyAfter, d.StopAfter, d.Grace = &second, &second, 5*time.Second
}

func percent(n int) *intstr.IntOrString { v := intstr.FromString(fmt.Sprint(n, "%")); return &v }

// never is for fields that want a surge or an unavailability of nothing.
var never = budget(0)

// uids are those of the pods, each with its name.
func uids(pods []*corev1.Pod) map[types.UID]string {
	names := map[types.UID]string{}
	for _, p := range pods {
		names[p.UID] = p.Name
	}
	return names
}

// result is what became of one node's pods.
type result struct{ graceful, truncated, forced, left int }

func (r result) total() int { return r.graceful + r.truncated + r.forced + r.left }

// ended is the reason of the Event and the message of the log line that say it.
func (r result) ended() (event, line string) {
	if r.left > 0 {
		return "DeadlineReached", "deadline reached"
	}
	return "Drained", "drained"
}

// wantResults waits for the end of the nodes' drains and checks that the log, the record, the
// Event, `status` and the metrics all say the same of their pods. They must be all that the
// daemon has drained. It returns the log lines.
func (s *story) wantResults(d *daemon.Daemon, want map[string]result) map[string]daemon.Line {
	s.Helper()
	lines := map[string]daemon.Line{}
	var sum result
	ends := map[string]int{}
	for _, node := range slices.Sorted(maps.Keys(want)) {
		w := want[node]
		event, message := w.ended()
		ends[message]++
		s.eventually("end of the drain of "+node, func() bool {
			for _, l := range append(d.Lines("drained"), d.Lines("deadline reached")...) {
				if l["node"] == node {
					lines[node] = l
				}
			}
			return lines[node] != nil
		})
		l := lines[node]
		number := func(field string) int { n, _ := l[field].(float64); return int(n) }
		logged := result{number("graceful"), number("truncated"), number("forced"), number("left")}
		if logged != w || l.Message() != message {
			s.Errorf("the log says of %s: %q with %+v, want %q with %+v", node, l.Message(), logged, message, w)
		}
		// Some Karpenter deletes the Node at once, and with it the record.
		found, err := s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool {
			r, ok := record(n)
			return n == nil || ok && r.Phase == interruption.Released
		})
		s.must(err)
		rec, ok := record(found)
		if p := rec.Pods; ok && (p == nil || p.Total != w.total() || (result{p.Graceful, p.Truncated, p.Forced, p.Left}) != w) {
			s.Errorf("the record of %s says %+v, want %+v", node, rec.Pods, w)
		}
		text := fmt.Sprintf("%d pods: %d graceful, %d truncated, %d forced, %d left", w.total(), w.graceful, w.truncated, w.forced, w.left)
		s.eventually("Event "+event, func() bool { return len(s.events(event, node)) == 1 })
		if got := s.events(event, node)[0].Message; !strings.HasPrefix(got, text) {
			s.Errorf("the Event of %s says %q, want %q", node, got, text)
		}
		sum = result{sum.graceful + w.graceful, sum.truncated + w.truncated, sum.forced + w.forced, sum.left + w.left}
	}
	s.wantStatusOfEnded(want)
	for outcome, n := range map[string]int{"graceful": sum.graceful, "truncated": sum.truncated, "forced": sum.forced, "left": sum.left} {
		if got := s.metric(d, fmt.Sprintf(`spot_handler_pods_total{kind="spot-interruption",outcome=%q}`, outcome)); got != float64(n) {
			s.Errorf("%v pods counted as %s, want %d", got, outcome, n)
		}
	}
	for message, outcome := range map[string]string{"drained": "completed", "deadline reached": "deadline"} {
		if got := s.metric(d, fmt.Sprintf(`spot_handler_drains_total{kind="spot-interruption",result=%q}`, outcome)); got != float64(ends[message]) {
			s.Errorf("%v drains counted as %s, want %d", got, outcome, ends[message])
		}
	}
	return lines
}

// sightings are when something was first seen.
type sightings struct {
	mu sync.Mutex
	at map[string]time.Time
}

func (s *sightings) see(what string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, seen := s.at[what]; !seen {
		s.at[what] = now
	}
}

// all lists them in their order.
func (s *sightings) all() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.at), time.Time.Compare)
}

// background runs until the story ends.
func (s *story) background(run func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	s.Cleanup(func() { cancel(); <-done })
}

// evicted are the evictions that the API server has granted, in their order.
func (s *story) evicted() []request {
	s.Helper()
	found := s.requests(func(r request) bool { return r.ObjectRef.Subresource == "eviction" && r.ResponseStatus.Code == 201 })
	slices.SortFunc(found, func(a, b request) int { return a.RequestReceivedTimestamp.Compare(b.RequestReceivedTimestamp) })
	return found
}

// wantEachOnce checks that every one of the pods was evicted once, and no other. An eviction
// that took too long for its client has no answer, and may have been done all the same.
func (s *story) wantEachOnce(pods map[types.UID]string) {
	s.Helper()
	evictions, brokenOff := s.evictions(), s.brokenOff()
	for uid, name := range pods {
		if n := evictions[string(uid)]; n != 1 && (n != 0 || !brokenOff[string(uid)]) {
			s.Errorf("pod %s evicted %d times, want once", name, n)
		}
		delete(evictions, string(uid))
	}
	for uid, n := range evictions {
		s.Errorf("another pod evicted %d times: %s", n, uid)
	}
}

// drill is the common start: nodes, a daemon in queue mode, and its queue.
func (s *story) drill(flags ...string) (*daemon.Daemon, *sqsemu.Queue) {
	s.Helper()
	server, queue := s.sqs()
	return s.runQueue(server, queue, flags...), queue
}

// stays polls for so long whether something goes on being true.
func (s *story) stays(d time.Duration, ok func() bool) error {
	s.Helper()
	end := time.After(d)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if !ok() {
			return errors.New("it did not stay so")
		}
		select {
		case <-end:
			return nil
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-tick.C:
		}
	}
}

// daemonSet runs a DaemonSet on the one node that there is, and returns its pod when that is Ready.
func (s *story) daemonSet(name string, change func(*corev1.PodTemplateSpec)) *corev1.Pod {
	s.Helper()
	labels := map[string]string{"app": name}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	set.Spec.Template.Labels = labels
	set.Spec.Template.Spec.Containers = []corev1.Container{{Name: "app", Image: "fake"}}
	change(&set.Spec.Template)
	s.must(controlplane.Create(s.ctx, s.cluster.Client, set))
	pods, err := s.cluster.WaitReady(s.ctx, "", name, 1)
	s.must(err)
	return pods[0]
}
