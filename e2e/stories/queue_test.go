package stories

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// Story 2: the notice comes through the queue, and the daemon is killed between
// writing the record and deleting the message. The record was first; the message
// comes again, changes nothing, and the drain goes on. `status` shows it meanwhile.
func TestMessageOutlivesTheDaemonUntilTheRecordIsWritten(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true, Audit: true})
	s.pools(40 * time.Second) // longer than the message stays hidden
	node := s.node("batch")
	s.service("web", 6, nil)
	server, queue := s.sqs()
	watched := s.watchStatus()
	first := s.runQueue(server, queue)

	// The first deletions hang, for 5 s each: the record can be written and the message cannot go.
	server.Fail(sqsemu.Fault{Delay: sqsemu.Unanswered, Action: "DeleteMessageBatch", Times: 3})
	id := queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	written := s.waitRecord(node.Name, func(interruption.Record) bool { return true })
	first.Kill()
	if queue.Deleted(id) {
		t.Fatal("the message was deleted before the daemon was killed")
	}

	second := s.runQueue(server, queue)
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Replacing && r.Replacement != nil })
	s.wantStatusOfBooting(second, node.Name, 6)
	s.eventually("deletion of the message", func() bool { return queue.Deleted(id) })
	s.waitGone(node.Name)
	drained := s.waitLine(second, "drained")
	if drained["graceful"] != 6.0 || drained["left"] != 0.0 {
		t.Errorf("want 6 graceful and none left: %v", drained)
	}
	if accepted := len(second.Lines("interruption accepted")); accepted != 0 {
		t.Errorf("the second daemon accepted the notice %d times again", accepted)
	}
	if n := s.metric(second, `spot_handler_messages_total{outcome="duplicate"}`); n != 1 {
		t.Errorf("%v duplicates counted, want 1", n)
	}
	for uid, n := range s.evictions() {
		if n != 1 {
			t.Errorf("pod %s evicted %d times", uid, n)
		}
	}
	phases := map[interruption.Phase]bool{}
	for _, list := range watched() {
		for _, one := range list.Interruptions {
			phases[one.Phase] = true
		}
	}
	if !phases[interruption.Replacing] || !phases[interruption.Draining] {
		t.Errorf("status --watch has shown the phases %v only", phases)
	}
	if written.Event != "event-1" || written.Instance != controlplane.InstanceID(node.Name) {
		t.Errorf("the record is about %s of %s", written.Event, written.Instance)
	}
}

// Story 3: a rebalance recommendation first, and the notice while the node is being
// drained without hurry. There is one record; it becomes the notice's, with its
// deadline.
func TestNoticeUpgradesRebalance(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.pools(3 * time.Second)
	node := s.node("batch")
	// One pod at a time and slow: the drain takes long enough for the notice.
	s.service("web", 6, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(5) })
	server, queue := s.sqs()
	d := s.runQueue(server, queue)
	instance := controlplane.InstanceID(node.Name)

	queue.Send(daemon.EventBridge(daemon.Rebalance, "event-1", instance, time.Now()))
	before := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Draining })
	if before.Kind != interruption.RebalanceRecommendation || !before.Deadline.IsZero() {
		t.Fatalf("record %s, want a rebalance recommendation without a deadline", before)
	}

	at := time.Now().Truncate(time.Second)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-2", instance, at))
	after := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Kind == interruption.SpotInterruption })
	if want := at.Add(2 * time.Minute); !after.Deadline.Equal(want) {
		t.Errorf("deadline %v, want %s", after.Deadline, want)
	}
	if after.Event != "event-2" || after.Replacement == nil || after.Replacement.Name != before.Replacement.Name {
		t.Errorf("record %s, want event-2 and the replacement of %s", after, before)
	}
	s.waitGone(node.Name)
	if drained := s.waitLine(d, "drained"); drained["graceful"] != 6.0 || drained["kind"] != string(interruption.SpotInterruption) {
		t.Errorf("want 6 graceful for the interruption: %v", drained)
	}
	if claims := append(s.claims("batch", ""), s.claims("batch-fallback", "")...); len(claims) != 1 {
		t.Errorf("claims %v, want one", claims)
	}
}

