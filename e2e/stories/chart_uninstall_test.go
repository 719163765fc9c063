package stories

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// An installation is removed by the commands of the manual while one node is being drained, with
// surged pods and a protected replacement, and another has placeholder pods; a third has been
// replaced already, and is held on demand. The drains are cancelled. What was there before is as it was, and nothing that
// has come since mentions spot-handler, in any resource that the API server serves.
func TestUninstallLeavesNothing(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "batch", CPUs: 4, Labels: team("batch"), Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"}},
		controlplane.PoolSpec{Name: "batch-fallback", CPUs: 4, Labels: team("batch"), Capacity: []string{controlplane.OnDemand}, Boot: 5 * time.Second, ConsolidateAfter: "1h"},
		controlplane.PoolSpec{Name: "slow", CPUs: 4, Labels: team("slow"), Annotations: map[string]string{"spot-handler/fallback-nodepool": "slow-fallback"}},
		controlplane.PoolSpec{Name: "slow-fallback", CPUs: 4, Labels: team("slow"), Capacity: []string{controlplane.OnDemand}, Boot: 10 * time.Minute}))
	replaced, surging := s.node("batch"), s.node("slow")
	waiting := s.teamNode("bare", "spot")
	for _, name := range []string{"batch", "slow", "bare"} {
		s.service(name, 2, surge(map[string]int{"slow": 1}[name], func(d *controlplane.DeploymentSpec) {
			d.CPU, d.NodeSelector = "1500m", team(name)
			if name != "slow" {
				d.MaxUnavailable = budget(1)
			}
		}))
	}
	s.bare("other", 2, 4) // for the Deployment
	before := s.everything()

	h, queue := s.installed()
	for _, n := range []*corev1.Node{replaced, surging, waiting} {
		interrupt(queue, n.Name, 5*time.Minute) // so that nothing is cut short on a slow machine
	}
	s.waitGone(replaced.Name)
	s.waitSurged(1)
	s.eventually("placeholders", func() bool { return len(s.placeholders()) == 2 })
	s.waitEmpty(queue)
	held := s.claim(s.claims("batch-fallback", controlplane.InstanceID(replaced.Name))[0]).GetAnnotations()
	if held[doNotDisrupt] != "true" || held["spot-handler/stands-in-for"] != "batch" {
		t.Errorf("annotations of the replacement %v, want it held", held)
	}

	s.runManual(h, "supported.md", "## Uninstall", "")

	for _, n := range []*corev1.Node{surging, waiting} {
		if node := s.lastSeen(n.Name); node == nil || node.Spec.Unschedulable || hasTaint(node, interruption.TaintKey) {
			t.Errorf("node %s is not as it was: %+v", n.Name, node)
		}
	}
	s.wantPods("default", "slow", 2)
	s.wantPods("default", "bare", 2)
	s.wantNothingLeft(before)
}

// As the manual allows, this leaves out the command that cancels the interruptions, and waits for
// their end. Karpenter replaces one node. For the pods of the other, placeholder pods keep room on a
// node that joins, and EC2 terminates the other once it is drained. Every pod has its whole grace
// period, and nothing is left here either.
func TestUninstallAfterTheDrains(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "batch", CPUs: 4, Labels: team("batch"), Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"}},
		controlplane.PoolSpec{Name: "batch-fallback", CPUs: 4, Labels: team("batch"), Capacity: []string{controlplane.OnDemand}, Boot: 10 * time.Second}))
	nodes := []*corev1.Node{s.node("batch"), s.teamNode("bare", "spot")}
	for name, maxSurge := range map[string]int{"batch": 1, "bare": 0} {
		s.service(name, 2, surge(maxSurge, func(d *controlplane.DeploymentSpec) {
			d.CPU, d.NodeSelector, d.MaxUnavailable = "1500m", team(name), budget(1-maxSurge)
		}))
	}
	s.bare("other", 2, 4) // for the Deployment
	before := s.everything()
	records := s.watchRecords(nodes)

	h, queue := s.installed()
	for _, n := range nodes {
		interrupt(queue, n.Name, 5*time.Minute) // so that nothing is cut short on a slow machine
	}
	s.waitSurged(1)
	s.eventually("placeholders", func() bool { return len(s.placeholders()) == 2 })
	s.waitEmpty(queue)
	s.teamNode("bare", "on-demand")
	s.background(func(ctx context.Context) {
		_, err := s.cluster.WaitNode(ctx, nodes[1].Name, func(n *corev1.Node) bool { rec, _ := record(n); return rec.Phase == interruption.Released })
		if err == nil {
			err = s.cluster.Client.CoreV1().Nodes().Delete(ctx, nodes[1].Name, metav1.DeleteOptions{})
		}
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})

	s.runManual(h, "supported.md", "## Uninstall", "kubectl annotate nodes --all --overwrite spot-handler/cancel=true\n")

	for i, name := range []string{"batch", "bare"} {
		records.wantAllGraceful(s, nodes[i].Name, 2)
		s.waitGone(nodes[i].Name)
		s.wantPods("default", name, 2)
	}
	s.wantNothingLeft(before)
}

