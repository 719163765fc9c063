package stories

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// Story 5: the daemon is killed at random points of a drain, twenty times over. The
// drain ends, no pod is evicted twice, and every one is moved.
func TestKilledTwentyTimesTheDrainEnds(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(4 * time.Second)
	node := s.node("batch")
	const pods = 20
	s.service("web", pods, func(d *controlplane.DeploymentSpec) {
		d.BudgetMinAvailable = budget(pods - 2) // ten waves, so that there is something to interrupt
	})
	victims := map[types.UID]string{}
	for _, p := range s.podsOn(node.Name, "web") {
		victims[p.UID] = p.Name
	}
	server, queue := s.sqs()
	body := daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), time.Now())

	const kills = 20
	var last *daemon.Daemon
	for range kills {
		queue.Send(body) // the one before may have been in the hand of who was killed, and is hidden
		// Some die before they have started, some in the middle of a wave. Without
		// leader election, or most would only wait for a dead one's lease.
		last = s.start(daemon.Options{Args: []string{"queue", "--queue-url=" + queue.URL(), alone}, SQS: server.URL})
		select {
		case <-time.After(200*time.Millisecond + rand.N(1800*time.Millisecond)):
		case <-last.Done():
			t.Fatalf("daemon ended by itself with code %d", last.ExitCode())
		}
		last.Kill()
	}
	queue.Send(body)
	last = s.runQueue(server, queue)
	s.waitGone(node.Name)

	// An eviction that a kill has cut short is carried out by a deletion: once too.
	deleted := map[string]int{}
	for _, r := range s.requests(func(r request) bool {
		return r.Verb == "delete" && r.ObjectRef.Resource == "pods" && r.ResponseStatus.Code == 200
	}) {
		deleted[r.ObjectRef.Name]++
	}
	evictions, brokenOff := s.evictions(), s.brokenOff()
	for uid, name := range victims {
		if n := evictions[string(uid)] + deleted[name]; n > 1 || n == 0 && !brokenOff[string(uid)] {
			t.Errorf("pod %s evicted %d times and deleted %d times, want one of them once", name, evictions[string(uid)], deleted[name])
		}
		delete(evictions, string(uid))
	}
	if len(evictions) != 0 {
		t.Errorf("pods evicted that were not on the node: %v", evictions)
	}
	if len(victims) != pods {
		t.Fatalf("%d pods were on the node, want %d", len(victims), pods)
	}
	if claims := s.claims("batch-fallback", ""); len(claims) != 1 {
		t.Errorf("claims %v, want one", claims)
	}
	_, err := s.cluster.WaitReady(s.ctx, "default", "web", pods)
	s.must(err)
	for _, line := range last.Lines("drained") {
		if line["graceful"] != float64(pods) || line["left"] != 0.0 {
			t.Errorf("want all %d graceful, whoever evicted them: %v", pods, line)
		}
	}
}

// The leader is killed in the middle of a drain: its follower goes on when the lease has run out.
func TestKilledLeaderIsFollowedInSeconds(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	s.service("web", 12, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(11) })
	server, queue := s.sqs()
	leader := s.runReplica(server, queue)
	s.waitLine(leader, "leading")
	follower := s.runReplica(server, queue)

	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Draining })
	leader.Kill()
	killed := time.Now()
	if n := len(follower.Lines("leading")); n != 0 {
		t.Fatal("the follower leads already")
	}
	s.waitLine(follower, "leading")
	var went request // the first that the follower asks to evict; whether the budget lets it is another matter
	s.eventually("an eviction by the follower", func() bool {
		asked := s.requests(func(r request) bool {
			return r.ObjectRef.Subresource == "eviction" && r.RequestReceivedTimestamp.After(killed.Add(time.Second))
		})
		if len(asked) > 0 {
			went = asked[0]
		}
		return len(asked) > 0
	})
	// 6 s of lease, and a second each for the renewal and for noticing.
	if took := went.RequestReceivedTimestamp.Sub(killed); took > 15*time.Second {
		t.Errorf("the drain went on after %s, want about 8 s", took)
	}
	s.waitGone(node.Name)
	if drained := s.waitLine(follower, "drained"); drained["graceful"] != 12.0 {
		t.Errorf("want 12 graceful: %v", drained)
	}
}

// Somebody takes the leader's lease in the middle of a drain, and never renews it. The process
// moves no pod while another might, leads again when that lease has run out, and goes on.
func TestALostLeaseIsCampaignedFor(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	const pods = 12
	interrupted := s.service("web", pods, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.BudgetMinAvailable, d.MaxSurge = budget(pods-1), never
	})
	s.bare("spare", 1, 8)
	server, queue := s.sqs()
	leader := s.runReplica(server, queue)
	s.waitLine(leader, "leading")
	interrupt(queue, node.Name, 110*time.Second)
	s.eventually("the first evictions", func() bool { return len(s.evicted()) >= 2 })

	taken := fmt.Sprintf(`{"spec":{"holderIdentity":"somebody","renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	_, err := s.cluster.Client.CoordinationV1().Leases(namespace).Patch(s.ctx, "spot-handler", types.MergePatchType, []byte(taken), metav1.PatchOptions{})
	s.must(err)
	timeOf := func(line daemon.Line) time.Time {
		text, _ := line["time"].(string)
		at, err := time.Parse(time.RFC3339, text)
		s.must(err)
		return at
	}
	lost := timeOf(s.waitLine(leader, "leading no more, campaigning again"))
	if n := s.metric(leader, "spot_handler_leader"); n != 0 {
		t.Error("it still counts as the leader")
	}
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	s.must(leader.WaitReady(ctx)) // it still takes notices
	s.eventually("the second leadership", func() bool { return len(leader.Lines("leading")) == 2 })
	again := timeOf(leader.Lines("leading")[1])
	for _, r := range s.requests(func(r request) bool { return r.ObjectRef.Subresource == "eviction" }) {
		if r.RequestReceivedTimestamp.After(lost) && r.RequestReceivedTimestamp.Before(again) {
			t.Errorf("an eviction %s after the lease was lost", r.RequestReceivedTimestamp.Sub(lost))
		}
	}
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if n := s.metric(leader, "spot_handler_leader"); n != 1 {
		t.Error("it does not count as the leader")
	}
	s.wantEachOnce(uids(interrupted))
	if code := leader.Stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

// A leader that stops in order hands over at once.
func TestStoppedLeaderHandsOver(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	server, queue := s.sqs()
	leader := s.runReplica(server, queue)
	identity := s.waitLine(leader, "leading")["identity"]
	follower := s.runReplica(server, queue)
	if code := leader.Stop(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	lease, err := s.cluster.Client.CoordinationV1().Leases(namespace).Get(s.ctx, "spot-handler", metav1.GetOptions{})
	s.must(err)
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder == identity {
		t.Errorf("the lease is still that of %s, who has stopped", *holder)
	}
	s.waitLine(follower, "leading")
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1})
	s.must(err)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(nodes[0].Name), time.Now()))
	_, err = s.cluster.WaitNode(s.ctx, nodes[0].Name, func(n *corev1.Node) bool {
		r, ok := record(n)
		return ok && r.Phase == interruption.Released
	})
	s.must(err)
}
