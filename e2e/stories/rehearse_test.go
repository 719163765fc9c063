package stories

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
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
	"spot-handler/e2e/internal/tied"
	"spot-handler/handler/interruption"
)

// gameDay is a rehearsal that somebody runs.
type gameDay struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func (g *gameDay) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.out.Write(p)
}

func (g *gameDay) said() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.out.String()
}

// rehearse starts a rehearsal, as people do who have no terminal.
func (s *story) rehearse(args ...string) *gameDay {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	g := &gameDay{cmd: exec.Command(program, append([]string{"rehearse"}, args...)...), done: make(chan struct{})}
	g.cmd.Env = append(os.Environ(), "KUBECONFIG="+s.cluster.Kubeconfig)
	g.cmd.Stdout, g.cmd.Stderr = g, g
	s.must(tied.Start(g.cmd))
	go func() { defer close(g.done); _ = g.cmd.Wait() }() // the code says how it ended
	s.Cleanup(func() { _ = g.cmd.Process.Kill(); <-g.done })
	return g
}

// wantCode waits until the rehearsal has ended with the exit code, and has said all that.
func (s *story) wantCode(g *gameDay, code int, say ...string) {
	s.Helper()
	s.eventually("end of the rehearsal", func() bool {
		select {
		case <-g.done:
			return true
		default:
			return false
		}
	})
	if got := g.cmd.ProcessState.ExitCode(); got != code {
		s.Fatalf("rehearsal %q ended with code %d, want %d:\n%s", g.cmd.Args[2:], got, code, g.said())
	}
	for _, text := range say {
		if !strings.Contains(g.said(), text) {
			s.Errorf("rehearsal %q did not say %q:\n%s", g.cmd.Args[2:], text, g.said())
		}
	}
}

// wantUntouched checks that the Node is as it was.
func (s *story) wantUntouched(was *corev1.Node) {
	s.Helper()
	var now *corev1.Node
	s.eventually("the end of the taint that the control plane puts on what is cordoned", func() bool {
		if now = s.lastSeen(was.Name); now == nil {
			s.Fatalf("node %s is gone", was.Name)
		}
		return now.Spec.Unschedulable || !slices.ContainsFunc(now.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable })
	})
	for key := range now.Annotations {
		if strings.HasPrefix(key, "spot-handler/") {
			s.Errorf("node %s has the annotation %s", was.Name, key)
		}
	}
	if !maps.Equal(now.Labels, was.Labels) || !slices.Equal(now.Spec.Taints, was.Spec.Taints) || now.Spec.Unschedulable {
		s.Errorf("node %s: labels %v, taints %v, unschedulable %t; want it as it was", was.Name, now.Labels, now.Spec.Taints, now.Spec.Unschedulable)
	}
}

// A node is rehearsed on, after what was said against it. Its service loses no ready pod, the
// node is in service at the end, and everything says that it was a rehearsal. Its replacement is
// rehearsed on next, and terminated.
func TestRehearsalEndsWithTheNodeInService(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	const replicas = 4
	s.service("web", replicas, surge(replicas, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(replicas) }))
	s.service("db", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.MaxSurge, d.MaxUnavailable, d.BudgetMaxUnavailable = never, budget(1), never
	})
	d, _ := s.drill()
	was := s.lastSeen(node.Name)

	s.wantCode(s.rehearse(node.Name, "--deadline=10s"), 2, "--deadline: 10s: want 25s or more")
	s.wantCode(s.rehearse(node.Name, "--kind=sunset"), 2, `--kind: "sunset": want one of`)
	s.wantCode(s.rehearse("nobody", "--yes"), 2, "no such node: nobody")
	s.wantCode(s.rehearse(node.Name, "--yes"), 2, "SH101", "--despite-findings")
	s.wantCode(s.rehearse(node.Name, "--despite-findings"), 2, "--yes")
	s.wantUntouched(was)
	s.must(s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Delete(s.ctx, "db", metav1.DeleteOptions{}))

	fewest := s.watchReady("web")
	page := filepath.Join(t.TempDir(), "report.html")
	day := s.rehearse(node.Name, "--deadline=45s", "--boot-time=5s", "--yes", "--report="+page, "--require=left=0,slack=5s")
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Rehearsed() && r.Replacement != nil })
	s.wantCode(s.rehearse(node.Name, "--despite-findings", "--yes"), 2, "interrupted already")
	s.wantCode(day, 0, fmt.Sprintf("%d of %d pods ended as forecast", replicas+1, replicas+1), "met:")
	s.wantUntouched(was)
	if html, err := os.ReadFile(page); err != nil || !bytes.Contains(html, []byte(node.Name)) {
		t.Errorf("no report about %s: %v", node.Name, err)
	}
	if n := fewest(); n < replicas {
		t.Errorf("only %d pods were ready at some time, want never less than %d", n, replicas)
	}
	if on := len(s.podsOn(node.Name, "web")); on != 0 {
		t.Errorf("%d pods are on the node still", on)
	}
	for series, want := range map[string]float64{
		`spot_handler_drains_total{kind="rehearsal",result="completed"}`:         1,
		`spot_handler_drains_total{kind="spot-interruption",result="completed"}`: 0,
		`spot_handler_pods_total{kind="rehearsal",outcome="graceful"}`:           replicas + 1,
	} {
		if n := s.metric(d, series); n != want {
			t.Errorf("%s is %v, want %v", series, n, want)
		}
	}
	if line := s.waitLine(d, "drained"); line["source"] != "rehearsal" {
		t.Errorf("the log does not say that it was a rehearsal: %v", line)
	}
	s.eventually("Events about the rehearsal", func() bool {
		over, drained := s.events("RehearsalOver", node.Name), s.events("Drained", node.Name)
		return len(over) == 1 && len(drained) == 1 && strings.HasPrefix(drained[0].Message, "rehearsal: ")
	})
	if claims := s.claims("batch-fallback", ""); len(claims) != 1 {
		t.Errorf("claims %v, want the one that the pods are on", claims)
	}
	s.wantClaimKept(node.Name)

	// The replacement is rehearsed on in its turn, and terminated: its pods are on the node that is in
	// service again or on the new replacement, as the scheduler likes.
	replacement := s.podsAway("web", node.Name)[0].Spec.NodeName
	s.wantCode(s.rehearse(replacement, "--deadline=45s", "--yes", "--release", "--require=left=0"), 0, "each node is terminated", "met:")
	s.waitGone(replacement)
	if n, away := fewest(), len(s.podsAway("web", replacement)); n < replicas || away != replicas {
		t.Errorf("%d pods were ready at the fewest, and %d are on other nodes than %s; want all %d", n, away, replacement, replicas)
	}
}

