package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// Pods whose owners ask that they run on, and pods of Jobs, which may finish by
// themselves. On a rebalance recommendation they stay, while the others go to the
// replacement; when the notice comes they are held to their latest safe start. The
// Job that ends before that has never been disturbed.
func TestHeldPodsLeaveAtTheirLatestSafeStart(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	held := map[types.UID]string{}
	hold := func(name, annotation, value string) {
		for _, p := range s.service(name, 1, func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.Annotations = map[string]string{annotation: value}
		}) {
			held[p.UID] = p.Name
		}
	}
	hold("no-disruption", "karpenter.sh/do-not-disrupt", "true")
	hold("not-safe", "cluster-autoscaler.kubernetes.io/safe-to-evict", "false")
	for uid, name := range uids(s.job("long", quick)) {
		held[uid] = name
	}
	finishes := s.job("short", func(d *controlplane.DeploymentSpec) {
		quick(d)
		after := 30 * time.Second // from its start: in the middle of the story
		d.CompleteAfter = &after
	})[0]
	movable := uids(s.service("web", 3, quick))
	d, queue := s.drill()
	instance := controlplane.InstanceID(node.Name)

	queue.Send(daemon.EventBridge(daemon.Rebalance, "event-1", instance, time.Now()))
	s.eventually("departure of all that may go", func() bool {
		return len(s.evictions()) == len(movable) && len(s.podsOn(node.Name, "web")) == 0
	})
	s.waitRecord(node.Name, func(r interruption.Record) bool {
		return r.Kind == interruption.RebalanceRecommendation && !r.Phase.Over()
	})
	s.wantEachOnce(movable)

	deadline := interrupt(queue, node.Name, 40*time.Second)
	drained := s.waitLine(d, "drained")
	if drained["left"] != 0.0 || drained["kind"] != string(interruption.SpotInterruption) {
		t.Errorf("want all graceful: %v", drained)
	}
	latest := deadline.Add(-10*time.Second - 5*time.Second)
	clamped := 0.0
	for _, r := range s.evicted() {
		uid := types.UID(r.RequestObject.DeleteOptions.Preconditions.UID)
		if _, ok := movable[uid]; ok {
			continue
		}
		if early := latest.Sub(r.RequestReceivedTimestamp); early > 0 {
			t.Errorf("pod %s was evicted %s before its latest safe start", r.ObjectRef.Name, early)
		}
		if g := r.RequestObject.DeleteOptions.GracePeriodSeconds; g != nil {
			clamped++
			if late := r.RequestReceivedTimestamp.Sub(latest); late < time.Second { // a busy machine may be late
				t.Errorf("the grace of pod %s was clamped to %d s, and it fitted", r.ObjectRef.Name, *g)
			}
		}
		held[uid] += "" // one that is not held would be a new entry
		delete(held, uid)
	}
	if drained["truncated"] != clamped {
		t.Errorf("want %v truncated, and all others graceful: %v", clamped, drained)
	}
	if len(held) != 0 {
		t.Errorf("not evicted: %v", held)
	}
	if s.evictions()[string(finishes.UID)] != 0 {
		t.Errorf("pod %s was evicted, want it to finish", finishes.Name)
	}
	s.waitGone(node.Name)
	job, err := s.cluster.WaitPods(s.ctx, "default", controlplane.Selector("long"), func(pods []*corev1.Pod) bool {
		return len(pods) > 0 && controlplane.Ready(pods[len(pods)-1])
	})
	s.must(err)
	if len(job) > 2 {
		t.Errorf("the Job has had %d pods, want one and its replacement", len(job))
	}
}

// A wish not to be disrupted for a time counts as Karpenter counts it: since the pod's start.
// On a rebalance recommendation the pod stays until that is over, and leaves then; one whose
// time was over before the recommendation leaves with the others. One whose budget never lets
// any go stays for as long as there is nothing but the recommendation, and is not surged either.
func TestTheWishNotToBeDisruptedLapses(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	const long = 45 * time.Second
	started := time.Now()
	pods := map[string]*corev1.Pod{}
	for name, wish := range map[string]string{"long": long.String(), "short": "1s"} {
		pods[name] = s.service(name, 1, func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": wish}
		})[0]
	}
	firm := s.service("firm", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.BudgetMaxUnavailable = never
	})
	d, queue := s.drill()

	queue.Send(daemon.EventBridge(daemon.Rebalance, "event-1", controlplane.InstanceID(node.Name), time.Now()))
	s.eventually("departure of the pod whose time is over", func() bool { return len(s.podsOn(node.Name, "short")) == 0 })
	if s.evictions()[string(pods["long"].UID)] != 0 {
		t.Error("the pod whose time is not over was evicted")
	}
	s.eventually("departure of the other", func() bool { return len(s.podsOn(node.Name, "long")) == 0 })
	if early := long - time.Since(started); early > 0 {
		t.Errorf("it left %s too early", early)
	}
	s.wantEachOnce(uids([]*corev1.Pod{pods["long"], pods["short"]}))
	if now := s.podsOn(node.Name, "firm"); len(now) != 1 || now[0].UID != firm[0].UID || isSurged(&now[0]) {
		t.Errorf("the pod whose budget never lets any go did not stay as it was: %v", now)
	}
	interrupt(queue, node.Name, 100*time.Second)
	s.eventually("departure of the last", func() bool { return len(s.podsOn(node.Name, "firm")) == 0 })
	if refused := s.metric(d, `spot_handler_evictions_total{code="429"}`); refused != 0 {
		t.Errorf("%v evictions refused, want none: the replacement pod had made the room", refused)
	}
}
