package nodes

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/handler/interruption"
)

// watched shows what the test gives it.
type watched struct{ changes *watch.FakeWatcher }

func (watched) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (w watched) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return w.changes, nil
}

func (watched) IsWatchListSemanticsUnSupported() bool { return true }

// A Node's own addresses are known, and not the others of its instance, which pods have.
func TestAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched{watch.NewFake()}
		x := New(w, "", zerolog.Nop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- x.Run(ctx) }()
		synctest.Wait()
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", ResourceVersion: "2"}}
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.2"},
			{Type: corev1.NodeInternalIP, Address: "2600:0::1"}, {Type: corev1.NodeExternalIP, Address: "3.4.5.6"},
			{Type: corev1.NodeHostName, Address: "node"},
		}
		w.changes.Add(node)
		synctest.Wait()
		for addr, want := range map[string]bool{"10.0.0.1": true, "10.0.0.2": false, "2600::1": true, "3.4.5.6": true} {
			if got := x.HasAddress(netip.MustParseAddr(addr)); got != want {
				t.Errorf("%s is a Node's: %t, want %t", addr, got, want)
			}
		}
		w.changes.Delete(node)
		synctest.Wait()
		if x.HasAddress(netip.MustParseAddr("10.0.0.1")) {
			t.Error("the address of a Node that is gone is known")
		}
		cancel()
		<-done
	})
}

// An instance is reported once, when its Node says that it is that, and is found by then; and once
// when it is no Node any more.
func TestInstancesThatAppear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched{watch.NewFake()}
		x := New(w, "", zerolog.Nop())
		var mu sync.Mutex
		var appeared, gone []string
		x.OnAppear(func(instance string) {
			mu.Lock()
			defer mu.Unlock()
			appeared = append(appeared, instance)
			if _, ok := x.Find(interruption.Notice{InstanceID: instance}); !ok {
				t.Errorf("%s is reported before it can be found", instance)
			}
		})
		x.OnGone(func(instance string) {
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, instance)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- x.Run(ctx) }()
		synctest.Wait()
		node := func(version, provider string, labels map[string]string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", ResourceVersion: version, Labels: labels}, Spec: corev1.NodeSpec{ProviderID: provider}}
		}
		w.changes.Add(node("2", "", nil)) // its kubelet does not know
		w.changes.Modify(node("3", "", map[string]string{interruption.InstanceIDLabel: "i-00000001"}))
		w.changes.Modify(node("4", "aws:///eu-west-1a/i-00000002", nil))
		w.changes.Modify(node("5", "aws:///eu-west-1a/i-00000002", map[string]string{"team": "blue"}))
		w.changes.Delete(node("6", "aws:///eu-west-1a/i-00000002", nil))
		synctest.Wait()
		mu.Lock()
		if want := []string{"i-00000001", "i-00000002"}; !slices.Equal(appeared, want) {
			t.Errorf("appeared %v, want %v", appeared, want)
		}
		if want := []string{"i-00000002"}; !slices.Equal(gone, want) {
			t.Errorf("gone %v, want %v", gone, want)
		}
		mu.Unlock()
		cancel()
		<-done
	})
}

// A Node is reported as long as it has a record, and once more when that is gone. What happens to the others is no news.
func TestChangesOfInterruptedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched{watch.NewFake()}
		x := New(w, "", zerolog.Nop())
		var mu sync.Mutex
		var changed []string
		x.OnChange(func(name string) {
			mu.Lock()
			defer mu.Unlock()
			changed = append(changed, name)
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- x.Run(ctx) }()
		synctest.Wait()
		version := 1
		node := func(name string, interrupted bool) *corev1.Node {
			version++
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(version)}}
			if interrupted {
				rec := interruption.NewRecord(interruption.Notice{Kind: interruption.SpotInterruption, EventID: "e"})
				n.Annotations = map[string]string{interruption.Annotation: rec.String()}
			}
			return n
		}
		for _, step := range []struct {
			do   func(object runtime.Object)
			node *corev1.Node
			want bool
		}{
			{w.changes.Add, node("a", false), false},
			{w.changes.Modify, node("a", true), true},
			{w.changes.Modify, node("a", false), true},
			{w.changes.Delete, node("a", false), false},
			{w.changes.Add, node("b", true), true},
			{w.changes.Delete, node("b", true), true},
		} {
			changed = nil
			step.do(step.node)
			synctest.Wait()
			mu.Lock()
			if got := len(changed) > 0; got != step.want {
				t.Errorf("version %s of %s: reported %t", step.node.ResourceVersion, step.node.Name, got)
			}
			mu.Unlock()
		}
		cancel()
		<-done
	})
}
