package manual

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/internal/assets"
	"spot-handler/e2e/internal/lacking"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// Nodes of the manual: spot, of a type that it selects, and without Karpenter.
const (
	provoked = "ip-10-0-0-1.eu-west-1.compute.internal"
	observed = "ip-10-0-1-2.ec2.internal"

	instanceType = "m5.large"
)

const (
	// poolNodes are spot nodes of the pool batch. With those two there are eight, and so many pods of
	// the DaemonSet.
	poolNodes = 6
	// otherNodes run the Deployment. A rehearsal interrupts a tenth of all nodes at most, and one of
	// the manual five at once.
	otherNodes = 46
)

const namespace = "spot-handler" // that the manual installs the chart in

// scene is what there is before the first page: a cluster, pools and workloads of somebody's, an SQS,
// and the programs that the manual takes for granted.
type scene struct {
	*testing.T            // of the block that is played
	whole      *testing.T // which ends after the last page

	root    string // of the checkout
	dir     string // which goes with the test
	cluster *controlplane.Cluster
	sqs     *sqsemu.Server
	queue   *sqsemu.Queue
	kubelet *kubelet
	env     []string // of all shells
	first   *shell   // of the front page

	messages  int    // that announced something
	cancelled string // the node whose interruption is about to be cancelled
	receivers receivers

	log    output // of the daemon
	daemon *daemon.Daemon
}

// needed are programs that the manual takes for granted, and that are part of most systems.
var needed = []string{"bash", "git", "make", "jq", "python3", "sed", "grep", "sha256sum"}

func setUp(t *testing.T) *scene {
	t.Helper()
	for _, program := range needed {
		if _, err := exec.LookPath(program); err != nil {
			lacking.End(t, "the manual is not played: %v", err)
		}
	}
	root, err := assets.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{T: t, whole: t, root: root, dir: t.TempDir(), sqs: sqsemu.Start()}
	t.Cleanup(s.sqs.Close)
	s.queue = s.sqs.Queue("spot-handler")
	// The front page builds it too, from a copy of the checkout: so most of that comes from Go's cache.
	_, err = daemon.Build()
	s.must(err)
	s.kubelet = startKubelet(t, &s.log)
	s.cluster = controlplane.ForTest(t, controlplane.Options{Karpenter: true})
	s.env = s.environment()
	s.nodes()
	s.workloads()
	crds, err := chart.MonitoringCRDs(t.Context())
	s.must(err)
	for _, file := range crds {
		s.do("kubectl", "create", "-f", file)
	}
	s.first, err = newShell(s.mkdir("work"), filepath.Join(s.dir, "state"), s.env)
	s.must(err)
	return s
}

// nodes are the pools of the manual, whose fallback it names itself, and nodes of other kinds.
func (s *scene) nodes() {
	s.must(s.cluster.CreatePools(s.Context(),
		controlplane.PoolSpec{Name: "batch", Weight: 100, CPUs: 16},
		controlplane.PoolSpec{Name: "batch-fallback", Weight: 10, CPUs: 16, Capacity: []string{controlplane.OnDemand}}))
	_, err := s.cluster.CreateNodes(s.Context(), "batch", poolNodes)
	s.must(err)
	named := []string{provoked, observed}
	_, err = s.cluster.CreateBareNodes(s.Context(), controlplane.BareNodes{
		Count:  len(named),
		Labels: map[string]string{"node-lifecycle": "spot", corev1.LabelInstanceTypeStable: instanceType},
		Change: func(i int, node *corev1.Node) {
			node.Spec.ProviderID = strings.Replace(node.Spec.ProviderID, instance(node.Name), instance(named[i]), 1)
			node.Name, node.Labels[corev1.LabelHostname] = named[i], named[i]
		},
	})
	s.must(err)
	_, err = s.cluster.CreateBareNodes(s.Context(), controlplane.BareNodes{
		Count: otherNodes, Prefix: "other",
		Change: func(_ int, node *corev1.Node) { s.kubelet.at(node) },
	})
	s.must(err)
}

