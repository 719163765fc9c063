package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/e2e/controlplane"
)

// BenchmarkFiles patches the annotations that pods without a server read, and waits until a kubelet
// shows them as files. The kubelet is real but for its containers. It looks at each pod once a
// minute, and earlier if something has changed.
func BenchmarkFiles(b *testing.B) {
	for b.Loop() {
		measureFiles(b)
	}
}

func measureFiles(b *testing.B) {
	const pods, rounds = 10, 6
	cluster := controlplane.ForTest(b, controlplane.Options{})
	ctx, stop := context.WithTimeoutCause(b.Context(), 15*time.Minute, fmt.Errorf("not within 15 minutes"))
	defer stop()
	root := startKubelet(b, ctx, cluster.Kubeconfig)
	api := cluster.Client.CoreV1().Pods(metav1.NamespaceDefault)
	files := map[string]string{} // by pod
	for i := range pods {
		pod, err := api.Create(ctx, readsFiles(fmt.Sprintf("reads-files-%d", i)), metav1.CreateOptions{})
		must(b, err)
		files[pod.Name] = filepath.Join(root, "pods", string(pod.UID), "volumes", "kubernetes.io~downward-api", "spot", "evict-by")
	}
	wait := func(name, text string) {
		for {
			if shown, err := os.ReadFile(files[name]); err == nil && string(shown) == text {
				return
			}
			pause(b, ctx, 2*time.Millisecond)
		}
	}
	for name := range files {
		wait(name, "")
	}
	var took []float64
	for i := range rounds {
		text := time.Now().Add(time.Duration(i) * time.Hour).UTC().Format(time.RFC3339)
		for name := range files {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, drain.EvictByAnnotation, text)
			_, err := api.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
			must(b, err)
			patched := time.Now()
			wait(name, text)
			took = append(took, time.Since(patched).Seconds())
		}
	}
	report(row{what: "annotation patched until a kubelet shows it as a file", unit: "s", values: took})
}

// readsFiles is a pod with the volume of the manual.
func readsFiles(name string) *corev1.Pod {
	shows := func(path, annotation string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + annotation + "']"}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: "hollow", AutomountServiceAccountToken: new(false),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "app", Image: "fake", VolumeMounts: []corev1.VolumeMount{{Name: "spot", MountPath: "/etc/spot"}}}},
			Volumes: []corev1.Volume{{Name: "spot", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
				Items: []corev1.DownwardAPIVolumeFile{shows("deadline", drain.DeadlineAnnotation), shows("evict-by", drain.EvictByAnnotation)},
			}}}},
		},
	}
}

// startKubelet builds and runs e2e/kubelet until the benchmark ends, and returns its root directory.
// The first build takes minutes.
func startKubelet(b *testing.B, ctx context.Context, kubeconfig string) (root string) {
	b.Helper()
	program := filepath.Join(b.TempDir(), "kubelet")
	build := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-o", program, ".")
	build.Dir, build.Env = "../kubelet", append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build a kubelet: %v\n%s", err, out)
	}
	run := exec.Command(program)
	run.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	stdin, err := run.StdinPipe() // its end ends the process
	must(b, err)
	stdout, err := run.StdoutPipe()
	must(b, err)
	must(b, run.Start())
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = run.Wait()
	})
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() {
		b.Fatalf("the kubelet says nothing: %v", lines.Err())
	}
	return lines.Text()
}