// installed installs the chart in queue mode, and runs its Deployment.
func (s *story) installed() (chart.Helm, *sqsemu.Queue) {
	s.Helper()
	s.installs = true
	server, queue := s.sqs()
	h := s.helm()
	release := chart.Release{Values: chart.Values("queue", map[string]any{
		"flags.queueUrl": queue.URL(), "flags.fallbackSelector": onDemand, "controller.podAnnotations": map[string]any{"e2e.spot-handler/stop-after": "5s"},
	})}
	_, err := h.Install(s.ctx, s.cluster.Kubeconfig, release)
	s.must(err)
	s.runReplicas(server)
	return h, queue
}

func team(name string) map[string]string { return map[string]string{"team": name} }

// teamNode makes a node for the team's pods that nothing provisions.
func (s *story) teamNode(name, capacity string) *corev1.Node {
	s.Helper()
	return s.bareWith(name, controlplane.BareNodes{CPUs: 4, Labels: map[string]string{"team": name, lifecycle: capacity}})[0]
}

// wantNothingLeft compares all objects with those from before: what was there has not changed, and
// what is new does not mention spot-handler.
func (s *story) wantNothingLeft(before map[types.UID]object) {
	s.Helper()
	after := s.everything()
	for id, was := range before {
		if now, there := after[id]; there && now.text != was.text {
			s.Errorf("%s was\n%s\nand is\n%s", was.name, was.text, now.text)
		}
	}
	for id, now := range after {
		if _, old := before[id]; !old && strings.Contains(strings.ReplaceAll(now.text, "e2e.spot-handler/", ""), "spot-handler") {
			s.Errorf("%s has come with spot-handler:\n%s", now.name, now.text)
		}
	}
}

// object is what there is of one to compare: what anybody but its own controllers sets.
type object struct{ name, text string }

// everything lists all objects, by their UIDs, but for Events, and what has to change all the time.
func (s *story) everything() map[types.UID]object {
	s.Helper()
	_, lists, err := s.cluster.Client.Discovery().ServerGroupsAndResources()
	s.must(err)
	found := map[types.UID]object{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		s.must(err)
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "events" || r.Name == "endpoints" || r.Name == "componentstatuses" {
				continue
			}
			objects, err := s.cluster.Dynamic.Resource(version.WithResource(r.Name)).List(s.ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				continue
			}
			s.must(err)
			for _, o := range objects.Items {
				found[o.GetUID()] = object{r.Name + " " + o.GetNamespace() + "/" + o.GetName(), summary(o)}
			}
		}
	}
	return found
}

func summary(o unstructured.Unstructured) string {
	annotations := o.GetAnnotations()
	maps.DeleteFunc(annotations, func(name, _ string) bool { return strings.HasPrefix(name, "e2e.spot-handler/") })
	taints, _, _ := unstructured.NestedSlice(o.Object, "spec", "taints")
	cordoned, _, _ := unstructured.NestedBool(o.Object, "spec", "unschedulable")
	var conditions []string
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && o.GetKind() == "Node" {
			conditions = append(conditions, fmt.Sprint(c["type"]))
		}
	}
	slices.Sort(conditions)
	return fmt.Sprintf("%s/%s\nlabels %v\nannotations %v\nfinalizers %v\ntaints %v\ncordoned %t\nconditions %v",
		o.GetNamespace(), o.GetName(), o.GetLabels(), annotations, o.GetFinalizers(), taints, cordoned, conditions)
}

// runManual runs the commands of a section of the manual in order, on the test's cluster, except for
// the one that is left out.
func (s *story) runManual(h chart.Helm, page, section, leftOut string) {
	s.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "docs", page))
	s.must(err)
	_, rest, found := strings.Cut(string(text), "\n"+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	blocks := strings.Split(rest, "```")
	if !found || len(blocks) < 3 || !strings.Contains(rest, leftOut) {
		s.Fatalf("%s has no commands in %q, or not %q", page, section, leftOut)
	}
	bin := s.TempDir()
	s.must(os.Symlink(s.cluster.Kubectl, filepath.Join(bin, "kubectl")))
	s.must(os.Symlink(h.Path, filepath.Join(bin, "helm")))
	for i, block := range blocks {
		commands, isShell := strings.CutPrefix(strings.Replace(block, leftOut, "", 1), "sh\n")
		if i%2 == 0 || !isShell {
			continue
		}
		cmd := exec.CommandContext(s.ctx, "sh", "-eu", "-c", commands)
		cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+s.cluster.Kubeconfig, "HOME="+bin)
		out, err := cmd.CombinedOutput()
		s.Logf("%s\n%s", commands, out)
		s.must(err)
	}
}
