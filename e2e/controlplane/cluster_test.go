package controlplane_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
)

// slack is how late things may be on a machine that is busy with other tests, or pauses.
// What they must not wait for takes a minute or more.
const slack = 30 * time.Second

func TestPodsOnKarpenterNode(t *testing.T) {
	ctx := t.Context()
	cluster := controlplane.ForTest(t, controlplane.Options{Karpenter: true})
	if err := cluster.CreatePools(ctx,
		controlplane.PoolSpec{Name: "batch", Weight: 100, Boot: 40 * time.Second, Labels: map[string]string{"team": "a"}},
		controlplane.PoolSpec{Name: "batch-fallback", Weight: 10, Capacity: []string{controlplane.OnDemand}, CPUs: 4},
	); err != nil {
		t.Fatal(err)
	}
	node, err := cluster.CreateNode(ctx, "batch")
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"karpenter.sh/nodepool": "batch", "karpenter.sh/capacity-type": "spot", "team": "a",
		"spot-handler/instance-id": controlplane.InstanceID(node.Name), "node.kubernetes.io/instance-type": "s-8x-amd64-linux",
	} {
		if got := node.Labels[key]; got != want {
			t.Errorf("label %s of the node: got %q, want %q", key, got, want)
		}
	}
	if got := node.Annotations["kwok.x-k8s.io/node"]; got != "fake" {
		t.Errorf("annotation of kwok: got %q", got)
	}

	t.Run("is ready after the time it takes", func(t *testing.T) {
		readyAfter := 4 * time.Second
		if _, err := cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
			Name: "slow", Replicas: 2, Pool: "batch", Behaviour: controlplane.Behaviour{ReadyAfter: &readyAfter},
		}); err != nil {
			t.Fatal(err)
		}
		pods, err := cluster.WaitReady(ctx, "", "slow", 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, pod := range pods {
			checkDuration(t, readyIn(t, pod), readyAfter-time.Second) // the time in the API drops the fraction of a second
		}
		if pods[0].Spec.NodeName != node.Name {
			t.Errorf("pod runs on %q, want %q", pods[0].Spec.NodeName, node.Name)
		}
		if pods[0].Status.PodIP == "" || pods[0].Status.PodIP == pods[1].Status.PodIP {
			t.Errorf("pod ips: %q and %q", pods[0].Status.PodIP, pods[1].Status.PodIP)
		}
	})

	t.Run("stops within its grace period", func(t *testing.T) {
		for _, test := range []struct {
			name, app              string
			stopAfter, grace, want time.Duration
		}{
			{"long grace", "long-grace", 4 * time.Second, 2 * time.Minute, 4 * time.Second},
			{"short grace", "short-grace", time.Minute, 2 * time.Second, 2 * time.Second},
			{"grace of a second", "no-grace", time.Minute, time.Second, 0},
		} {
			t.Run(test.name, func(t *testing.T) {
				zero := time.Duration(0)
				if _, err := cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
					Namespace: "stops", Name: test.app, Replicas: 1,
					Behaviour: controlplane.Behaviour{ReadyAfter: &zero, StopAfter: &test.stopAfter},
				}); err != nil {
					t.Fatal(err)
				}
				ready, err := cluster.WaitReady(ctx, "stops", test.app, 1)
				if err != nil {
					t.Fatal(err)
				}
				pod, pods := ready[0], cluster.Client.CoreV1().Pods("stops")
				seconds := int64(test.grace.Seconds())
				started := time.Now()
				if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &seconds}); err != nil {
					t.Fatal(err)
				}
				// Changes in between must not prolong it. They come faster than it takes,
				// so it would never end if each started it again.
				go func() {
					for i, err := 0, error(nil); err == nil; i++ { // until the pod is gone
						time.Sleep(time.Second)
						patch := fmt.Appendf(nil, `{"metadata":{"labels":{"changed":"%d"}}}`, i)
						_, err = pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
					}
				}()
				waitGone(t, cluster, pod)
				checkDuration(t, time.Since(started), test.want)
			})
		}
	})

	t.Run("is not evicted past its budget", func(t *testing.T) {
		two := intstr.FromInt32(2)
		if _, err := cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
			Namespace: "budget", Name: "budget", Replicas: 2, BudgetMinAvailable: &two, Spread: corev1.LabelTopologyZone,
		}); err != nil {
			t.Fatal(err)
		}
		pods, err := cluster.WaitReady(ctx, "budget", "budget", 2)
		if err != nil {
			t.Fatal(err)
		}
		err = cluster.Client.CoreV1().Pods("budget").EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods[0].Name}})
		if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
			t.Errorf("evict: got %v, want a refusal by the budget", err)
		}
	})

	t.Run("Job succeeds", func(t *testing.T) {
		complete := 2 * time.Second
		if _, err := cluster.Client.BatchV1().Jobs("default").Create(ctx, &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: "job"},
			Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "job"}, Annotations: controlplane.Behaviour{CompleteAfter: &complete}.Annotations()},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "app", Image: "fake"}}},
			}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		jobs, err := cluster.Client.BatchV1().Jobs("default").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer jobs.Stop()
		succeeded := false
		for change := range jobs.ResultChan() {
			status := change.Object.(*batchv1.Job).Status
			if status.Failed > 0 {
				t.Fatalf("job failed: %+v", status)
			}
			if status.Succeeded == 1 {
				succeeded = true
				break
			}
		}
		if !succeeded {
			t.Error("the watch ended before the Job succeeded")
		}
	})

	t.Run("DaemonSet runs", func(t *testing.T) {
		labels := map[string]string{"app": "daemon"}
		if _, err := cluster.Client.AppsV1().DaemonSets("default").Create(ctx, &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: "daemon"},
			Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "app", Image: "fake"}}},
				},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.WaitReady(ctx, "", "daemon", 1); err != nil {
			t.Fatal(err)
		}
	})
}