// Story 4: the same event three times through the queue, and once from the metadata
// service by a DaemonSet that only marks. It is one interruption.
func TestSameEventManyTimesIsOneInterruption(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(3 * time.Second)
	node := s.node("batch")
	pods := s.service("web", 6, nil)
	server, queue := s.sqs()
	drainer := s.runQueue(server, queue)
	imds := s.imds(node)
	marker := s.runIMDS(imds, node, "--drain=false")
	instance := controlplane.InstanceID(node.Name)

	at := time.Now().Truncate(time.Second)
	body := daemon.EventBridge(daemon.SpotInterruption, "event-1", instance, at)
	imds.Interrupt("terminate", at.Add(2*time.Minute))
	queue.Duplicate(1)
	ids := []string{queue.Send(body), queue.Send(body)}
	for _, id := range ids {
		s.eventually("deletion of the message", func() bool { return queue.Deleted(id) })
	}
	s.waitGone(node.Name)
	s.waitLine(drainer, "drained")

	noticed := 0.0
	for _, d := range []*daemon.Daemon{drainer, marker} {
		for _, source := range []string{"queue", "imds"} {
			noticed += s.metric(d, fmt.Sprintf(`spot_handler_notices_total{kind="spot-interruption",source=%q}`, source))
		}
	}
	if noticed != 1 {
		t.Errorf("%v notices counted over both modes, want 1", noticed)
	}
	if claims := s.claims("batch-fallback", ""); len(claims) != 1 {
		t.Errorf("claims %v, want one", claims)
	}
	if n := s.metric(drainer, `spot_handler_drains_total{kind="spot-interruption",result="completed"}`); n != 1 {
		t.Errorf("%v drains, want 1", n)
	}
	s.wantEachOnce(uids(pods))
}

// Story 7: garbage, an unknown instance, 200 kB and missing fields between good
// messages. The good ones are handled without delay, and nothing stays in the queue.
func TestBadMessagesDoNotDelayGoodOnes(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	const good = 20
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: good})
	s.must(err)
	server, queue := s.sqs()
	d := s.runQueue(server, queue)

	bad := []string{
		"}{ no JSON",
		daemon.EventBridge(daemon.SpotInterruption, "event-foreign", "i-0ffffffffffffffff", time.Now().Add(-110*time.Second)),
		`{"detail-type": "` + strings.Repeat("x", 200_000) + `"}`,
		`{"version":"0","id":"event-empty","detail-type":"` + daemon.SpotInterruption + `","source":"aws.ec2","time":"` + time.Now().UTC().Format(time.RFC3339) + `","detail":{}}`,
		daemon.EventBridge("EC2 Something New", "event-new", controlplane.InstanceID(nodes[0].Name), time.Now()),
	}
	sent := time.Now()
	for i, node := range nodes {
		queue.Send(bad[i%len(bad)])
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint("event-", i), controlplane.InstanceID(node.Name), time.Now()))
	}
	s.eventually("a record on each node", func() bool {
		list, err := s.cluster.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
		s.must(err)
		return !slices.ContainsFunc(list.Items, func(n corev1.Node) bool { _, has := record(&n); return !has })
	})
	// What waits for a bad one waits for 30 s, as long as a message is hidden.
	if took := time.Since(sent); took > 10*time.Second {
		t.Errorf("%d good messages between as many bad ones took %s", good, took)
	}
	s.waitEmpty(queue)
	for outcome, want := range map[string]float64{"accepted": good, "foreign": 4, "malformed": 12, "unsupported": 4} {
		s.eventually("count of "+outcome, func() bool {
			return s.metric(d, fmt.Sprintf(`spot_handler_messages_total{outcome=%q}`, outcome)) == want
		})
	}
}
