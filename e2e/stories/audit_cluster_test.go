package stories

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// An installation is not as it should be: its DaemonSet leaves nodes out, its Deployment runs on spot,
// rights and protections are not there, and others act on the same notices. What can be without AWS
// goes as badly as the finding says.
// Then the commands that `audit` prints are run as they are, and an interruption is seen through.
func TestAuditOfTheInstallation(t *testing.T) {
	s := newStoryApart(long(t), controlplane.Options{Karpenter: true})
	s.installs = true
	s.pools(time.Second)
	node := s.node("batch")
	s.service("web", 3, func(d *controlplane.DeploymentSpec) { quick(d); d.Pool = "" })
	// The scheduler scores a node without these two labels below any that has them.
	labels := map[string]string{corev1.LabelTopologyZone: "test-zone-a", corev1.LabelInstanceTypeStable: "m-4"}
	_, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 2, Prefix: "off", CPUs: 4, Labels: labels})
	s.must(err)
	labels = maps.Clone(labels)
	labels["node-lifecycle"] = "spot"
	other, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: "spot", CPUs: 4, Labels: labels})
	s.must(err)
	h := s.helm()
	_, err = h.Install(s.ctx, s.cluster.Kubeconfig, chart.Release{Values: chart.Values("imds", map[string]any{
		"spotLabels": map[string]any{"karpenter.sh/capacity-type": nil}, "controller.nodeSelector": map[string]any{"karpenter.sh/nodepool": "batch"},
		"flowSchemas": false, "patchPolicies": false, "imds.ownNodeOnly": false,
	})})
	s.must(err)
	s.podInstalled("imds", other[0])
	s.podInstalled("drain", node)
	s.loseRights()
	s.balance()
	var found, fixes []string
	want := []string{
		"SH208 deployment/spot-handler-drain", "SH301 daemonset/spot-handler-imds",
		"SH304 serviceaccount/spot-handler-drain", "SH305 serviceaccount/spot-handler-drain",
		"SH306 serviceaccount/spot-handler-drain", "SH306 serviceaccount/spot-handler-imds", "SH307 serviceaccount/spot-handler-drain", "SH307 serviceaccount/spot-handler-imds",
		"SH308 ingress/web", "SH308 service/web",
	}
	s.within("a finding of every check", 2*time.Minute, func() bool { // pods are moved a moment later
		found, fixes = s.auditOf(ofCoverage...)
		return slices.Equal(found, want)
	}, func() string { return fmt.Sprintf("found %q", found) })

	// SH304: it does not start.
	d, err := daemon.Start(daemon.Options{Args: []string{"drain", "--pod-namespace=" + namespace}, Kubeconfig: s.kubeconfig("spot-handler-drain", ""), Log: s.Output()})
	s.must(err)
	t.Cleanup(d.Kill)
	if code := s.waitEnd(d); code != 2 {
		t.Errorf("exit code %d, want 2 for want of a right", code)
	}
	// SH305: it gets no replacement.
	drainer := s.person("spot-handler-drain", "")
	ask := func() string {
		rec := spotRecord(node, time.Now().Add(2*time.Minute))
		return s.replacer(drainer.dynamic, nil).ask(node, &rec).State
	}
	if state := ask(); state != provisioner.StateUnsupported {
		t.Errorf("replacement %s, want none without the right to create NodeClaims", state)
	}
	// SH306 and SH307: its cordons wait with all others, and its token may change anything.
	s.flowsOf("spot-handler-drain", map[string]string{"get nodes": "service-accounts"})
	relabel := func() error {
		return drainer.patch("nodes/"+node.Name, `{"metadata":{"labels":{"anybody":"was-here"}}}`, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	}
	s.must(relabel())

	upgrades := slices.DeleteFunc(slices.Clone(fixes), func(fix string) bool { return !strings.HasPrefix(fix, "helm ") })
	s.fix(slices.DeleteFunc(fixes, func(fix string) bool { return strings.HasPrefix(fix, "helm ") }))
	if found, _ = s.auditOf(ofCoverage...); slices.ContainsFunc(found, func(f string) bool { return !slices.Contains([]string{"SH208", "SH301", "SH306", "SH307"}, f[:5]) }) {
		t.Errorf("audit still finds %q", found)
	}
	metadata := s.imds(node)
	s.loseWhoDrains(node, other[0], metadata)

	dir, err := chart.Dir()
	s.must(err)
	for _, fix := range slices.Compact(upgrades) {
		args := strings.Fields(strings.NewReplacer("deploy/chart", dir, "'", "").Replace(fix))
		_, err = h.Run(s.ctx, s.cluster.Kubeconfig, args[1:]...)
		s.must(err)
	}
	var dep *appsv1.Deployment
	s.within("the Deployment's pods as the chart now has them", 2*time.Minute, func() bool {
		dep, err = s.cluster.Client.AppsV1().Deployments(namespace).Get(s.ctx, "spot-handler-drain", metav1.GetOptions{})
		s.must(err)
		n := *dep.Spec.Replicas
		return dep.Status.ObservedGeneration == dep.Generation && dep.Status.UpdatedReplicas == n && dep.Status.AvailableReplicas == n && dep.Status.Replicas == n
	}, func() string { return fmt.Sprintf("%+v", dep.Status) })
	s.within("an audit that finds nothing", 2*time.Minute, func() bool {
		found, _ = s.auditOf(ofCoverage...)
		return len(found) == 0
	}, func() string { return fmt.Sprintf("still found: %q", found) })
	s.eventually("a policy in force", func() bool { return apierrors.IsForbidden(relabel()) })
	s.flowsOf("spot-handler-drain", map[string]string{"get nodes": "spot-handler-nodes"})

	marker, leader := s.podInstalled("imds", node), s.podInstalled("drain", nil)
	if !strings.HasPrefix(leader.node, "off-") {
		t.Errorf("the Deployment is on %s still, which is spot", leader.node)
	}
	pair := []*daemon.Daemon{s.launch(marker, daemon.Options{IMDS: metadata.URL}), s.launch(leader, daemon.Options{})}
	s.seeThrough(node, pair, func() { metadata.Interrupt("terminate", time.Now().Add(120*time.Second)) })
}

