package plan

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"spot-handler/handler/provisioner/placeholder"
)

// Notes takes down what is created through its clients. It is for one provisioner that asks for
// one node at a time.
type Notes struct {
	// Send has each object sent on, over clients whose requests change nothing. Otherwise whoever
	// creates one is told that it exists now.
	Send bool
	// Answered is told what the API server says to an object that was sent; it can be nil.
	Answered func(object string, err error)

	mu   sync.Mutex
	made []any // claimed, *corev1.Pod or *corev1.PodTemplate
}

// take returns what was created since the last time.
func (n *Notes) take() []any {
	n.mu.Lock()
	defer n.mu.Unlock()
	made := n.made
	n.made = nil
	return made
}

// create notes the object, and sends it if it is to be sent.
func create[T any](n *Notes, what string, object T, send func() (T, error)) (T, error) {
	if n.Send {
		got, err := send()
		if n.Answered != nil {
			n.Answered(what, err)
		}
		if err != nil {
			return got, err
		}
		object = got // which has a UID
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if u, ok := any(object).(*unstructured.Unstructured); ok {
		if claim, ok := readClaim(u); ok {
			n.made = append(n.made, claim)
		}
		return object, nil
	}
	n.made = append(n.made, object)
	return object, nil
}

// Dynamic notes what is created through the client.
func (n *Notes) Dynamic(next dynamic.Interface) dynamic.Interface { return notedDynamic{next, n} }

type notedDynamic struct {
	dynamic.Interface
	notes *Notes
}

func (d notedDynamic) Resource(resource schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return notedResource{d.Interface.Resource(resource), resource.Resource, d.notes}
}

type notedResource struct {
	dynamic.NamespaceableResourceInterface
	name  string
	notes *Notes
}

func (r notedResource) Create(ctx context.Context, u *unstructured.Unstructured, opts metav1.CreateOptions, subresources ...string) (*unstructured.Unstructured, error) {
	return create(r.notes, r.name+"/"+u.GetName(), u, func() (*unstructured.Unstructured, error) {
		return r.NamespaceableResourceInterface.Create(ctx, u, opts, subresources...)
	})
}

// Pods notes what is created through the client.
func (n *Notes) Pods(next placeholder.Pods) placeholder.Pods { return notedPods{next, n} }

type notedPods struct {
	placeholder.Pods
	notes *Notes
}

func (p notedPods) Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error) {
	return create(p.notes, "pods/"+pod.Name, pod, func() (*corev1.Pod, error) { return p.Pods.Create(ctx, pod, opts) })
}

// Templates notes what is created through the client.
func (n *Notes) Templates(next placeholder.Templates) placeholder.Templates {
	return notedTemplates{next, n}
}

type notedTemplates struct {
	placeholder.Templates
	notes *Notes
}

func (t notedTemplates) Create(ctx context.Context, template *corev1.PodTemplate, opts metav1.CreateOptions) (*corev1.PodTemplate, error) {
	return create(t.notes, "podtemplates/"+template.Name, template, func() (*corev1.PodTemplate, error) {
		return t.Templates.Create(ctx, template, opts)
	})
}
