package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

const (
	foresightNodes     = manyNodes
	foresightLost      = 200 // nodes of the pool that is planned as a whole
	foresightPods      = 10  // of each node
	foresightWorkloads = 500
	foresightSpaces    = 20
	foresightTimeout   = 10 * time.Minute
)

// BenchmarkForesight measures what audit and plan cost in a cluster of 5,000 Nodes and 50,000 pods
// of real size, with 500 disruption budgets: their time, their processor time, their requests, and
// the peak of their memory.
func BenchmarkForesight(b *testing.B) {
	for b.Loop() {
		measureForesight(b)
	}
}

func measureForesight(b *testing.B) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), foresightTimeout, fmt.Errorf("not within %s", foresightTimeout))
	defer cancel()
	cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true, Audit: true, Heartbeat: heartbeat})
	client, err := rawClient(cluster)
	must(b, err)
	must(b, cluster.CreatePools(ctx,
		controlplane.PoolSpec{Name: "batch"}, controlplane.PoolSpec{Name: "rest"},
		controlplane.PoolSpec{Name: "fallback", Capacity: []string{controlplane.OnDemand}}))
	node, err := fillForesight(b, ctx, cluster, client)
	must(b, err)
	for _, c := range []struct {
		what                    string
		goal, processor, memory float64
		args                    []string
	}{
		{"audit", 30, 0, 1024, []string{"audit"}},
		{"plan of one node", 0, 0, 0, []string{"plan", node}},
		{fmt.Sprintf("plan of a pool of %d nodes", foresightLost), 0, 8, 0, []string{"plan", "--pool=batch"}},
	} {
		took, processor := row{what: c.what + ": time", unit: "s", goal: c.goal}, row{what: c.what + ": processor time", unit: "s", goal: c.processor}
		requests, peak := row{what: c.what + ": requests"}, []memory{}
		for range rounds {
			from, err := auditEnd(cluster.AuditLog)
			must(b, err)
			ran, err := runCommand(ctx, cluster.Kubeconfig, c.args...)
			must(b, err)
			made, err := requestsOf("spot-handler-command/", cluster.AuditLog, from)
			must(b, err)
			took.values, processor.values = append(took.values, ran.seconds), append(processor.values, ran.processor)
			requests.values, peak = append(requests.values, float64(len(made))), append(peak, memory{total: ran.mib})
		}
		report(took)
		report(processor)
		report(requests)
		report(memoryRows(c.what+": memory, peak", c.memory, 0, peak)[0])
	}
}

// cost is what a command for people took: seconds, of those its processor time, and the most memory
// that it had at once, in MiB.
type cost struct{ seconds, processor, mib float64 }

// runCommand runs a command for people to its end.
func runCommand(ctx context.Context, kubeconfig string, args ...string) (cost, error) {
	program, err := daemon.Build()
	if err != nil {
		return cost{}, err
	}
	cmd := exec.CommandContext(ctx, program, append(args, "-o=json", "--kubeconfig="+kubeconfig)...)
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return cost{}, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, complaints.String())
	}
	c := cost{seconds: time.Since(began).Seconds(), processor: (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()}
	fmt.Fprintf(os.Stderr, "%s: %.1f s, %d bytes\n", strings.Join(args, " "), c.seconds, out.Len())
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return cost{}, fmt.Errorf("%s: nobody says how much memory it had", strings.Join(args, " "))
	}
	c.mib = float64(usage.Maxrss) / 1024 // the kernel counts in KiB
	return c, nil
}

// fillForesight makes the cluster, and returns the name of a node of the pool batch. The objects are
// put straight into etcd, as a cluster would have them that has run for a while: to make them one by
// one through the API server, and have controllers take them on, would take most of an hour. Nothing
// but the API server runs from then on: what is measured only reads, and a ReplicaSet that is seen
// before its pods would be given others.
func fillForesight(b *testing.B, ctx context.Context, cluster *controlplane.Cluster, client kubernetes.Interface) (string, error) {
	began := time.Now()
	s, err := storeOf(cluster)
	if err != nil {
		return "", err
	}
	var nodes []*corev1.Node
	for _, group := range []struct {
		pool  string
		count int
	}{{"batch", foresightLost}, {"rest", foresightNodes - foresightLost}} {
		made, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{
			Count: 1, Prefix: group.pool, Images: manyImages, Unmanaged: true,
			Labels: map[string]string{"karpenter.sh/nodepool": group.pool, "karpenter.sh/capacity-type": controlplane.Spot},
		})
		if err != nil {
			return "", err
		}
		nodes = append(nodes, made[0])
		for i := range group.count - 1 {
			node := made[0].DeepCopy()
			node.Name = fmt.Sprintf("%s-x-%04d", group.pool, i)
			node.Labels[corev1.LabelHostname] = node.Name
			node.Spec.ProviderID = "aws:///eu-west-1a/" + controlplane.InstanceID(node.Name)
			s.put("minions", node)
			nodes = append(nodes, node)
		}
	}
	for _, component := range []string{"kube-controller-manager", "kube-scheduler", "karpenter", "kwok"} {
		thaw, err := cluster.Freeze(component)
		if err != nil {
			return "", err
		}
		b.Cleanup(thaw)
	}
	for i := range foresightSpaces {
		space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("team-", i)}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
			return "", err
		}
	}
	each := len(nodes) * foresightPods / foresightWorkloads
	for i := range foresightWorkloads {
		for j, pod := range s.workload(i, each) {
			pod.Spec.NodeName = nodes[(i*each+j)/foresightPods].Name
			s.put("pods", pod)
		}
	}
	if err := s.flush(); err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "%d objects are stored after %s\n", s.count, time.Since(began).Round(time.Second))
	return nodes[0].Name, nil
}

