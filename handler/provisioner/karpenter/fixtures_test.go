package karpenter

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

const instance = "i-0123456789abcdef0"

// fallbackPool is testdata/nodepool.json with the changes made to it.
func fallbackPool(t *testing.T, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	t.Helper()
	b, err := os.ReadFile("testdata/nodepool.json")
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(b); err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(u)
	}
	return u
}

func set(value any, path ...string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
			panic(err)
		}
	}
}

// requires replaces the pool's requirements, given as JSON.
func requires(list string) func(*unstructured.Unstructured) {
	var v []any
	if err := json.Unmarshal([]byte(list), &v); err != nil {
		panic(err)
	}
	return set(v, "spec", "template", "spec", "requirements")
}

func pool(t *testing.T, change ...func(*unstructured.Unstructured)) *nodePool {
	t.Helper()
	p := decodePool(fallbackPool(t, change...))
	if p.broken != "" {
		t.Fatal(p.broken)
	}
	return p
}

// sourcePool is the spot pool of the interrupted node, which names its fallback.
func sourcePool() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodePool"}}
	u.SetName("spot")
	u.SetAnnotations(map[string]string{FallbackAnnotation: "fallback"})
	return u
}

func interruptedNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "node-1",
			UID:  "node-uid",
			Labels: map[string]string{
				nodePoolLabel:            "spot",
				capacityTypeLabel:        "spot",
				corev1.LabelTopologyZone: "eu-west-1b",
				"example.com/tier":       "silver",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: "spot-abcde", UID: "source-uid"}},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///eu-west-1b/" + instance},
	}
}

// sourceNodeClaim is the claim that owns interruptedNode.
func sourceNodeClaim() *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1",
		"kind":       "NodeClaim",
		"spec": map[string]any{"requirements": []any{
			map[string]any{"key": corev1.LabelInstanceTypeStable, "operator": "In", "values": []any{"m5.large", "m6i.large", "c6i.large"}},
			map[string]any{"key": corev1.LabelArchStable, "operator": "In", "values": []any{"amd64"}},
		}},
		"status": map[string]any{"nodeName": "node-1", "providerID": "aws:///eu-west-1b/" + instance},
	}}
	u.SetName("spot-abcde")
	u.SetUID("source-uid")
	u.SetAnnotations(map[string]string{"karpenter.sh/nodepool-hash": "1"})
	return u
}

func record() interruption.Record {
	deadline := time.Now().Add(2 * time.Minute)
	return interruption.NewRecord(interruption.Notice{
		Kind:       interruption.SpotInterruption,
		Source:     interruption.Queue,
		EventID:    "event-1",
		InstanceID: instance,
		Noticed:    time.Now(),
		Received:   time.Now(),
		Deadline:   deadline,
	})
}

func container(cpu, memory string) corev1.Container {
	requests := corev1.ResourceList{}
	if cpu != "" {
		requests[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		requests[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests}}
}

// pod tolerates the taint of testdata/nodepool.json.
func pod(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.PodSpec{
			Containers:  containers,
			Tolerations: []corev1.Toleration{{Key: "example.com/dedicated", Operator: corev1.TolerationOpExists}},
		},
	}
}

func need() provisioner.Need {
	return provisioner.Need{
		Moving:  []*corev1.Pod{pod(container("500m", "1Gi")), pod(container("250m", "256Mi"))},
		Daemons: []*corev1.Pod{pod(container("100m", "64Mi"))},
	}
}

// withRecord is the node with the record on it.
func withRecord(node *corev1.Node, rec interruption.Record) *corev1.Node {
	node.Annotations = map[string]string{interruption.Annotation: rec.String()}
	return node
}

// replacementNode is the Node of the claim that is asked for.
const replacementNode = "replacement-1"

// fakeNodes are the Nodes and their pods, and take Events.
type fakeNodes struct {
	mu      sync.Mutex
	nodes   map[string]*corev1.Node
	pods    []corev1.Pod // on the node that each names, or else on replacementNode
	behind  bool         // the API server's caches, which know no record and no pod
	lists   int
	gets    int
	patches []string
	events  []string
	warned  bool  // the last of them is a warning
	broken  error // of patches and of lists of pods; nil: they succeed
}

var (
	_ Nodes  = (*fakeNodes)(nil)
	_ Pods   = (*fakeNodes)(nil)
	_ Events = (*fakeNodes)(nil)
)

func (f *fakeNodes) put(node *corev1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[node.Name] = node
}

func (f *fakeNodes) Get(_ context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gets++
	if node := f.nodes[name]; node != nil {
		if f.behind && opts.ResourceVersion == "0" {
			node = node.DeepCopy()
			node.Annotations = nil
		}
		return node, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

func (f *fakeNodes) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return nil, f.broken
	}
	f.patches = append(f.patches, name+" "+string(data))
	return &corev1.Node{}, nil
}

func (f *fakeNodes) List(_ context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	if f.broken != nil {
		return nil, f.broken
	}
	if f.behind && opts.ResourceVersion == "0" {
		return &corev1.PodList{}, nil
	}
	list := &corev1.PodList{}
	for _, pod := range f.pods {
		if opts.FieldSelector == "spec.nodeName="+cmp.Or(pod.Spec.NodeName, replacementNode) {
			list.Items = append(list.Items, pod)
		}
	}
	return list, nil
}

func (f *fakeNodes) About(object *corev1.ObjectReference, eventType, reason, _ string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warned = eventType == corev1.EventTypeWarning
	f.events = append(f.events, object.Kind+"/"+object.Name+" "+reason)
}

var lasting = set("Never", "spec", "disruption", "consolidateAfter")

var instances atomic.Int64

// anotherInstance is the node with an instance of its own.
func anotherInstance(node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	node.Spec.ProviderID = fmt.Sprintf("aws:///eu-west-1b/i-%017x", instances.Add(1))
	return node
}
