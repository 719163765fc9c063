package stories

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// The manifests of deploy/ as a newcomer applies them: the API server takes every
// field, the pods land where they are to run, and with no other rights than those
// of its ServiceAccount the daemon sees an interruption through, in each mode.
func TestDeployManifests(t *testing.T) {
	s := tell(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(8 * time.Second)
	first, second := s.node("batch"), s.node("batch")
	s.service("web", 12, func(d *controlplane.DeploymentSpec) {
		d.Spread, d.BudgetMinAvailable = corev1.LabelHostname, budget(11)
	})

	server, queue := s.sqs()
	for _, file := range []string{"imds.yaml", "queue.yaml"} {
		s.apply(file, queue.URL())
		if again := s.apply(file, queue.URL()); strings.Contains(again, "created") {
			t.Errorf("%s applied again makes something new:\n%s", file, again)
		}
	}
	s.samplePools()
	s.podsOfManifests(first.Name, second.Name)
	s.rights()

	deployment, err := s.cluster.Client.AppsV1().Deployments(namespace).Get(s.ctx, "spot-handler-queue", metav1.GetOptions{})
	s.must(err)
	args := append(slices.Clone(deployment.Spec.Template.Spec.Containers[0].Args), "--lease-namespace="+namespace)
	s.seeThrough("spot-handler-queue", first, daemon.Options{Args: args, SQS: server.URL}, func() {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(first.Name), time.Now()))
	})

	set, err := s.cluster.Client.AppsV1().DaemonSets(namespace).Get(s.ctx, "spot-handler-imds", metav1.GetOptions{})
	s.must(err)
	container := set.Spec.Template.Spec.Containers[0]
	if !slices.ContainsFunc(container.Env, func(e corev1.EnvVar) bool {
		return e.Name == "NODE_NAME" && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName"
	}) {
		t.Error("the DaemonSet does not tell the node's name")
	}
	imds := s.imds(second)
	args = append(slices.Clone(container.Args), "--node-name="+second.Name)
	s.seeThrough("spot-handler-imds", second, daemon.Options{Args: args, IMDS: imds.URL}, func() {
		imds.Interrupt("terminate", time.Now().Add(120*time.Second))
	})

	for _, r := range s.requests(func(r request) bool { return r.ResponseStatus.Code == 401 || r.ResponseStatus.Code == 403 }) {
		t.Errorf("%d: %s %s", r.ResponseStatus.Code, r.Verb, r.RequestURI)
	}
}

// namespace of the manifests.
const namespace = "spot-handler"

// apply fills in the placeholders of a manifest, as its head says, and applies it.
func (s *story) apply(file, queueURL string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", file))
	s.must(err)
	filled := strings.NewReplacer("REGISTRY/spot-handler:VERSION", "example.com/spot-handler:v0", "QUEUE_URL", queueURL).Replace(string(text))
	return s.kubectl(filled, "apply", "-f", "-")
}