// workload stores a Deployment, its ReplicaSet and its budget, and returns its pods, which are Ready.
func (s *store) workload(i, replicas int) (pods []*corev1.Pod) {
	app, template := foresightTemplate(i)
	n, some := int32(replicas), intstr.FromString("25%")
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	bare := *template.DeepCopy()
	delete(bare.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	meta := func(name string, labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: template.Namespace, Labels: labels, Annotations: map[string]string{"deployment.kubernetes.io/revision": "1"}}
	}
	deployment := &appsv1.Deployment{ObjectMeta: meta(app, nil), Spec: appsv1.DeploymentSpec{Replicas: &n, Selector: selector, Template: bare}}
	deployment.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: n, UpdatedReplicas: n, ReadyReplicas: n, AvailableReplicas: n}
	deployment.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &some, MaxUnavailable: &some}}
	s.put("deployments", deployment)
	set := &appsv1.ReplicaSet{
		ObjectMeta: meta(app+"-abcde", template.Labels),
		Spec:       appsv1.ReplicaSetSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
		Status:     appsv1.ReplicaSetStatus{ObservedGeneration: 1, Replicas: n, FullyLabeledReplicas: n, ReadyReplicas: n, AvailableReplicas: n},
	}
	set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	s.put("replicasets", set)
	s.put("poddisruptionbudgets", &policyv1.PodDisruptionBudget{
		ObjectMeta: meta(app, nil), Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &some, Selector: selector},
		Status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, CurrentHealthy: n, DesiredHealthy: n - n/4, ExpectedPods: n, DisruptionsAllowed: n / 4},
	})
	now := metav1.Now()
	for j := range replicas {
		pod := &corev1.Pod{ObjectMeta: meta(fmt.Sprintf("%s-abcde-%d", app, j), template.Labels), Spec: template.Spec}
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-12 * time.Second))},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		}}
		pods = append(pods, pod)
	}
	return pods
}

// store puts objects into a cluster's etcd, past its API server. After the first error it does nothing.
type store struct {
	url     string // of etcd's JSON gateway
	encoder runtime.Encoder
	puts    []any // of one transaction
	count   int
	err     error
}

// storeOf finds etcd by the arguments of the API server.
func storeOf(cluster *controlplane.Cluster) (*store, error) {
	for _, pid := range cluster.Processes {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			return nil, err
		}
		for arg := range strings.SplitSeq(string(args), "\x00") {
			if url, ok := strings.CutPrefix(arg, "--etcd-servers="); ok {
				return &store{url: url + "/v3/kv/txn", encoder: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)}, nil
			}
		}
	}
	return nil, errors.New("no API server says where etcd is")
}

// put stores an object, and gives it what the API server would have given it.
func (s *store) put(resource string, o interface {
	runtime.Object
	metav1.Object
}) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		s.err = err
		return
	}
	s.count++
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	o.SetUID(types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", s.count)))
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Hour)))
	o.SetGeneration(1)
	o.SetResourceVersion("")
	var value bytes.Buffer
	if err := s.encoder.Encode(o, &value); err != nil {
		s.err = err
		return
	}
	key := "/registry/" + resource + "/"
	if o.GetNamespace() != "" {
		key += o.GetNamespace() + "/"
	}
	s.puts = append(s.puts, map[string]any{"requestPut": map[string][]byte{"key": []byte(key + o.GetName()), "value": value.Bytes()}})
	if len(s.puts) == 64 { // etcd takes 128, and 1.5 MiB
		s.flush()
	}
}

func (s *store) flush() error {
	if s.err != nil || len(s.puts) == 0 {
		return s.err
	}
	body, err := json.Marshal(map[string]any{"success": s.puts})
	if err != nil {
		s.err = err
		return err
	}
	s.puts = nil
	answer, err := http.Post(s.url, "application/json", bytes.NewReader(body))
	if err != nil {
		s.err = err
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		s.err = fmt.Errorf("store objects: %s: %.300s", answer.Status, text)
	}
	return s.err
}

// foresightTemplate is a workload's name and its pods, as large as real ones with a sidecar.
func foresightTemplate(i int) (app string, template corev1.PodTemplateSpec) {
	app = fmt.Sprint("app-", i)
	template.Namespace = fmt.Sprint("team-", i%foresightSpaces)
	template.Labels = map[string]string{"app": app, appsv1.DefaultDeploymentUniqueLabelKey: "abcde", "team": template.Namespace, "version": "v1.2.3"}
	grace := int64(30)
	template.Spec = corev1.PodSpec{TerminationGracePeriodSeconds: &grace}
	for _, name := range []string{"app", "proxy"} {
		c := corev1.Container{Name: name, Image: "registry.example.com/team/" + name + ":v1.2.3", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("256Mi")},
		}}
		for j := range 15 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("SETTING_", j), Value: strings.Repeat("value ", 8)})
		}
		template.Spec.Containers = append(template.Spec.Containers, c)
	}
	return app, template
}