// workloads run on spot nodes and on those that replace them: web on Karpenter's, db on the manual's
// own nodes, as long as they are there. What audit finds is no more than a warning.
func (s *scene) workloads() {
	soon := time.Second
	quick := controlplane.Behaviour{ReadyAfter: &soon, StopAfter: &soon}
	ofKarpenter := corev1.NodeSelectorRequirement{Key: "karpenter.sh/nodepool", Operator: corev1.NodeSelectorOpExists}
	ofManual := corev1.NodeSelectorRequirement{
		Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{instanceType},
	}
	run := func(spec controlplane.DeploymentSpec, alternatives ...corev1.NodeSelectorRequirement) {
		s.Helper()
		spec.Behaviour, spec.CPU = quick, "500m"
		spec.Change = func(d *appsv1.Deployment) {
			required := &corev1.NodeSelector{}
			for _, r := range alternatives {
				term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}}
				required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
			}
			d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: required,
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
					{Weight: 100, Preference: required.NodeSelectorTerms[0]},
				},
			}}
		}
		_, err := s.cluster.RunDeployment(s.Context(), spec)
		s.must(err)
		_, err = s.cluster.WaitReady(s.Context(), "", spec.Name, spec.Replicas)
		s.must(err)
	}
	run(controlplane.DeploymentSpec{Name: "web", Replicas: 12}, ofKarpenter)
	run(controlplane.DeploymentSpec{Name: "db", Replicas: 2}, ofManual, ofKarpenter)
}

// environment is that of somebody's shell, and nothing of whoever runs the test. The repository that
// the front page clones is a copy of this checkout, with what is not committed yet.
func (s *scene) environment() []string {
	bin, home := s.mkdir("bin"), s.mkdir("home")
	helms, err := chart.Helms(s.Context(), s.Output())
	s.must(err)
	s.must(os.Symlink(helms[len(helms)-1].Path, filepath.Join(bin, "helm")))
	s.must(os.Symlink(s.cluster.Kubectl, filepath.Join(bin, "kubectl")))
	for name, in := range standIns {
		text := fmt.Sprintf("#!/bin/sh\n# %s\nprintf '%%s\\n' '%s '\"$*\" >>\"$MANUAL_CALLS\"\n%s\n", in.why, name, in.does)
		s.must(os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755))
	}
	aws, _ := exec.LookPath("aws") // empty if there is none
	env := []string{
		"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + home,
		"TMPDIR=" + s.mkdir("tmp"),
		"LC_ALL=C",
		"TZ=UTC",
		"KUBECONFIG=" + s.cluster.Kubeconfig,
		"MANUAL_CALLS=" + s.calls(),
		"MANUAL_SENT=" + s.sent(),
		"MANUAL_AWS=" + aws,
		"MANUAL_QUEUE_URL=" + s.queue.URL(),
		"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_DEFAULT_REGION=eu-west-1", "AWS_EC2_METADATA_DISABLED=true",
		"GIT_CONFIG_COUNT=1",
		"GIT_CONFIG_KEY_0=url." + s.repository() + ".insteadOf",
		"GIT_CONFIG_VALUE_0=https://github.com/spot-handler/spot-handler",
	}
	// What the go command has built and downloaded before.
	out, err := exec.CommandContext(s.Context(), "go", "env", "-json",
		"GOCACHE", "GOMODCACHE", "GOPATH", "GOFLAGS", "GOPROXY", "GONOSUMDB", "GOSUMDB", "GOTOOLCHAIN").Output()
	s.must(err)
	var golang map[string]string
	s.must(json.Unmarshal(out, &golang))
	for name, value := range golang {
		env = append(env, name+"="+value)
	}
	for _, name := range []string{"PYENV_ROOT", "PYENV_VERSION", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// repository is one that has what the checkout has.
func (s *scene) repository() string {
	dir := s.mkdir("repository")
	cmd := exec.CommandContext(s.Context(), "bash", "-euo", "pipefail", "-c", `
		git ls-files -z --cached --others --exclude-standard |
			while IFS= read -r -d '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done |
			tar --create --null --files-from=- | tar --extract --directory="$1"
		cd "$1"
		git init --quiet --initial-branch=main
		git add --all
		git -c user.name=test -c user.email=test@example.com -c commit.gpgsign=false commit --quiet --message=checkout`, "bash", dir)
	cmd.Dir = s.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("copy the checkout: %v\n%s", err, out)
	}
	return dir
}

func (s *scene) mkdir(name string) string {
	dir := filepath.Join(s.dir, name)
	s.must(os.MkdirAll(dir, 0o755))
	return dir
}

// calls is the file in which the programs that stand in note how they are called, and sent the body of
// the message that somebody has sent to the queue by hand.
func (s *scene) calls() string { return filepath.Join(s.dir, "calls") }
func (s *scene) sent() string  { return filepath.Join(s.dir, "sent") }

