package stories

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// Who has a node's kubelet's credentials writes 400 records to its Node, 20 a second, with hooks of groups
// that do not exist, and more of them than a record can have. The leader grows by less than 64 MiB, and
// another node's drain takes no longer than without.
func TestHostileRecordsOfANode(t *testing.T) {
	const records, pause, most = 400, 50 * time.Millisecond, 64 << 10
	s := newStory(t, controlplane.Options{}).scale(time.Second, false)
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 3, Prefix: "node"})
	s.must(err)
	hostile, before, meanwhile := nodes[0], nodes[1], nodes[2]
	for _, node := range nodes[1:] {
		s.podsOnNode(node.Name, 10)
	}
	server, queue := s.sqs()
	d := s.run(s.options(server, queue, "--provisioner=none", "--heartbeat-until=1h"))
	drain := func(node *corev1.Node) time.Duration {
		began := time.Now()
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-"+node.Name, controlplane.InstanceID(node.Name), began))
		s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase.Over() })
		return time.Since(began)
	}
	without := drain(before)
	idle, _ := s.resident(d)

	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	written, half := make(chan error, 1), make(chan struct{})
	go func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for i := range records {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, interruption.Annotation, hostileRecord(hostile, i))
			if _, err := s.cluster.Client.CoreV1().Nodes().Patch(ctx, hostile.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				written <- err
				return
			}
			if i == records/2 {
				close(half)
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
		written <- nil
	}()
	select {
	case <-half:
	case err := <-written:
		t.Fatalf("write records: %v", err)
	}
	beside := drain(meanwhile)
	s.must(<-written)
	_, peak := s.resident(d)
	t.Logf("%d KiB before, %d KiB at the most; another node is drained in %s, without them in %s", idle, peak, beside, without)
	if peak-idle > most {
		t.Errorf("%d KiB more, want at most %d", peak-idle, most)
	}
	if beside > 2*without+2*time.Second {
		t.Errorf("another node is drained in %s, want as without, %s", beside, without)
	}
	if calls := s.cloud.Requests("CompleteLifecycleAction"); calls == 0 || calls > 60 {
		t.Errorf("%d calls about invented groups, want some, and at most 16 and one every 2 s", calls)
	}
}

// hostileRecord is the i-th: of a node that is kept, whose hooks are to be completed. Every other one has
// too many of them.
func hostileRecord(node *corev1.Node, i int) string {
	rec := spotRecord(node, time.Now().Add(2*time.Minute))
	rec.Action, rec.Phase = interruption.ActionStop, interruption.Drained
	for j := range 8 + 142*(i%2) {
		rec.Hooks = append(rec.Hooks, interruption.Hook{
			Group: fmt.Sprintf("invented-%d-%d", i, j), Name: "h", Since: time.Now(), Until: time.Now().Add(47 * time.Hour),
		})
	}
	return rec.String()
}

// podsOnNode puts pods on the node that nobody makes again.
func (s *story) podsOnNode(node string, n int) {
	s.Helper()
	for i := range n {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, i)},
			Spec: corev1.PodSpec{
				NodeName: node, TerminationGracePeriodSeconds: new(int64(1)),
				Containers: []corev1.Container{{Name: "app", Image: "fake"}},
			},
		}
		_, err := s.cluster.Client.CoreV1().Pods("default").Create(s.ctx, pod, metav1.CreateOptions{})
		s.must(err)
	}
}

// resident is what the daemon has in RAM, now and at the most so far, in KiB.
func (s *story) resident(d *daemon.Daemon) (now, peak int) {
	s.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Pid()))
	s.must(err)
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &now)
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &peak)
	}
	if now == 0 || peak == 0 {
		s.Fatalf("no memory in %s", status)
	}
	return now, peak
}
