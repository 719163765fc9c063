package stories

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/handler/interruption"
)

// An installation goes from the version before to this one, back, and to this one again, in mode
// both, while one node after the other is interrupted: pods are surged, others held, and
// replacements are on their way. First the DaemonSet is replaced, with the Deployment of the other
// version beside it, then the Deployment, then both. Every notice is seen through, every pod is
// evicted once and with all its grace, each node is replaced once, and what a still later version
// has put on a record stays there.
func TestUpgradeAndRollbackWhileNodesDrain(t *testing.T) {
	older, err := daemon.BuildOlder()
	if err != nil && os.Getenv("SPOT_HANDLER_E2E_HISTORY") == "none" { // as .ci/run has found and said
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := tell(t, controlplane.Options{Karpenter: true, Audit: true})
	s.withAccounts = true         // those of the installed chart
	const boot = 20 * time.Second // about as long as a change of version takes
	team := map[string]string{"team": "batch"}
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "batch", CPUs: 4, Labels: team, Boot: boot, Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"}},
		controlplane.PoolSpec{Name: "batch-fallback", CPUs: 4, Labels: team, Boot: boot, Capacity: []string{controlplane.OnDemand}}))
	const count = 4
	nodes, err := s.cluster.CreateNodes(s.ctx, "batch", count)
	s.must(err)
	s.bare("other", 3, 4) // for the Deployment
	// The nodes are full: what leaves one has to wait for its replacement.
	web := s.service("web", 2*count, surge(2, func(d *controlplane.DeploymentSpec) {
		d.CPU, d.NodeSelector, d.BudgetMinAvailable = "1500m", team, budget(2*count)
	}))
	held := s.service("held", count, func(d *controlplane.DeploymentSpec) {
		d.CPU, d.NodeSelector, d.MaxSurge, d.MaxUnavailable = "800m", team, never, budget(1)
	})
	seen := s.watchSurge("default", "web")
	server, queue := s.sqs()
	metadata := map[string]*imdsemu.Server{}
	for _, n := range nodes {
		metadata[n.Name] = s.imds(n)
	}
	records := s.watchRecords(nodes)
	pods := s.runPods("app.kubernetes.io/name=spot-handler", func(p *corev1.Pod) daemon.Options {
		o := daemon.Options{SQS: server.URL}
		if m := metadata[p.Spec.NodeName]; m != nil {
			o.IMDS = m.URL
		}
		if isOf(p, older.Version) {
			o.Binary = older.Binary
		}
		return o
	})

	// rolled waits until all pods of the component are of the version, and run; of the DaemonSet there
	// is one on each node that stays.
	rolled := func(component, version string) {
		t.Helper()
		s.eventually(component+" of version "+version, func() bool {
			on := map[string]bool{}
			for _, p := range pods.of(component) {
				if records.leaves(p.Spec.NodeName) {
					continue // with its node
				}
				if !isOf(p, version) || pods.daemon(p) == nil {
					return false
				}
				on[p.Spec.NodeName] = true
			}
			return component == "queue" && len(on) == 2 ||
				component == "imds" && !slices.ContainsFunc(nodes, func(n *corev1.Node) bool { return !on[n.Name] && !records.leaves(n.Name) })
		})
	}
	// interrupted waits until the pods of the node could leave, but for the replacement, which is on its way.
	interrupted := func(node *corev1.Node, bySQS bool) {
		t.Helper()
		const left = 5 * time.Minute // so that nothing is cut short on a slow machine
		deadline := time.Now().Add(left)
		if bySQS {
			deadline = interrupt(queue, node.Name, left)
		}
		metadata[node.Name].Interrupt("terminate", deadline)
		s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Replacement != nil && r.Replacement.Name != "" })
		s.eventually("surged pods", func() bool { return len(s.surgedPods()) > 0 })
	}
	release := func(version, controller, flags, dir string) chart.Release {
		stops := map[string]any{"e2e.spot-handler/stop-after": "5s"} // as long as the programs may take
		values := chart.Values("both", map[string]any{
			"flags": map[string]any{}, "image.tag": version, flags + ".queueUrl": queue.URL(), controller + ".podAnnotations": stops,
			"imds.podAnnotations": stops, "imds.maxUnavailable": "100%",
		})
		return chart.Release{Chart: dir, Values: values}
	}
	before, now := release(older.Version, "controller", "flags", older.Chart), release("now", "controller", "flags", "")
	text, err := os.ReadFile(filepath.Join(older.Chart, "values.yaml"))
	s.must(err)
	if !strings.Contains(string(text), "\ncontroller:") {
		before = release(older.Version, "queue", "queue.flags", older.Chart)
	}
	h := s.helm()
	patch := func(object, change string) {
		s.kubectl("", "patch", object, "--namespace="+namespace, "--patch="+change)
	}

	_, err = h.Install(s.ctx, s.cluster.Kubeconfig, before)
	s.must(err)
	rolled("imds", older.Version)
	rolled("queue", older.Version)
	interrupted(nodes[0], true)

	patch("deployment/spot-handler-queue", `{"spec":{"paused":true}}`)
	_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, now)
	s.must(err)
	rolled("imds", "now")
	interrupted(nodes[1], false)
	patch("deployment/spot-handler-queue", `{"spec":{"paused":false}}`)
	rolled("queue", "now")

	patch("daemonset/spot-handler-imds", `{"spec":{"updateStrategy":{"type":"OnDelete"}}}`)
	_, err = h.Run(s.ctx, s.cluster.Kubeconfig, "rollback", "spot-handler", "--namespace="+namespace)
	s.must(err)
	rolled("queue", older.Version)
	interrupted(nodes[2], true)
	patch("daemonset/spot-handler-imds", `{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}`)
	rolled("imds", older.Version)

	interrupted(nodes[3], true)
	_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, now)
	s.must(err)
	rolled("queue", "now")
	const later = `,"later":{"a":1}}`
	s.eventually("a field of a later version", func() bool { return s.replaceRecord(nodes[3].Name, later) })
	rolled("imds", "now")

	s.waitEmpty(queue)
	for _, n := range nodes {
		rec := records.waitReleased(s, n.Name)
		if rec.Pods == nil || rec.Pods.Total != 3 || rec.Pods.Graceful != 3 {
			t.Errorf("record %s, want 3 pods graceful", rec)
		}
		if made := s.claims("batch-fallback", controlplane.InstanceID(n.Name)); len(made) != 1 {
			t.Errorf("node %s is replaced by %v, want one", n.Name, made)
		}
	}
	if text := records.text(nodes[3].Name); !strings.HasSuffix(text, later) {
		t.Errorf("record %s, want it to end in %s", text, later)
	}
	s.wantEachOnce(uids(append(web, held...)))
	s.wantNoneSurged()
	s.wantPods("default", "web", 2*count)
	s.wantPods("default", "held", count)
	if _, ready := seen.worst(); ready < 2*count {
		t.Errorf("only %d pods of the service that allows a surge were ready at some moment, want never less than %d", ready, 2*count)
	}
}

