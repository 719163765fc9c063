package nodes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/handler/interruption"
)

// pages answers lists in pages, like an API server that does not stream them.
type pages struct {
	nodes  int
	failAt int // the page whose first answer is an error; 0 means none
	lists  []metav1.ListOptions
}

func (p *pages) List(_ context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	p.lists = append(p.lists, o)
	from, _ := strconv.Atoi(o.Continue)
	if p.failAt > 0 && from == p.failAt*pageSize {
		p.failAt = 0
		return nil, errors.New("the list has expired")
	}
	result := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for i := from; i < min(p.nodes, from+int(o.Limit)); i++ {
		result.Items = append(result.Items, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Annotations: map[string]string{"somebody/else": "x"}},
			Spec:       corev1.NodeSpec{ProviderID: fmt.Sprint("aws:///eu-west-1a/i-", i)},
			Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"image"}}}},
		})
	}
	if next := from + int(o.Limit); next < p.nodes {
		result.Continue = strconv.Itoa(next)
	}
	return result, nil
}

func (p *pages) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

// IsWatchListSemanticsUnSupported tells client-go not to ask for a stream.
func (p *pages) IsWatchListSemanticsUnSupported() bool { return true }

func TestNodesAreListedInPages(t *testing.T) {
	client := &pages{nodes: 3*pageSize + 1}
	all, err := List(t.Context(), client, metav1.ListOptions{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != client.nodes || all.ResourceVersion != "7" || all.Continue != "" {
		t.Errorf("got %d nodes, resource version %q, continue %q", len(all.Items), all.ResourceVersion, all.Continue)
	}
	if len(client.lists) != 4 {
		t.Errorf("asked %d times, want 4", len(client.lists))
	}
	for _, o := range client.lists {
		if o.Limit != pageSize || o.ResourceVersion != "" || o.ResourceVersionMatch != "" {
			t.Errorf("asked for %+v: answered from a cache, all at once", o)
		}
	}
	for _, node := range all.Items {
		if len(node.Status.Images) > 0 || len(node.Annotations) > 0 {
			t.Fatalf("%s is kept whole", node.Name)
		}
	}
}

// A list that breaks off starts again: no Node may be missing from the index.
func TestIndexKnowsAllNodesAfterAListThatBrokeOff(t *testing.T) {
	client := &pages{nodes: 2*pageSize + 5, failAt: 1}
	x := New(client, "", zerolog.Nop())
	go x.Run(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := x.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range client.nodes {
		if _, ok := x.Find(interruption.Notice{InstanceID: fmt.Sprint("i-", i)}); !ok {
			t.Fatalf("i-%d is not known", i)
		}
	}
}
