package stories

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/e2e/asgemu"
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
// has put on a record stays there. Of two Auto Scaling groups, each shrinks before a change of the
// Deployment, and its hook is completed once, after the change. A gang whose nodes are interrupted
// before and between two changes leaves after both, when one of its pods says now.
//
// SPOT_HANDLER_E2E_SIDE_BY_SIDE is for how much longer both versions run beside each other, twice,
// such as 3m. Drains of either version's notices begin, wait and end meanwhile.
func TestUpgradeAndRollbackWhileNodesDrain(t *testing.T) {
	older, err := buildOlder()
	if err != nil && os.Getenv("SPOT_HANDLER_E2E_HISTORY") == "none" { // as .ci/run has found and said
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var sideBySide time.Duration
	if text := os.Getenv("SPOT_HANDLER_E2E_SIDE_BY_SIDE"); text != "" {
		if sideBySide, err = time.ParseDuration(text); err != nil {
			t.Fatal("SPOT_HANDLER_E2E_SIDE_BY_SIDE: ", err)
		}
	}
	s := newStory(long(t), controlplane.Options{Karpenter: true, Audit: true}).scale(time.Second, false)
	s.installs, s.goesBack = true, true
	const boot = 20 * time.Second // about as long as a change of version takes
	team := map[string]string{"team": "batch"}
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "batch", CPUs: 4, Labels: team, Boot: boot, Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"}},
		controlplane.PoolSpec{Name: "batch-fallback", CPUs: 4, Labels: team, Boot: boot, Capacity: []string{controlplane.OnDemand}}))
	const count = 4
	nodes, err := s.cluster.CreateNodes(s.ctx, "batch", count)
	s.must(err)
	room := s.bare("other", 3, 4)[0] // for the Deployment, and for what leaves the groups
	// The nodes are full: what leaves one has to wait for its replacement.
	web := s.service("web", 2*count, surge(2, func(d *controlplane.DeploymentSpec) {
		d.CPU, d.NodeSelector, d.BudgetMinAvailable = "1500m", team, budget(2*count)
	}))
	held := s.service("held", count, func(d *controlplane.DeploymentSpec) {
		d.CPU, d.NodeSelector, d.MaxSurge, d.MaxUnavailable = "800m", team, never, budget(1)
	})
	var ranks []*corev1.Pod
	for i, n := range nodes {
		ranks = append(ranks, s.rank(n, fmt.Sprint("gang-", i/2)))
	}
	server, queue := s.sqs()
	s.sendHooks(queue, 2)
	groups := []string{"first", "second"}
	var members []*corev1.Pod // the pod of each
	for _, name := range groups {
		members = append(members, s.member(name))
	}
	seen := s.watchSurge("default", "web")
	metadata := map[string]*imdsemu.Server{}
	spot := slices.Clone(nodes)
	for _, p := range members {
		spot = append(spot, s.home(p))
	}
	for _, n := range spot {
		metadata[n.Name] = s.imds(n)
	}
	records := s.watchRecords(spot)
	pods := s.runPods("app.kubernetes.io/name=spot-handler", func(p *corev1.Pod) daemon.Options {
		o := daemon.Options{SQS: server.URL, Groups: s.cloud.URL}
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
				component == "imds" && !slices.ContainsFunc(spot, func(n *corev1.Node) bool { return !on[n.Name] && !records.leaves(n.Name) })
		})
	}
	ends := map[string]time.Time{} // of the nodes that are interrupted
	// interrupted waits until the pods of the node could leave, but for the replacement, which is on its way.
	interrupted := func(node *corev1.Node, bySQS bool) {
		t.Helper()
		left := 5*time.Minute + 2*sideBySide // so that nothing is cut short on a slow machine
		ends[node.Name] = time.Now().Add(left).Truncate(time.Second)
		if bySQS {
			ends[node.Name] = interrupt(queue, node.Name, left)
		}
		metadata[node.Name].Interrupt("terminate", ends[node.Name])
		s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Replacement != nil && r.Replacement.Name != "" })
		s.waitSurgedOf("web")
	}
	// shrinks begins the drain of a group's node. Its pod has no room elsewhere until proceeds.
	shrinks := func(group int) {
		t.Helper()
		node := members[group].Spec.NodeName
		s.cloud.Shrink(controlplane.InstanceID(node))
		metadata[node].SetTargetLifecycleState("Terminated")
		s.waitRecord(node, func(r interruption.Record) bool { return len(r.Hooks) == 1 })
		s.waitSurgedOf(groups[group])
	}
	proceeds := func(group int) { s.kubectl("", "label", "node", room.Name, "group="+groups[group], "--overwrite") }
	ended := func(group int) {
		t.Helper()
		s.eventually("end of the instance", func() bool {
			i, _ := s.cloud.Instance(controlplane.InstanceID(members[group].Spec.NodeName))
			return i.State == asgemu.Terminated
		})
	}
	from := map[types.UID]time.Time{} // when the pods of gangs may leave
	saysNow := func(gang ...*corev1.Pod) {
		at := time.Now()
		for _, p := range gang { // on a slow machine they can be due earlier
			const margin, grace = 10 * time.Second, 30 * time.Second
			at = slices.MinFunc([]time.Time{at, ends[p.Spec.NodeName].Add(-margin - grace)}, time.Time.Compare)
		}
		for _, p := range gang {
			from[p.UID] = at
		}
		s.kubectl("", "annotate", "pod", gang[0].Name, "--namespace="+gang[0].Namespace, plan.WhenAnnotation+"="+string(plan.WhenNow))
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
	shrinks(0)
	interrupted(nodes[0], true)

	patch("deployment/spot-handler-queue", `{"spec":{"paused":true}}`)
	_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, now)
	s.must(err)
	rolled("imds", "now")
	interrupted(nodes[1], false)
	stay(t, sideBySide)
	patch("deployment/spot-handler-queue", `{"spec":{"paused":false}}`)
	rolled("queue", "now")
	proceeds(0)
	shrinks(1)
	ended(0)

	patch("daemonset/spot-handler-imds", `{"spec":{"updateStrategy":{"type":"OnDelete"}}}`)
	_, err = h.Run(s.ctx, s.cluster.Kubeconfig, "rollback", "spot-handler", "--namespace="+namespace)
	s.must(err)
	rolled("queue", older.Version)
	proceeds(1)
	saysNow(ranks[:2]...)
	interrupted(nodes[2], true)
	stay(t, sideBySide)
	patch("daemonset/spot-handler-imds", `{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}`)
	rolled("imds", older.Version)

	interrupted(nodes[3], true)
	_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, now)
	s.must(err)
	rolled("queue", "now")
	const later = `,"later":{"a":1}}`
	s.eventually("a field of a later version", func() bool { return s.replaceRecord(nodes[3].Name, later) })
	saysNow(ranks[2:]...)
	rolled("imds", "now")

	s.waitEmpty(queue)
	for i, p := range members {
		ended(i)
		records.wantAllGraceful(s.story, p.Spec.NodeName, 1)
		s.wantContinued(controlplane.InstanceID(p.Spec.NodeName), 1)
		s.wantPods("default", groups[i], 1)
	}
	if n := s.cloud.Requests("CompleteLifecycleAction"); n != len(groups) {
		t.Errorf("%d calls complete the hooks, want one for each of %d", n, len(groups))
	}
	for _, n := range nodes {
		records.wantAllGraceful(s.story, n.Name, 4)
		if made := s.claims("batch-fallback", controlplane.InstanceID(n.Name)); len(made) != 1 {
			t.Errorf("node %s is replaced by %v, want one", n.Name, made)
		}
	}
	if text := records.text(nodes[3].Name); !strings.HasSuffix(text, later) {
		t.Errorf("record %s, want it to end in %s", text, later)
	}
	s.wantEachOnce(uids(slices.Concat(web, held, ranks, members)))
	for _, r := range s.evicted() {
		if at := from[types.UID(r.RequestObject.DeleteOptions.Preconditions.UID)]; r.RequestReceivedTimestamp.Before(at) {
			t.Errorf("pod %s was evicted %s before its gang said now", r.ObjectRef.Name, at.Sub(r.RequestReceivedTimestamp))
		}
	}
	s.wantNoneSurged()
	s.wantPods("default", "web", 2*count)
	s.wantPods("default", "held", count)
	if _, ready := seen.worst(); ready < 2*count {
		t.Errorf("only %d pods of the service that allows a surge were ready at some moment, want never less than %d", ready, 2*count)
	}
}