// kubectl runs the cluster's own kubectl and returns what it says.
func (s *story) kubectl(stdin string, args ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.ctx, s.cluster.Kubectl, append([]string{"--kubeconfig=" + s.cluster.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if strings.Contains(string(out), "Warning") {
		s.Errorf("kubectl %s:\n%s", strings.Join(args, " "), out)
	}
	return string(out)
}

// samplePools lets the API server judge the NodePools of the README.
func (s *story) samplePools() {
	s.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	s.must(err)
	found := false
	for i, block := range strings.Split(string(text), "```") {
		body, isYAML := strings.CutPrefix(block, "yaml\n")
		if i%2 == 0 || !isYAML || !strings.Contains(body, "kind: NodePool") {
			continue
		}
		found = true
		// The pools of the same names are there already: these are not to be theirs.
		s.kubectl(strings.ReplaceAll(body, "name: batch", "name: readme-batch"), "create", "--dry-run=server", "-f", "-")
	}
	if !found {
		s.Error("the README shows no NodePool")
	}
}

// podsOfManifests waits until the DaemonSet runs on the spot nodes and the
// Deployment, on two hosts, elsewhere.
func (s *story) podsOfManifests(spot ...string) {
	s.Helper()
	slices.Sort(spot)
	on := map[string][]string{}
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Minute)
	defer cancel()
	_, err := s.cluster.WaitPods(ctx, namespace, "app.kubernetes.io/name=spot-handler", func(pods []*corev1.Pod) bool {
		clear(on)
		for _, p := range pods {
			if controlplane.Ready(p) {
				component := p.Labels["app.kubernetes.io/component"]
				on[component] = append(on[component], p.Spec.NodeName)
			}
		}
		return len(on["imds"]) >= len(spot) && len(on["queue"]) == 2
	})
	s.must(err)
	slices.Sort(on["imds"])
	if !slices.Equal(on["imds"], spot) {
		s.Errorf("the DaemonSet is on %v, want the spot nodes %v", on["imds"], spot)
	}
	for i, name := range on["queue"] {
		if slices.Contains(spot, name) || slices.Contains(on["queue"][:i], name) {
			s.Errorf("the Deployment is on %v, want two hosts that are not spot: %v", on["queue"], spot)
		}
	}
}

// rights asks for what the audit log does not show, and for what nobody has asked.
func (s *story) rights() {
	s.Helper()
	for _, tt := range []struct {
		verb, group, resource string
		want                  bool
	}{
		{"create", "", "events", true},
		{"patch", "", "events", true},
		{"get", "", "nodes", true},   // only when two write at the same moment
		{"delete", "", "pods", true}, // only to carry out a granted eviction
		{"delete", "karpenter.sh", "nodeclaims", true},
		{"update", "", "nodes", false},
		{"delete", "", "nodes", false},
		{"update", "", "pods", false},
		{"create", "", "pods", false}, // only where the placeholders are
		{"get", "", "secrets", false},
		{"patch", "karpenter.sh", "nodepools", false},
	} {
		for _, account := range []string{"spot-handler-imds", "spot-handler-queue"} {
			review, err := s.cluster.Client.AuthorizationV1().SubjectAccessReviews().Create(s.ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{
					User: "system:serviceaccount:" + namespace + ":" + account,
					ResourceAttributes: &authorizationv1.ResourceAttributes{
						Verb: tt.verb, Group: tt.group, Resource: tt.resource, Namespace: metav1.NamespaceDefault,
					},
				},
			}, metav1.CreateOptions{})
			s.must(err)
			if review.Status.Allowed != tt.want {
				s.Errorf("%s may %s %s: %t, want %t", account, tt.verb, tt.resource, review.Status.Allowed, tt.want)
			}
		}
	}
}

// seeThrough runs a daemon as the ServiceAccount through one interruption of the node.
func (s *story) seeThrough(account string, node *corev1.Node, o daemon.Options, interrupt func()) {
	s.Helper()
	pods := len(s.podsOn(node.Name, "web"))
	if pods == 0 {
		s.Fatalf("no pod on node %s", node.Name)
	}
	o.Kubeconfig, o.Log = s.kubeconfig(account), s.Output()
	d, err := daemon.Start(o)
	s.must(err)
	s.Cleanup(d.Kill)
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	s.must(d.WaitReady(ctx))

	interrupt()
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
	if rec.Pods == nil || rec.Pods.Graceful < pods || rec.Pods.Left > 0 || rec.Replacement == nil || rec.Replacement.State != "Ready" {
		s.Errorf("%s: record %s, want %d pods graceful, none left, and a replacement that is Ready", account, rec, pods)
	}
	for _, reason := range []string{"SpotInterruption", "ReplacementRequested", "Drained"} {
		s.eventually("Event "+reason, func() bool { return len(s.events(reason, node.Name)) == 1 })
	}
	s.waitGone(node.Name)
	for _, l := range d.Lines("") {
		if l["level"] == "error" {
			s.Errorf("%s logs %v", account, l)
		}
	}
	if code := d.Stop(); code != 0 {
		s.Errorf("%s: exit code %d, want 0", account, code)
	}
}

// kubeconfig writes one that holds a token of the ServiceAccount and nothing else.
func (s *story) kubeconfig(account string) string {
	s.Helper()
	config, err := s.cluster.ServiceAccountConfig(s.ctx, namespace, account, "")
	s.must(err)
	file := clientcmdapi.NewConfig()
	file.Clusters["cluster"] = &clientcmdapi.Cluster{
		Server: config.Host, CertificateAuthority: config.CAFile, CertificateAuthorityData: config.CAData,
		InsecureSkipTLSVerify: config.Insecure,
	}
	file.AuthInfos[account] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	file.Contexts[account] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: account}
	file.CurrentContext = account
	path := filepath.Join(s.TempDir(), account+".kubeconfig")
	s.must(clientcmd.WriteToFile(*file, path))
	return path
}
