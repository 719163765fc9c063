package stories

import (
	"fmt"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// freeze has the API server answer nothing, on connections that stay open, until the
// returned function is called, at the latest at the end of the story.
func (s *story) freeze() (thaw func()) {
	s.Helper()
	thaw, err := s.cluster.Freeze("kube-apiserver")
	s.must(err)
	s.Cleanup(thaw)
	return thaw
}

// A burst while the API server hangs: the leader stops leading before another could, and is there
// to lead again, and no notice is lost, neither of the queue nor of the metadata service.
func TestBurstWhileTheAPIServerHangs(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 21})
	s.must(err)
	server, queue := s.sqs()
	leader := s.runReplica(server, queue)
	s.waitLine(leader, "leading")
	follower := s.runReplica(server, queue)
	own := nodes[20]
	imds := s.imds(own)
	s.run(daemon.Options{Args: []string{"imds", "--node-name=" + own.Name, "--drain=false"}, IMDS: imds.URL})

	thaw := s.freeze()
	var messages []string
	for i, node := range nodes[:20] {
		messages = append(messages, queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint("event-", i), controlplane.InstanceID(node.Name), time.Now())))
	}
	imds.Interrupt("terminate", time.Now().Add(2*time.Minute))
	s.waitLine(leader, "leading no more, campaigning again")
	if n := s.metric(leader, "spot_handler_leader"); n != 0 {
		t.Error("it still counts as the leader")
	}
	for _, id := range messages {
		if queue.Deleted(id) {
			t.Fatal("a message was deleted while no record could be written")
		}
	}
	thaw()

	for _, node := range nodes {
		s.waitRecord(node.Name, func(interruption.Record) bool { return true })
	}
	for _, id := range messages {
		s.eventually("deletion of the message", func() bool { return queue.Deleted(id) })
	}
	for _, node := range nodes[:20] {
		s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	}
	s.eventually("one leader", func() bool { // either of them: both campaign
		return s.metric(leader, "spot_handler_leader")+s.metric(follower, "spot_handler_leader") == 1
	})
}