// podsAway are the pods of a service that are on other nodes.
func (s *story) podsAway(service, node string) []corev1.Pod {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{
		LabelSelector: controlplane.Selector(service), FieldSelector: "spec.nodeName!=" + node,
	})
	s.must(err)
	return list.Items
}

// wantClaimKept checks that nobody ends the NodeClaim of the node.
func (s *story) wantClaimKept(node string) {
	s.Helper()
	list, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for _, claim := range list.Items {
		name, _, _ := strings.Cut(fmt.Sprint(claim.Object["status"].(map[string]any)["nodeName"]), " ")
		if name == node {
			if claim.GetDeletionTimestamp() != nil || claim.GetAnnotations()["karpenter.sh/nodeclaim-termination-timestamp"] != "" {
				s.Errorf("the NodeClaim of node %s is being ended", node)
			}
			return
		}
	}
	s.Errorf("node %s has no NodeClaim", node)
}

// Ctrl-C in the middle, while a replacement boots: the node and its pods are as before, and the
// replacement is returned. EC2 takes the next one over, and then the node goes.
func TestRehearsalGivesWay(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.pools(6 * time.Second)
	node := s.node("batch")
	pods := s.service("web", 3, surge(3, nil))
	d, queue := s.drill("--replacement-ttl=30s")
	was := s.lastSeen(node.Name)

	day := s.rehearse(node.Name, "--yes")
	s.waitSurged(3)
	s.must(day.cmd.Process.Signal(os.Interrupt))
	s.wantCode(day, 1, "cancelled")
	s.wantUntouched(was)
	s.wantAsBefore(node.Name, "web", pods)
	s.eventually("return of the replacement", func() bool { return len(s.claims("batch-fallback", "")) == 0 })

	day = s.rehearse(node.Name, "--yes")
	s.waitSurged(3)
	deadline := interrupt(queue, node.Name, 110*time.Second)
	s.wantCode(day, 1, "interrupted by EC2")
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Rehearsed() || !rec.Deadline.Equal(deadline) || rec.Pods.Graceful != 3 {
		t.Errorf("record %s, want three pods moved by %s", rec, deadline)
	}
	s.waitGone(node.Name)
	for series, want := range map[string]float64{
		`spot_handler_drains_total{kind="rehearsal",result="canceled"}`:          1,
		`spot_handler_drains_total{kind="spot-interruption",result="completed"}`: 1,
	} {
		if n := s.metric(d, series); n != want {
			t.Errorf("%s is %v, want %v", series, n, want)
		}
	}
}

// Twenty nodes are lost within some seconds. Each has the deadline from its own notice, and all
// are in service at the end, whatever was required. Nobody drains the last: its rehearsal is
// taken back.
func TestRehearsalOfAStorm(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	const nodes = 20
	storm := s.bare("storm", nodes, 4)
	s.service("web", 2*nodes, surge(nodes, nil))
	s.bare("spare", 4, 16)
	s.label(storm)
	d := s.runDrain("--provisioner=none")
	var was []*corev1.Node
	for _, node := range storm {
		was = append(was, s.lastSeen(node.Name))
	}

	s.wantCode(s.rehearse("--selector=storm=yes", "--yes"), 2, "20 of 24 nodes", "--max-share=10 allows 2")
	page := filepath.Join(s.TempDir(), "storm.html")
	s.wantCode(s.rehearse("--selector=storm=yes", "--max-share=90", "--over=8s", "--deadline=45s", "--require=slack=44s", "--yes", "--report="+page), 3, "broken:")
	if html, err := os.ReadFile(page); err != nil || bytes.Count(html, []byte("<summary>")) < nodes {
		t.Errorf("the report is not about %d nodes: %v", nodes, err)
	}
	for _, node := range was {
		s.wantUntouched(node)
	}
	ended := s.metric(d, `spot_handler_drains_total{kind="rehearsal",result="completed"}`)
	if ended != nodes {
		t.Errorf("%v drains were completed, want %d", ended, nodes)
	}

	d.Kill()
	s.wantCode(s.rehearse(storm[0].Name, "--yes"), 1, "nobody has begun to drain it")
	s.wantUntouched(was[0])
}

// label gives nodes the label of the storm.
func (s *story) label(nodes []*corev1.Node) {
	s.Helper()
	for _, node := range nodes {
		_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"storm":"yes"}}}`), metav1.PatchOptions{})
		s.must(err)
	}
}
