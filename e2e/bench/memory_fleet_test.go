package bench

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/handler/interruption"
)

const (
	fleetNodes       = manyNodes
	fleetPods        = 10 // of each
	fleetAttachments = 2  // of each
	fleetBurst       = 300
	fleetGoal        = 64.0
	fleetTimeout     = 25 * time.Minute // 50,000 pods alone take minutes
)

// BenchmarkMemoryFleet measures the daemons of imds mode in a cluster of 5,000 Nodes of real size,
// 50,000 pods and 10,000 VolumeAttachments, of which 300 nodes are interrupted at once: the one
// that marks its node, and the one that drains for all; then the one that does both on its own, as
// an API server of today streams it what it watches, and as one lists it that cannot.
//
// The other nodes are marked by a raw loop: 300 daemons have no room on one machine. Their pods
// have no kubelet and end when they are evicted.
func BenchmarkMemoryFleet(b *testing.B) {
	for b.Loop() {
		measureFleet(b)
	}
}

func measureFleet(b *testing.B) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), fleetTimeout, fmt.Errorf("not within %s", fleetTimeout))
	defer cancel()
	cluster := controlplane.ForTest(b, controlplane.Options{Heartbeat: heartbeat})
	client, err := rawClient(cluster)
	must(b, err)
	nodes, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: fleetNodes, Images: manyImages, Unmanaged: true})
	must(b, err)
	must(b, fillFleet(ctx, client, nodes))
	f := &fleet{B: b, ctx: ctx, cluster: cluster, client: client}

	drains := f.start(nil, "drain")
	marks := f.start(nodes[0], "imds", "--drain=false")
	f.burst(nodes[:fleetBurst], marks, drains)
	f.report("imds that marks", fleetGoal, marks)
	f.report("drain", 0, drains)

	streamed := f.start(nodes[fleetBurst], "imds")
	listed := f.start(nodes[fleetBurst+1], "imds", "KUBE_FEATURE_WatchListClient=false")
	f.burst(nodes[fleetBurst:2*fleetBurst], streamed, listed)
	f.report("imds on its own, streamed", fleetGoal, streamed)
	f.report("imds on its own, listed", fleetGoal, listed)
}

// fleet is where daemons of imds mode are measured.
type fleet struct {
	*testing.B
	ctx     context.Context
	cluster *controlplane.Cluster
	client  kubernetes.Interface
}

// member is a daemon that is measured: of the node, or of all if that is nil.
type member struct {
	*daemon.Daemon
	node     *corev1.Node
	metadata *imdsemu.Server
	resident *residence
	idle     memory
}

// start starts a daemon of the mode, with more flags, or variables as NAME=value.
func (f *fleet) start(node *corev1.Node, mode string, more ...string) *member {
	f.Helper()
	o := daemon.Options{Args: []string{mode}, Kubeconfig: f.cluster.Kubeconfig}
	for _, arg := range more {
		if arg[0] == '-' {
			o.Args = append(o.Args, arg)
		} else {
			o.Env = append(o.Env, arg)
		}
	}
	m := &member{node: node}
	if node != nil {
		m.metadata = imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(node.Name)})
		f.Cleanup(m.metadata.Close)
		o.Args, o.IMDS = append(o.Args, "--node-name="+node.Name), m.metadata.URL
	}
	m.Daemon = start(f.B, o)
	m.resident = watchMemory(m.Daemon)
	must(f.B, m.WaitReady(f.ctx))
	return m
}