// isOf reports whether the pod is of the version.
func isOf(pod *corev1.Pod, version string) bool {
	return strings.HasSuffix(pod.Spec.Containers[0].Image, ":"+version)
}

// of are the pods of the component.
func (r *replicas) of(component string) []*corev1.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.pods), func(p *corev1.Pod) bool { return p.Labels["app.kubernetes.io/component"] != component })
}

// lastRecords are those that nodes had last, also when they are gone.
type lastRecords struct {
	mu      sync.Mutex
	texts   map[string]string
	leaving map[string]bool
}

// watchRecords follows nodes until the test ends.
func (s *story) watchRecords(nodes []*corev1.Node) *lastRecords {
	l := &lastRecords{texts: map[string]string{}, leaving: map[string]bool{}}
	for _, n := range nodes {
		s.background(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // more than the default of WaitNode
			defer cancel()
			_, _ = s.cluster.WaitNode(ctx, n.Name, func(now *corev1.Node) bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.leaving[n.Name] = now == nil || now.DeletionTimestamp != nil
				if now != nil {
					l.texts[n.Name] = now.Annotations[interruption.Annotation]
				}
				return now == nil
			})
		})
	}
	return l
}

func (l *lastRecords) text(node string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.texts[node]
}

// leaves reports whether somebody has deleted the node.
func (l *lastRecords) leaves(node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving[node]
}

func (l *lastRecords) waitReleased(s *story, node string) (rec interruption.Record) {
	s.Helper()
	s.within("end of the drain of "+node, 5*time.Minute, func() bool {
		rec, _ = interruption.ParseRecord(l.text(node))
		return rec.Phase == interruption.Released
	}, func() string { return "its record is " + l.text(node) })
	return rec
}

// replaceRecord puts an end of the record in the place of its brace, unless somebody else writes it now.
func (s *story) replaceRecord(node, end string) bool {
	s.Helper()
	const path = "/metadata/annotations/spot-handler~1interruption"
	text := s.lastSeen(node).Annotations[interruption.Annotation]
	change, err := json.Marshal([]map[string]string{
		{"op": "test", "path": path, "value": text},
		{"op": "replace", "path": path, "value": strings.TrimSuffix(text, "}") + end},
	})
	s.must(err)
	_, err = s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node, types.JSONPatchType, change, metav1.PatchOptions{})
	return err == nil
}
