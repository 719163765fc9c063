package controlplane

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// zone is where bare nodes are.
const zone = "eu-west-1a"

// inFlight is how many requests run concurrently when there are many: enough to keep an
// apiserver on two cores busy.
const inFlight = 32

// BareNodes describes nodes that nothing provisions: neither Karpenter nor a
// cloud knows them.
type BareNodes struct {
	Count  int
	Prefix string // of the names, which end in a number that no node had before; "node" by default

	// Instances are the EC2 instances of the nodes; InstanceID of their names by default.
	Instances []string

	Labels      map[string]string
	Annotations map[string]string
	Taints      []corev1.Taint

	// CPUs of each, with 4 GiB of memory for each of them, and room for 110 pods; 8 by
	// default.
	CPUs int

	// Images of each, as kubelets report them: up to 50, about 12 KiB, which is most of a
	// real Node.
	Images int

	// Unmanaged nodes have no kubelet: no pod on them ever starts, and after five of
	// Options.Heartbeat the control plane takes them for dead. They cost nothing.
	Unmanaged bool

	// Change may change each Node in any other way before it is created.
	Change func(i int, node *corev1.Node)
}

// InstanceID is the EC2 instance that the tests give a node: always the same for the same
// name, and different for different names.
func InstanceID(node string) string {
	sum := sha256.Sum256([]byte(node))
	return fmt.Sprintf("i-%x", sum[:9])[:len("i-")+17]
}

// CreateBareNodes creates nodes with a provider id such as
// aws:///eu-west-1a/i-0123456789abcdef0, where the instance is InstanceID of the name.
// They are created Ready. CreateBareNodes returns when the control plane has taken its
// initial taint off them.
func (c *Cluster) CreateBareNodes(ctx context.Context, spec BareNodes) ([]*corev1.Node, error) {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	prefix := cmp.Or(spec.Prefix, "node")
	// A node with the name of one that has just gone is at times never taken on by kwok: no pod on
	// it ever starts.
	first := int(c.bareNodes.Add(int64(spec.Count))) - spec.Count
	created := make([]*corev1.Node, spec.Count)
	err := inParallel(spec.Count, func(i int) error {
		created[i] = bareNode(spec, fmt.Sprintf("%s-%04d", prefix, first+i), i)
		return Create(ctx, c.Client, created[i])
	})
	if err != nil {
		return nil, err
	}
	if spec.Count == 1 { // many concurrent callers, of one node each, need not see each other's
		created[0], err = c.WaitNode(ctx, created[0].Name, NodeReady)
		return created, err
	}
	wanted := map[string]int{}
	for i, node := range created {
		wanted[node.Name] = i
	}
	err = c.waitNodes(ctx, func(nodes []*corev1.Node) bool {
		ready := 0
		for _, node := range nodes {
			if i, ok := wanted[node.Name]; ok && NodeReady(node) {
				created[i] = node
				ready++
			}
		}
		return ready == spec.Count
	})
	return created, err
}

func bareNode(spec BareNodes, name string, i int) *corev1.Node {
	instance := InstanceID(name)
	if len(spec.Instances) > 0 {
		instance = spec.Instances[i]
	}
	cpus := cmp.Or(spec.CPUs, 8)
	room := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(cpus), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(int64(cpus)*4<<30, resource.BinarySI),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname:       name,
				corev1.LabelArchStable:     "amd64",
				corev1.LabelOSStable:       "linux",
				corev1.LabelTopologyZone:   zone,
				corev1.LabelTopologyRegion: zone[:len(zone)-1],
			},
			Annotations: map[string]string{},
		},
		Spec: corev1.NodeSpec{
			ProviderID: "aws:///" + zone + "/" + instance,
			Taints:     spec.Taints,
		},
		Status: corev1.NodeStatus{
			Capacity:    room,
			Allocatable: room,
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
				LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			}},
		},
	}
	for i := range spec.Images {
		repository := fmt.Sprintf("123456789012.dkr.ecr.eu-west-1.amazonaws.com/team-%d/service-%d", i%7, i)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("%s@sha256:%x", repository, sha256.Sum256([]byte(repository))), repository + ":v1.2.3"},
			SizeBytes: int64(i+1) << 20,
		})
	}
	maps.Copy(node.Labels, spec.Labels)
	maps.Copy(node.Annotations, spec.Annotations)
	if !spec.Unmanaged {
		node.Annotations["kwok.x-k8s.io/node"] = "fake"
	}
	if spec.Change != nil {
		spec.Change(i, node)
	}
	return node
}

// inParallel calls do for 0 to n-1, a limited number at a time, and returns the first error.
func inParallel(n int, do func(i int) error) error {
	var calls errgroup.Group
	calls.SetLimit(inFlight)
	for i := range n {
		calls.Go(func() error { return do(i) })
	}
	return calls.Wait()
}