// burst interrupts the nodes and waits until the members have drained theirs, and then stops
// them.
func (f *fleet) burst(nodes []*corev1.Node, members ...*member) {
	f.Helper()
	pause(f.B, f.ctx, settleTime)
	for _, m := range members {
		m.idle, _ = m.resident.look()
	}
	raw := slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool {
		return slices.ContainsFunc(members, func(m *member) bool { return m.node != nil && m.node.Name == n.Name })
	})
	for i, n := range raw { // the control plane has gone on writing them
		var err error
		raw[i], err = f.client.CoreV1().Nodes().Get(f.ctx, n.Name, metav1.GetOptions{})
		must(f.B, err)
	}
	for _, m := range members {
		if m.node != nil {
			m.metadata.Interrupt("terminate", time.Now().Add(noticeTime))
		}
	}
	err := rawCordon(f.ctx, f.client, raw, sameConcurrency, interruption.IMDS)
	must(f.B, err)
	for _, m := range members {
		drains := 1
		switch {
		case m.node == nil:
			drains = len(nodes)
		case slices.ContainsFunc(members, func(m *member) bool { return m.node == nil }):
			drains = 0 // it only marks
			waitLine(f.B, f.ctx, m.Daemon, "interruption accepted")
		}
		attached := slices.Clone(nodes)
		late := func() int { return len(m.Lines("deadline reached")) }
		for len(m.Lines("drained"))+late() < drains {
			attached = slices.DeleteFunc(attached, f.detach)
			pause(f.B, f.ctx, time.Second)
		}
		if late() > 0 {
			f.Errorf("%d of %d drains ended at the deadline", late(), drains)
		}
	}
	for _, m := range members {
		if code := m.Stop(); code != 0 {
			f.Errorf("a daemon ended with code %d", code)
		}
	}
}

// detach does what a CSI driver does when all pods have left the node, and reports whether they
// have.
func (f *fleet) detach(node *corev1.Node) bool {
	f.Helper()
	list, err := f.client.CoreV1().Pods(metav1.NamespaceDefault).List(f.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name, ResourceVersion: "0"})
	must(f.B, err)
	if len(list.Items) > 0 {
		return false
	}
	for i := range fleetAttachments {
		err := f.client.StorageV1().VolumeAttachments().Delete(f.ctx, attachmentName(node, i), metav1.DeleteOptions{})
		if !apierrors.IsNotFound(err) {
			must(f.B, err)
		}
	}
	return true
}

// attachmentName is as long as those that the attach-detach controller makes.
func attachmentName(node *corev1.Node, i int) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256(fmt.Append(nil, node.Name, i)))
}

func (f *fleet) report(what string, goal float64, m *member) {
	_, peak := m.resident.look()
	what = fmt.Sprintf("%s, %d nodes, %d pods: memory, ", what, fleetNodes, fleetNodes*fleetPods)
	reportMemory(what+"idle", 0, 0, m.idle)
	reportMemory(fmt.Sprintf("%speak with %d interrupted at once", what, fleetBurst), goal, 0, peak)
}

// fillFleet makes the nodes' pods and VolumeAttachments. Pods of those that will be interrupted
// use what is attached.
func fillFleet(ctx context.Context, client kubernetes.Interface, nodes []*corev1.Node) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(200)
	now := int64(0)
	for i, node := range nodes {
		for j := range fleetPods {
			g.Go(func() error {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d-%d", i, j), Labels: map[string]string{"app": fmt.Sprint("app-", i%100)}},
					Spec: corev1.PodSpec{
						NodeName: node.Name, Containers: []corev1.Container{{Name: "app", Image: "fake"}},
						TerminationGracePeriodSeconds: &now,
					},
				}
				if j >= fleetAttachments || i >= 2*fleetBurst {
					_, err := client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
					return err
				}
				claim := &corev1.PersistentVolumeClaim{
					ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
					Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "volume-" + pod.Name,
						Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
					},
				}
				if _, err := client.CoreV1().PersistentVolumeClaims(metav1.NamespaceDefault).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
					return err
				}
				pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
				}}}
				_, err := client.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{})
				return err
			})
		}
		for j := range fleetAttachments {
			g.Go(func() error {
				volume := fmt.Sprintf("volume-pod-%d-%d", i, j)
				_, err := client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
					ObjectMeta: metav1.ObjectMeta{Name: attachmentName(node, j)},
					Spec: storagev1.VolumeAttachmentSpec{
						Attacher: "ebs.csi.aws.com", NodeName: node.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
					},
				}, metav1.CreateOptions{})
				return err
			})
		}
	}
	return g.Wait()
}
