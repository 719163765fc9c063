package stories

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/provisioner"
)

// Of three pools the first has lost its node class, and Karpenter deletes the claim at
// once; the second never launches, and Karpenter provisions nothing for anybody until
// we delete the claim; the third gives the node. Each is tried once, and other pods
// have theirs.
func TestNextPoolIsTried(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	od := []string{controlplane.OnDemand}
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot", Weight: 100},
		s.refusing(controlplane.PoolSpec{Name: "classless", Weight: 30, Capacity: od}),
		controlplane.PoolSpec{Name: "typeless", Weight: 20, Capacity: od, Change: typeless},
		controlplane.PoolSpec{Name: "good", Weight: 10, Capacity: od},
		controlplane.PoolSpec{Name: "others", Labels: map[string]string{"team": "others"},
			Taints: []corev1.Taint{{Key: "others", Effect: corev1.TaintEffectNoSchedule}}},
	))
	node := s.node("spot")
	r := s.replacer(s.cluster.Dynamic, nil)
	need := onePod()
	need.Moving[0].Spec.Tolerations = nil
	rec := spotRecord(node, time.Now().Add(2*time.Minute))
	// The pools were Ready when they were read, a moment ago.
	if weighed, err := r.pools.Weigh(s.ctx, node, rec, need); err != nil || len(weighed) == 0 || weighed[0].Pool != "classless" {
		t.Fatalf("weighed %+v, %v; want pool classless first", weighed, err)
	}
	s.refuse("classless")
	seen := map[string]string{}
	waitFor := func(pool string, done func(state string) bool) {
		timeout := time.After(time.Minute)
		for {
			got := r.askFor(node, &rec, need)
			seen[got.Pool] = got.Tried
			if got.Pool == pool && done(got.State) {
				return
			}
			select {
			case <-r.changed:
			case <-timeout:
				t.Fatalf("the replacement is still %+v", *rec.Replacement)
			}
		}
	}
	waitFor("typeless", provisioner.Pending)
	began := time.Now()
	// In the meantime a service of others needs a node too.
	_, err := s.cluster.RunDeployment(s.ctx, controlplane.DeploymentSpec{
		Name: "others", Replicas: 1, NodeSelector: map[string]string{"team": "others"},
		Tolerations: []corev1.Toleration{{Key: "others", Operator: corev1.TolerationOpExists}},
	})
	s.must(err)
	waitFor("good", func(state string) bool { return state == provisioner.StateReady })
	if took := time.Since(began); took < 20*time.Second {
		t.Errorf("pool typeless was given up after %s, want about 25 s", took)
	}
	if seen["typeless"] != "classless" || seen["good"] != "classless,typeless" {
		t.Errorf("tried before each pool: %v", seen)
	}
	for _, pool := range []string{"classless", "typeless"} {
		s.eventually("end of the claims of pool "+pool, func() bool { return len(s.claims(pool, "")) == 0 })
	}
	_, err = s.cluster.WaitReady(s.ctx, "default", "others", 1)
	s.must(err)
}

// typeless: no instance is of the pool's type, so its claims are never launched.
func typeless(pool *unstructured.Unstructured) {
	requirements := []any{map[string]any{"key": corev1.LabelInstanceTypeStable, "operator": "In", "values": []any{"no-such-type"}}}
	// The values can be copied, and the path leads through maps.
	_ = unstructured.SetNestedSlice(pool.Object, requirements, "spec", "template", "spec", "requirements")
}

func (s *story) readsNodeClasses() bool {
	s.Helper()
	reads, err := s.cluster.ReadsNodeClasses(s.ctx)
	s.must(err)
	return reads
}

// refusing is a pool for refuse.
func (s *story) refusing(pool controlplane.PoolSpec) controlplane.PoolSpec {
	s.Helper()
	if !s.readsNodeClasses() {
		pool.Change = typeless // it would be launched without its node class too
	}
	return pool
}

// refuse takes a pool's node class away. Karpenter then deletes the pool's claims at once, as it does
// when EC2 has no capacity. If its provider does not read the class, the claims are deleted here.
func (s *story) refuse(pool string) {
	s.Helper()
	s.loseNodeClass(pool)
	if s.readsNodeClasses() {
		return
	}
	s.Log("this Karpenter's provider refuses no claim: the test deletes them in its place")
	claims, of := s.cluster.Dynamic.Resource(controlplane.NodeClaims), metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool=" + pool}
	s.background(func(ctx context.Context) {
		watch, err := claims.Watch(ctx, of)
		for err == nil {
			select {
			case event, ok := <-watch.ResultChan():
				if !ok {
					watch, err = claims.Watch(ctx, of)
				} else if claim, ok := event.Object.(*unstructured.Unstructured); ok && claim.GetDeletionTimestamp() == nil {
					_ = claims.Delete(ctx, claim.GetName(), metav1.DeleteOptions{}) // again with its next change
				}
			case <-ctx.Done():
				watch.Stop()
				return
			}
		}
	})
}
