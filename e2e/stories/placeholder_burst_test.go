package stories

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/placeholder"
)

// A hundred nodes are interrupted at once, every message comes twice, and the leader
// is killed while it makes placeholders: each pod has one, never two, the autoscaler
// makes the nodes that the pods need, and in the end nothing is left.
func TestPlaceholdersOfABurst(t *testing.T) {
	s := newLargeStory(t, controlplane.Options{Audit: true, Heartbeat: time.Minute})
	s.accounts(inBothModes)
	const nodes, pods, needed = 100, 200, 2
	spots := s.spot(nodes, 1)
	s.service("web", pods, func(d *controlplane.DeploymentSpec) { d.CPU, d.Memory, d.Grace = "300m", "64Mi", 5*time.Second })
	server, queue := s.sqs()
	leader := s.holder(server, queue)
	s.waitLine(leader, "leading")
	follower := s.keep(s.holderOptions(server, queue))

	// All that ever were, by the pod that they stand for.
	seen := map[string]map[types.UID]bool{}
	most := 0
	watching, stop := context.WithTimeout(s.ctx, 10*time.Minute)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = s.cluster.WaitPods(watching, holdNamespace, placeholder.Label, func(list []*corev1.Pod) bool {
			most = max(most, len(list))
			for _, p := range list {
				of := p.Annotations["spot-handler/holds-for-uid"]
				if seen[of] == nil {
					seen[of] = map[types.UID]bool{}
				}
				seen[of][p.UID] = true
			}
			return false
		})
	}()

	began := time.Now()
	for range 2 {
		for _, node := range spots {
			instance := controlplane.InstanceID(node.Name)
			queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-of-"+instance, instance, began))
		}
	}
	s.eventually("a third of the placeholders", func() bool { return len(s.placeholders()) > pods/3 })
	leader.Kill()
	t.Logf("leader killed after %s", time.Since(began))
	ready := 0
	s.eventually("a second leader", func() bool {
		return len(follower.daemon().Lines("leading")) > 0
	})
	// Only now: else some nodes would be ready before the leader was killed, and the second one
	// has not seen who took the room of their placeholders.
	cas := s.autoscale(32, 5*time.Second)
	allOver := func() bool {
		list, err := s.cluster.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{LabelSelector: lifecycle + "=spot"})
		s.must(err)
		released := 0
		ready = 0
		for i := range list.Items {
			rec, _ := record(&list.Items[i])
			if rec.Phase == interruption.Released {
				released++
			}
			if rec.Replacement != nil && rec.Replacement.State == provisioner.StateReady {
				ready++
			}
		}
		return released == nodes
	}
	s.eventually("the drains have ended", allOver)
	t.Logf("%d drains ended after %s, %d with a replacement that was Ready", nodes, time.Since(began), ready)
	if ready != nodes && follower.endings() == 0 { // a leader that starts again has not seen who took a placeholder's room
		t.Errorf("%d of %d replacements were Ready", ready, nodes)
	}
	s.noneHeld()
	stop()
	<-done

	if len(seen) > pods || most > pods {
		t.Errorf("placeholders for %d pods, at most %d at once, want no more than %d", len(seen), most, pods)
	}
	for of, those := range seen {
		if len(those) != 1 {
			t.Errorf("pod %s has had %d placeholders", of, len(those))
		}
	}
	for name, n := range s.placeholdersMade() {
		if n != 1 {
			t.Errorf("placeholder %s was made %d times", name, n)
		}
	}
	if n := cas.nodes(); n != needed {
		t.Errorf("the autoscaler has made %d nodes, want the %d that the pods need", n, needed)
	}
	_, err := s.cluster.WaitReady(s.ctx, "default", "web", pods)
	s.must(err)
}

// kept is a daemon that is started again when it ends by itself, as the kubelet does it.
// On a machine that is busy with other things a leader may lose its lease.
type kept struct {
	mu      sync.Mutex
	current *daemon.Daemon
	ended   int
}

// keep starts a daemon that is kept until the story ends.
func (s *story) keep(o daemon.Options) *kept {
	s.Helper()
	first, err := daemon.Start(o)
	s.must(err)
	k := &kept{current: first}
	over := make(chan struct{})
	var keeping sync.WaitGroup
	keeping.Go(func() {
		for {
			d := k.daemon()
			select {
			case <-over:
				d.Kill()
				return
			case <-d.Done():
			}
			s.Logf("daemon ended with code %d, and is started again", d.ExitCode())
			next, err := daemon.Start(o)
			if err != nil {
				s.Errorf("start the daemon again: %v", err)
				return
			}
			k.mu.Lock()
			k.current, k.ended = next, k.ended+1
			k.mu.Unlock()
		}
	})
	s.Cleanup(func() { close(over); keeping.Wait() })
	return k
}

func (k *kept) daemon() *daemon.Daemon {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

func (k *kept) endings() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ended
}