// stay lets things be as they are for a time.
func stay(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}

// rank puts a pod of the gang on the node, without a controller.
func (s *story) rank(node *corev1.Node, gang string) *corev1.Pod {
	s.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: gang + "-" + node.Name, Labels: map[string]string{plan.GangLabel: gang}},
		Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "app", Image: "fake"}}},
	}
	pod, err := s.cluster.Client.CoreV1().Pods("default").Create(s.ctx, pod, metav1.CreateOptions{})
	s.must(err)
	return pod
}

// member makes an Auto Scaling group of one spot node, which waits at a hook when it ends, and a pod on it.
func (s *scaled) member(group string) *corev1.Pod {
	s.Helper()
	selector := map[string]string{"group": group}
	node := s.bareWith(group, controlplane.BareNodes{Labels: map[string]string{"group": group, lifecycle: "spot"}})[0]
	s.cloud.CreateGroup(group, controlplane.InstanceID(node.Name))
	s.cloud.PutHook(group, terminateHook("drain", 10*time.Minute))
	return s.service(group, 1, surge(1, func(d *controlplane.DeploymentSpec) { d.NodeSelector = selector }))[0]
}

// waitSurgedOf waits until a pod of the service is surged.
func (s *story) waitSurgedOf(service string) {
	s.Helper()
	s.eventually("surged pod of "+service, func() bool {
		return slices.ContainsFunc(s.surgedPods(), func(p corev1.Pod) bool { return p.Labels["app"] == service })
	})
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