func TestKarpenterLaunchesForPendingPods(t *testing.T) {
	ctx := t.Context()
	cluster := controlplane.ForTest(t, controlplane.Options{Karpenter: true})
	const boot = 3 * time.Second
	if err := cluster.CreatePools(ctx, controlplane.PoolSpec{Name: "batch", Boot: boot}); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if _, err := cluster.RunDeployment(ctx, controlplane.DeploymentSpec{Name: "web", Replicas: 3, CPU: "1"}); err != nil {
		t.Fatal(err)
	}
	pods, err := cluster.WaitReady(ctx, "", "web", 3)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(started); took < boot {
		t.Errorf("pods were ready after %s, before a node could have booted", took)
	}
	node, err := cluster.LabelInstance(ctx, pods[0].Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	if got := node.Labels["spot-handler/instance-id"]; got != controlplane.InstanceID(node.Name) {
		t.Errorf("instance id: got %q", got)
	}
}

func TestBareNodesAndAuditLog(t *testing.T) {
	ctx := t.Context()
	cluster := controlplane.ForTest(t, controlplane.Options{Audit: true})
	nodes, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: 50, CPUs: 2})
	if err != nil {
		t.Fatal(err)
	}
	if want := "aws:///eu-west-1a/" + controlplane.InstanceID(nodes[7].Name); nodes[7].Spec.ProviderID != want {
		t.Errorf("provider id: got %q, want %q", nodes[7].Spec.ProviderID, want)
	}
	if _, err := cluster.RunDeployment(ctx, controlplane.DeploymentSpec{Name: "web", Replicas: 100, CPU: "1", Spread: corev1.LabelHostname}); err != nil {
		t.Fatal(err)
	}
	pods, err := cluster.WaitReady(ctx, "", "web", 100)
	if err != nil {
		t.Fatal(err)
	}

	config, err := cluster.ServiceAccountConfig(ctx, "default", "default", pods[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list nodes as a service account without rights: got %v", err)
	}

	config = cluster.RESTConfig()
	config.UserAgent = "audited"
	if client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods[:3] {
		if err := client.CoreV1().Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}}); err != nil {
			t.Errorf("evict: %v", err)
		}
	}
	if got := audited(t, cluster.AuditLog, "audited"); len(got) != 3 || !strings.HasSuffix(got[0], "/eviction") {
		t.Errorf("audit log: got %v", got)
	}

	out, err := exec.CommandContext(ctx, cluster.Kubectl, "--kubeconfig", cluster.Kubeconfig, "version").CombinedOutput()
	if err != nil || strings.Contains(string(out), "v0.0.0") {
		t.Errorf("kubectl version: %v\n%s", err, out)
	}
}

// audited returns the URIs of one user agent's requests.
func audited(t *testing.T, path, agent string) (uris []string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	var cut error
	for lines.Scan() {
		if cut != nil {
			t.Fatalf("parse the audit log: %v", cut)
		}
		var entry struct{ UserAgent, RequestURI string }
		// The last line may be half written, for a request under way.
		cut = json.Unmarshal(lines.Bytes(), &entry)
		if cut == nil && entry.UserAgent == agent {
			uris = append(uris, entry.RequestURI)
		}
	}
	return uris
}

func waitGone(t *testing.T, cluster *controlplane.Cluster, pod *corev1.Pod) {
	t.Helper()
	if _, err := cluster.WaitPods(t.Context(), pod.Namespace, "", func(pods []*corev1.Pod) bool {
		for _, other := range pods {
			if other.UID == pod.UID {
				return false
			}
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
}

// readyIn is how long the pod took from its start to Ready, up to a second too little.
func readyIn(t *testing.T, pod *corev1.Pod) time.Duration {
	t.Helper()
	started, err := strconv.ParseInt(pod.Annotations["e2e.spot-handler/started"], 10, 64)
	if err != nil {
		t.Fatalf("read when pod %s started: %v", pod.Name, err)
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return condition.LastTransitionTime.Sub(time.UnixMilli(started))
		}
	}
	t.Fatalf("pod %s is not Ready", pod.Name)
	return 0
}

func checkDuration(t *testing.T, got, want time.Duration) {
	t.Helper()
	t.Logf("took %s, to take %s", got.Round(10*time.Millisecond), want)
	if got < want || got > want+slack {
		t.Errorf("took %s, want %s to %s", got, want, want+slack)
	}
}
