package stories

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
)

// The chart is installed, upgraded from mode to mode and uninstalled, with each version of
// Helm: its pods come up where they are to run, in a namespace that demands restricted
// pods, what the program has written to its ConfigMap stays, and in the end nothing is left. Whatever the values, the API server takes every
// field of what is rendered.
func TestChartIsInstalledUpgradedAndUninstalled(t *testing.T) {
	s := newStoryApart(long(t), controlplane.Options{})
	spot, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 2, Prefix: "spot", Labels: map[string]string{"node-lifecycle": "spot"}})
	s.must(err)
	_, err = s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 2, Prefix: "other"})
	s.must(err)
	crds, err := chart.MonitoringCRDs(s.ctx)
	s.must(err)
	for _, file := range crds {
		s.kubectl("", "create", "-f", file)
	}
	s.kubectl("", "wait", "--for=condition=Established", "--timeout=2m", "--all", "crd")

	helms, err := chart.Helms(s.ctx, t.Output())
	s.must(err)
	for _, h := range helms {
		release := func(mode string, changes map[string]any) chart.Release {
			return chart.Release{Namespace: namespace + "-" + h.Name, Values: chart.Values(mode, changes)}
		}
		first := release("imds", map[string]any{"imds.hostNetwork": false, "podMonitor.enabled": true})
		s.must(s.cluster.CreateNamespace(s.ctx, first.Namespace))
		s.kubectl("", "label", "namespace", first.Namespace, "pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted")

		said, err := h.Install(s.ctx, s.cluster.Kubeconfig, first, "--wait", "--timeout=3m")
		s.must(err)
		if !strings.Contains(said, "spot-handler-imds runs on nodes with one of the labels") {
			t.Errorf("%s install says\n%s", h.Name, said)
		}
		s.podsOfChart(first.Namespace, spot, 2, "drain")
		s.kubectl("", "patch", "configmap", offerings.ConfigMap, "--namespace="+first.Namespace, "--patch="+`{"data":{"offerings.json":"ours"}}`) // as the leader does
		wantKept := func(after string) {
			if text := s.kubectl("", "get", "configmap", offerings.ConfigMap, "--namespace="+first.Namespace, "--output=jsonpath={.data}"); text != `{"offerings.json":"ours"}` {
				t.Errorf("%s: after %s the ConfigMap has %q", h.Name, after, text)
			}
		}

		second := release("both", map[string]any{"imds.hostNetwork": false, "serviceMonitor.enabled": true, "prometheusRule.enabled": true, "dashboard.enabled": true})
		_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, second, "--wait", "--timeout=3m")
		s.must(err)
		s.podsOfChart(first.Namespace, spot, 2, "queue")
		if kinds := s.remains(first.Namespace); slices.Contains(kinds, "PodMonitor spot-handler") || !slices.Contains(kinds, "ServiceMonitor spot-handler") ||
			!slices.Contains(kinds, "PrometheusRule spot-handler") || !slices.Contains(kinds, "ConfigMap spot-handler-dashboard") {
			t.Errorf("%s: after the upgrade there are %v", h.Name, kinds)
		}

		_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, release("queue", nil), "--wait", "--timeout=3m")
		s.must(err)
		s.podsOfChart(first.Namespace, spot, 0, "queue")
		wantKept("the upgrades")
		_, err = h.Run(s.ctx, s.cluster.Kubeconfig, "rollback", "spot-handler", "--namespace="+first.Namespace)
		s.must(err)
		wantKept("a rollback")

		_, err = h.Run(s.ctx, s.cluster.Kubeconfig, "uninstall", "spot-handler", "--namespace="+first.Namespace)
		s.must(err)
		s.within("end of all objects", 5*time.Minute, func() bool { return len(s.remains(first.Namespace)) == 0 },
			func() string { return fmt.Sprint(s.remains(first.Namespace)) })
	}

	s.must(s.cluster.CreateNamespace(s.ctx, namespace))
	// That of placeholders: a dry run makes none for the objects in it.
	for _, name := range []string{holdNamespace, chart.PlaceholderNamespace} {
		s.kubectl(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q}}`, name), "apply", "-f", "-")
	}
	for _, c := range chart.Matrix() {
		text, err := helms[len(helms)-1].Template(s.ctx, c.Release)
		s.must(err)
		if out := s.kubectl(text, "apply", "--dry-run=server", "--validate=strict", "-f", "-"); strings.Count(out, "(server dry run)") < 3 {
			t.Errorf("%s: %s", c.Name, out)
		}
	}

	// A third replica finds only a spot node free: no two share a host.
	_, err = helms[len(helms)-1].Install(s.ctx, s.cluster.Kubeconfig, chart.Release{Values: chart.Values("queue", map[string]any{"controller.replicas": 3})})
	s.must(err)
	_, err = s.cluster.WaitPods(s.ctx, namespace, "app.kubernetes.io/name=spot-handler", func(pods []*corev1.Pod) bool {
		settled, hosts, onSpot := 0, map[string]bool{}, 0
		for _, p := range pods {
			if p.Spec.NodeName != "" && !hosts[p.Spec.NodeName] {
				hosts[p.Spec.NodeName] = true
				if slices.ContainsFunc(spot, func(n *corev1.Node) bool { return n.Name == p.Spec.NodeName }) {
					onSpot++
				}
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled {
					settled++
				}
			}
		}
		if settled == 3 && (len(hosts) != 3 || onSpot != 1) {
			t.Errorf("three replicas are on %v, want one on each of two hosts and one on a spot node", hosts)
		}
		return settled == 3
	})
	s.must(err)
}

// podsOfChart waits until as many pods of the DaemonSet are ready, on spot nodes, and two of
// the Deployment, on two hosts elsewhere, and none other is there.
func (s *story) podsOfChart(namespace string, spot []*corev1.Node, imds int, deployment string) {
	s.Helper()
	on := map[string][]string{}
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Minute)
	defer cancel()
	_, err := s.cluster.WaitPods(ctx, namespace, "app.kubernetes.io/name=spot-handler", func(pods []*corev1.Pod) bool {
		clear(on)
		for _, p := range pods {
			if controlplane.Ready(p) && p.DeletionTimestamp == nil {
				component := p.Labels["app.kubernetes.io/component"]
				on[component] = append(on[component], p.Spec.NodeName)
			}
		}
		return len(on["imds"]) == imds && len(on[deployment]) == 2 && len(pods) == imds+2
	})
	if err != nil {
		s.Fatalf("pods are on %v: %v", on, err)
	}
	isSpot := func(name string) bool {
		return slices.ContainsFunc(spot, func(n *corev1.Node) bool { return n.Name == name })
	}
	for _, name := range on["imds"] {
		if !isSpot(name) {
			s.Errorf("the DaemonSet is on %v", on["imds"])
		}
	}
	for i, name := range on[deployment] {
		if isSpot(name) || slices.Contains(on[deployment][:i], name) {
			s.Errorf("the Deployment is on %v, want two hosts that are not spot", on[deployment])
		}
	}
}

// remains are the objects of a release, of the namespace and of the cluster.
func (s *story) remains(namespace string) []string {
	s.Helper()
	out := s.kubectl("", "get", "--namespace="+namespace, "--ignore-not-found", "--output=custom-columns=:kind,:metadata.name", "--no-headers",
		"--selector=app.kubernetes.io/name=spot-handler",
		"clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,flowschema,"+
			"role,rolebinding,serviceaccount,daemonset,deployment,pod,service,configmap,poddisruptionbudget,networkpolicy,podmonitor,servicemonitor,prometheusrule")
	var found []string
	for line := range strings.Lines(out) {
		if kind, name, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found = append(found, kind+" "+strings.TrimSpace(name))
		}
	}
	return found
}

// What the chart installs does what the manual says: with the arguments and under the
// service account of the installed pods, the token bound as the kubelet's are, the daemon
// sees an interruption through: the DaemonSet marks, and the Deployment drains, in mode imds and
// in mode both.
func TestChartSeesInterruptionsThrough(t *testing.T) {
	s := newStoryApart(long(t), controlplane.Options{Karpenter: true, Audit: true})
	s.installs = true
	s.pools(8 * time.Second)
	first, second := s.node("batch"), s.node("batch")
	s.service("web", 12, func(d *controlplane.DeploymentSpec) {
		d.Spread, d.BudgetMinAvailable = corev1.LabelHostname, budget(11)
	})
	s.samplePools()
	server, queue := s.sqs()
	h := s.helm()

	// All nodes are spot so far: Karpenter makes another for the Deployment.
	offSpot := map[string]any{"karpenter.sh/capacity-type": controlplane.OnDemand}
	release := chart.Release{Values: chart.Values("imds", map[string]any{"controller.nodeSelector": offSpot})}
	_, err := h.Install(s.ctx, s.cluster.Kubeconfig, release)
	s.must(err)
	marker, drainer := s.podInstalled("imds", first), s.podInstalled("drain", nil)
	metadata := s.imds(first)
	pair := []*daemon.Daemon{s.launch(marker, daemon.Options{IMDS: metadata.URL}), s.launch(drainer, daemon.Options{})}
	s.seeThrough(first, pair, func() { metadata.Interrupt("terminate", time.Now().Add(120*time.Second)) })

	release.Values = chart.Values("both", map[string]any{"controller.nodeSelector": offSpot, "flags.queueUrl": queue.URL(), "flags.drainStrategy": "hold"})
	_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, release)
	s.must(err)
	metadata = s.imds(second)
	marker, drainer = s.podInstalled("imds", second), s.podInstalled("queue", nil)
	if !slices.Contains(marker.args, "--drain=false") || !slices.Contains(drainer.args, "--drain-strategy=hold") {
		t.Errorf("the DaemonSet has %q, the Deployment %q", marker.args, drainer.args)
	}
	pair = []*daemon.Daemon{s.launch(marker, daemon.Options{IMDS: metadata.URL}), s.launch(drainer, daemon.Options{SQS: server.URL})}
	s.seeThrough(second, pair, func() { metadata.Interrupt("terminate", time.Now().Add(120*time.Second)) })
}

// installed is a pod of the chart that runs.
type installedPod struct {
	account, name, node string
	args                []string
}

// podInstalled waits for a pod of the component, on the node where one is given, and with
// what the latest release says.
func (s *story) podInstalled(component string, node *corev1.Node) installedPod {
	s.Helper()
	var found installedPod
	selector := "app.kubernetes.io/name=spot-handler,app.kubernetes.io/component=" + component
	_, err := s.cluster.WaitPods(s.ctx, namespace, selector, func(pods []*corev1.Pod) bool {
		for _, p := range pods {
			current := component != "imds" || s.generation(p) == s.generationOfDaemonSet()
			if controlplane.Ready(p) && p.DeletionTimestamp == nil && current && (node == nil || p.Spec.NodeName == node.Name) {
				found = installedPod{p.Spec.ServiceAccountName, p.Name, p.Spec.NodeName, slices.Clone(p.Spec.Containers[0].Args)}
				for _, e := range p.Spec.Containers[0].Env {
					if e.ValueFrom == nil || e.ValueFrom.FieldRef == nil {
						continue
					}
					switch e.Name + "=" + e.ValueFrom.FieldRef.FieldPath {
					case "NODE_NAME=spec.nodeName":
						found.args = append(found.args, "--node-name="+p.Spec.NodeName)
					case "POD_NAMESPACE=metadata.namespace":
						found.args = append(found.args, "--pod-namespace="+p.Namespace)
					}
				}
				return true
			}
		}
		return false
	})
	s.must(err)
	return found
}

// generation is that of the DaemonSet's template that the pod was made from.
func (s *story) generation(pod *corev1.Pod) string {
	return pod.Labels["pod-template-generation"]
}

func (s *story) generationOfDaemonSet() string {
	s.Helper()
	set, err := s.cluster.Client.AppsV1().DaemonSets(namespace).Get(s.ctx, "spot-handler-imds", metav1.GetOptions{})
	s.must(err)
	return set.Annotations["deprecated.daemonset.template.generation"]
}

// launch runs the daemon as the pod would.
func (s *story) launch(p installedPod, o daemon.Options) *daemon.Daemon {
	s.Helper()
	o.Args, o.Kubeconfig, o.Log = p.args, s.kubeconfig(p.account, p.name), s.Output()
	d, err := daemon.Start(o)
	s.must(err)
	s.Cleanup(d.Kill)
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	s.must(d.WaitReady(ctx))
	return d
}

// seeThrough follows one interruption of the node to its end.
func (s *story) seeThrough(node *corev1.Node, daemons []*daemon.Daemon, interrupt func()) {
	s.Helper()
	pods := len(s.podsOn(node.Name, "web"))
	if pods == 0 {
		s.Fatalf("no pod on node %s", node.Name)
	}
	interrupt()
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Pods == nil || rec.Pods.Graceful < pods || rec.Pods.Left > 0 || rec.Replacement == nil || rec.Replacement.Name == "" {
		// It need not be Ready: there can be room on the node that Karpenter made for the Deployment.
		s.Errorf("record %s, want %d pods graceful, none left, and a replacement", rec, pods)
	}
	for _, reason := range []string{"SpotInterruption", "ReplacementRequested", "Drained"} {
		s.eventually("Event "+reason, func() bool { return len(s.events(reason, node.Name)) == 1 })
	}
	s.waitGone(node.Name)
	for _, d := range daemons {
		for _, l := range d.Lines("") {
			// client-go says so of its own requests that are broken off, as watches are.
			if l["level"] == "error" && l["component"] != "client-go" {
				s.Errorf("the daemon logs %v", l)
			}
		}
		if code := d.Stop(); code != 0 {
			s.Errorf("exit code %d, want 0", code)
		}
	}
}

// samplePools lets the API server judge the NodePools of the manual.
func (s *story) samplePools() {
	s.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "docs", "replacement.md"))
	s.must(err)
	found := false
	for i, block := range strings.Split(string(text), "```") {
		body, isYAML := strings.CutPrefix(block, "yaml\n")
		if i%2 == 0 || !isYAML || !strings.Contains(body, "kind: NodePool") {
			continue
		}
		found = true
		// The pools of the same names are there already: these are not to be theirs.
		s.kubectl(strings.ReplaceAll(body, "name: batch", "name: manual-batch"), "create", "--dry-run=server", "-f", "-")
	}
	if !found {
		s.Error("the manual shows no NodePool")
	}
}
