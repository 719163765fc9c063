// Package stories proves, against a real control plane with Karpenter and with
// spot-handler as a process of its own, what the manual promises: one file per story.
package stories

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
)

// story is a cluster and what happens in it.
type story struct {
	*testing.T
	ctx     context.Context
	cluster *controlplane.Cluster

	applied  sync.Mutex
	releases map[string]bool // whose accounts there are, see accounts
	installs bool            // the chart, so its accounts come with it
	goesBack bool            // to an older version of the chart

	seen struct { // what allRequests has read so far
		sync.Mutex
		bytes int64
		lines []request
	}
}

func TestMain(m *testing.M) {
	next.open()
	code := m.Run()
	controlplane.ReturnAll()
	os.Exit(code)
}

// newStory gives a story an empty cluster that others have used before. Stories run side by
// side, and each has its cluster to itself.
func newStory(t *testing.T, options controlplane.Options) *story {
	t.Helper()
	next.take(t, turn{kind: kindOf(options), returns: true})
	return storyIn(t, controlplane.Borrow(t, options))
}

// newStoryApart is newStory for a story that leaves traces which no deletion of objects removes: in
// what the API server admits and defines, in the volumes that controllers believe attached,
// or in the processes. Nobody else uses its cluster afterwards.
func newStoryApart(t *testing.T, options controlplane.Options) *story {
	t.Helper()
	next.take(t, turn{kind: kindOf(options)})
	return storyIn(t, controlplane.Take(t, options))
}

// newLargeStory is for a story of hundreds of nodes or pods, with a cluster of its own: half as many
// others run meanwhile.
func newLargeStory(t *testing.T, options controlplane.Options) *story {
	t.Helper()
	next.take(t, turn{large: true})
	return storyIn(t, controlplane.ForTest(t, options))
}

func storyIn(t *testing.T, cluster *controlplane.Cluster) *story {
	t.Helper()
	s := &story{T: t, ctx: t.Context(), cluster: cluster}
	t.Cleanup(s.nothingForbidden)
	return s
}

// pools makes the pools of the manual: spot first, on-demand to fall back on.
func (s *story) pools(boot time.Duration) {
	s.Helper()
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{
			Name: "batch", Weight: 100, CPUs: 16, Boot: time.Second,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"},
		},
		controlplane.PoolSpec{
			Name: "batch-fallback", Weight: 10, CPUs: 16, Boot: boot,
			Capacity: []string{controlplane.OnDemand},
		}))
}

// node brings up a node of the pool.
func (s *story) node(pool string) *corev1.Node {
	s.Helper()
	node, err := s.cluster.CreateNode(s.ctx, pool)
	s.must(err)
	return node
}

// service runs a Deployment whose pods are on nodes of Karpenter, and waits until all
// of them are ready.
func (s *story) service(name string, replicas int, change func(*controlplane.DeploymentSpec)) []*corev1.Pod {
	s.Helper()
	ready, stop := 3*time.Second, 2*time.Second
	spec := controlplane.DeploymentSpec{
		Name: name, Replicas: replicas, CPU: "500m",
		Behaviour: controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &stop},
	}
	if change != nil {
		change(&spec)
	}
	_, err := s.cluster.RunDeployment(s.ctx, spec)
	s.must(err)
	pods, err := s.cluster.WaitReady(s.ctx, "default", name, replicas)
	s.must(err)
	return pods
}

// budget is for DeploymentSpec's budgets.
func budget(n int) *intstr.IntOrString { v := intstr.FromInt32(int32(n)); return &v }

// eventually polls until ok says so; five minutes are more than any step takes.
func (s *story) eventually(what string, ok func() bool) {
	s.Helper()
	s.within(what, 5*time.Minute, ok, func() string { return "" })
}

// Between polls there is as long as a twentieth of the time so far: the tests share the processors.
const (
	pollSoonest = 50 * time.Millisecond
	pollLatest  = 250 * time.Millisecond
)

// within polls until ok says so, and reports the state of things if it never does.
func (s *story) within(what string, limit time.Duration, ok func() bool, state func() string) {
	s.Helper()
	began := time.Now()
	deadline := time.After(limit)
	for !ok() {
		select {
		case <-deadline:
			s.Fatalf("%s: not within %s; %s", what, limit, state())
		case <-s.ctx.Done():
			s.Fatalf("%s: %v", what, s.ctx.Err())
		case <-time.After(min(max(pollSoonest, time.Since(began)/20), pollLatest)):
		}
	}
}

func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}