// called reports whether a program was called, with arguments that begin so.
func (s *scene) called(begins string) bool {
	text, _ := os.ReadFile(s.calls()) // none yet: nothing was called
	return strings.Contains("\n"+string(text), "\n"+begins)
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// do runs a program as somebody would in a shell of the scene, and returns what it prints.
func (s *scene) do(program string, args ...string) string {
	s.Helper()
	return s.pipe("", program, args...)
}

// pipe is do with an input.
func (s *scene) pipe(input, program string, args ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), "env", append([]string{program}, args...)...) // found by the PATH of the scene
	cmd.Env, cmd.Dir, cmd.Stdin = s.env, s.dir, strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eventually polls until ok says so.
func (s *scene) eventually(what string, ok func() bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 2*time.Minute)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			s.Fatalf("%s: %v", what, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// runQueue starts what the leader of the chart's Deployment does, with its permissions.
func (s *scene) runQueue() {
	s.Helper()
	const account = "spot-handler-queue"
	s.must(chart.WaitAllowed(s.Context(), s.cluster.Client, namespace, account, true))
	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	s.must(s.cluster.WriteKubeconfig(s.Context(), kubeconfig, namespace, account, ""))
	var err error
	s.daemon, err = daemon.Start(daemon.Options{
		Binary:     filepath.Join(s.dir, "work", "spot-handler", "bin", "spot-handler"), // that the front page builds
		Args:       []string{"queue", "--queue-url=" + s.queue.URL(), "--pod-namespace=" + namespace, "--leader-elect=false"},
		Kubeconfig: kubeconfig, SQS: s.sqs.URL, Log: &s.log,
	})
	s.must(err)
	s.whole.Cleanup(s.daemon.Kill)
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	s.must(s.daemon.WaitReady(ctx))
}

// interrupt announces that EC2 takes a node.
func (s *scene) interrupt(node string) {
	s.Helper()
	s.messages++
	s.queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint("event-", s.messages), instance(node), time.Now()))
	s.eventually("the record of "+node, func() bool { return s.node(node).Annotations[interruption.Annotation] != "" })
}

// node is a Node as it is now.
func (s *scene) node(name string) *corev1.Node {
	s.Helper()
	node, err := s.cluster.Client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	s.must(err)
	return node
}

// inService is a node of the pool that nothing is wrong with, and another one than these.
func (s *scene) inService(others ...string) string {
	s.Helper()
	nodes, err := s.cluster.Client.CoreV1().Nodes().List(s.Context(), metav1.ListOptions{LabelSelector: "karpenter.sh/nodepool=batch"})
	s.must(err)
	i := slices.IndexFunc(nodes.Items, func(n corev1.Node) bool { return untouched(&n) == "" && !slices.Contains(others, n.Name) })
	if i < 0 {
		s.Fatal("no node of the pool is in service")
	}
	return nodes.Items[i].Name
}

// untouched says what of an interruption a Node still has; empty if nothing.
func untouched(node *corev1.Node) string {
	for key := range node.Annotations {
		if key == interruption.Annotation || key == "spot-handler/cancel" {
			return "the annotation " + key
		}
	}
	for _, taint := range node.Spec.Taints {
		if strings.HasPrefix(taint.Key, "spot-handler/") {
			return "the taint " + taint.Key
		}
	}
	if node.Labels[corev1.LabelNodeExcludeBalancers] != "" {
		return "the label " + corev1.LabelNodeExcludeBalancers
	}
	if node.Spec.Unschedulable {
		return "the cordon"
	}
	return ""
}

// instance is the EC2 instance of one of the manual's own nodes.
func instance(node string) string { return controlplane.InstanceID(node) }

// eventuallyPods waits until a component has that many Ready pods, and another has that many.
func (s *scene) eventuallyPods(component string, pods int, other string, others int) {
	s.Helper()
	s.eventually(fmt.Sprintf("%d pods of %s and %d of %s", pods, component, others, other), func() bool {
		return s.podsOf(component) == pods && s.podsOf(other) == others
	})
}

// podsOf are the Ready pods of a component of the chart.
func (s *scene) podsOf(component string) int {
	s.Helper()
	of := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component}
	pods, err := s.cluster.Client.CoreV1().Pods(namespace).List(s.Context(), of)
	s.must(err)
	ready := 0
	for _, pod := range pods.Items {
		if controlplane.Ready(&pod) {
			ready++
		}
	}
	return ready
}