// loseWhoDrains has EC2 take all spot nodes. Nobody is notified of the first (SH301). All replicas that
// drain are on such nodes (SH208), so nobody drains the second, though its own pod marks it in time.
func (s *story) loseWhoDrains(first, second *corev1.Node, metadata *imdsemu.Server) {
	s.Helper()
	shop := s.service("shop", 2, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Pool, d.NodeSelector = "", map[string]string{"node-lifecycle": "spot"}
	})
	if slices.ContainsFunc(s.podsInstalled("imds"), func(p corev1.Pod) bool { return p.Spec.NodeName == first.Name }) {
		s.Fatalf("the DaemonSet has a pod on %s", first.Name)
	}
	drainer := s.launch(s.podInstalled("drain", first), daemon.Options{})
	theirs := s.imds(second)
	marker := s.launch(s.podInstalled("imds", second), daemon.Options{IMDS: theirs.URL})
	metadata.Interrupt("terminate", time.Now().Add(2*time.Minute))
	drainer.Kill() // with its node
	theirs.Interrupt("terminate", time.Now().Add(2*time.Minute))
	s.waitRecord(second.Name, func(interruption.Record) bool { return true })
	s.must(s.stays(5*time.Second, func() bool {
		rec, _ := record(s.lastSeen(second.Name))
		_, heard := record(s.lastSeen(first.Name))
		return rec.Phase == interruption.Noticed && !heard && len(s.podsOn(second.Name, "shop")) == len(shop)
	}))
	marker.Kill()
	metadata.Clear()
	s.reclaim(second.Name)
}

// ofCoverage are the checks of who acts on notices, and whether they can.
var ofCoverage = []string{"SH208", "SH301", "SH304", "SH305", "SH306", "SH307", "SH308"}

// loseRights takes two rights from the account that drains, as if an older chart had not had them.
func (s *story) loseRights() {
	s.Helper()
	roles := rbacv1.SchemeGroupVersion.WithResource("clusterroles")
	role, err := s.cluster.Dynamic.Resource(roles).Get(s.ctx, "spot-handler-drain", metav1.GetOptions{})
	s.must(err)
	manager := role.GetManagedFields()[0].Manager
	rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
	for _, rule := range rules {
		rule := rule.(map[string]any)
		switch text := fmt.Sprint(rule["resources"]); {
		case strings.Contains(text, "nodeclaims"):
			rule["verbs"] = slices.DeleteFunc(rule["verbs"].([]any), func(verb any) bool { return verb == "create" })
		case strings.Contains(text, "pods/eviction"):
			rule["verbs"] = []any{"get"}
		}
	}
	s.must(unstructured.SetNestedSlice(role.Object, rules, "rules"))
	role.SetManagedFields(nil)
	role.SetResourceVersion("")
	role.SetUID("")
	_, err = s.cluster.Dynamic.Resource(roles).Apply(s.ctx, "spot-handler-drain", role, metav1.ApplyOptions{FieldManager: manager, Force: true})
	s.must(err)
}

// balance makes the Service and the Ingress of which AWS Load Balancer Controller makes targets.
func (s *story) balance() {
	s.Helper()
	class, alb := "service.k8s.aws/nlb", "alb"
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: map[string]string{
		"service.beta.kubernetes.io/aws-load-balancer-nlb-target-type":         "ip",
		"service.beta.kubernetes.io/aws-load-balancer-target-group-attributes": "preserve_client_ip.enabled=true,deregistration_delay.timeout_seconds=60",
	}}}
	service.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Selector: map[string]string{"app": "web"},
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}
	_, err := s.cluster.Client.CoreV1().Services("default").Create(s.ctx, service, metav1.CreateOptions{})
	s.must(err)
	_, err = s.cluster.Client.NetworkingV1().IngressClasses().Create(s.ctx, &networkingv1.IngressClass{
		ObjectMeta: metav1.ObjectMeta{Name: alb}, Spec: networkingv1.IngressClassSpec{Controller: "ingress.k8s.aws/alb"},
	}, metav1.CreateOptions{})
	s.must(err)
	ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "web"}} // nodes are its targets, for 300 s
	ingress.Spec = networkingv1.IngressSpec{IngressClassName: &alb, DefaultBackend: &networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: "web", Port: networkingv1.ServiceBackendPort{Number: 80}},
	}}
	_, err = s.cluster.Client.NetworkingV1().Ingresses("default").Create(s.ctx, ingress, metav1.CreateOptions{})
	s.must(err)
}

// podsInstalled are the pods of a component that are not about to end.
func (s *story) podsInstalled(component string) []corev1.Pod {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Pods(namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=spot-handler,app.kubernetes.io/component=" + component})
	s.must(err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}
