package observe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
	"spot-handler/handler/provisioner/karpenter"
)

// Cluster is what the watches are made with.
type Cluster struct {
	Core    rest.Interface // core/v1
	Policy  rest.Interface // policy/v1
	Dynamic dynamic.Interface

	// Namespace, if it is set, is the only one whose pods are watched.
	Namespace string
}

// need is what an observer asks to be watched: the pods on a node, or the workloads of a namespace
// with their pods and budgets.
type need struct{ node, namespace string }

// selection is what is watched of a resource.
type selection struct{ resource, namespace, fields, labels string }

func (s selection) narrow(l *metav1.ListOptions) {
	l.FieldSelector, l.LabelSelector = s.fields, s.labels
}

// Watch shows the observer all that it needs, until ctx ends, which is no error. ready, if it is
// not nil, is called when the Nodes are known, and what there is of the wanted ones.
func (c Cluster) Watch(ctx context.Context, o *Observer, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watcher{Cluster: c, ctx: ctx, observer: o, asked: map[need]bool{}}
	o.need = w.ask
	o.begin()
	follow(w, c.Core, selection{resource: "nodes"}, o.node, nil, func(err error) { cancel(fmt.Errorf("watch nodes: %w", err)) })
	follow(w, c.Core, selection{resource: "events", namespace: c.Namespace, fields: "reportingComponent=spot-handler"}, o.event, nil, w.miss("Events about pods"))
	claims := c.Dynamic.Resource(schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"})
	w.followDynamic(claims, selection{labels: karpenter.ReplacesLabel}, o.claim, w.miss("NodeClaims"))
	if ready != nil {
		if w.settle(ctx) {
			ready()
		}
	}
	<-ctx.Done()
	w.running.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// watcher runs the watches of one observer.
type watcher struct {
	Cluster
	ctx      context.Context
	observer *Observer
	running  sync.WaitGroup

	mu      sync.Mutex
	asked   map[need]bool
	syncing []<-chan struct{}
}

// settle waits until all watches that were asked for know what there is, and so those that were
// asked for meanwhile.
func (w *watcher) settle(ctx context.Context) bool {
	for i := 0; ; i++ {
		w.mu.Lock()
		if i == len(w.syncing) {
			w.mu.Unlock()
			return true
		}
		next := w.syncing[i]
		w.mu.Unlock()
		select {
		case <-next:
		case <-ctx.Done():
			return false
		}
	}
}

// ask starts a watch that has not been asked for before.
func (w *watcher) ask(n need) {
	w.mu.Lock()
	known := w.asked[n]
	w.asked[n] = true
	w.mu.Unlock()
	if known {
		return
	}
	o := w.observer
	if n.node != "" {
		on := selection{"pods", w.Namespace, fields.OneTermEqualSelector("spec.nodeName", n.node).String(), ""}
		follow(w, w.Core, on, o.pod, nil, w.miss("pods on nodes"))
		return
	}
	missing := func(what string) func(error) { return w.miss(what + " of namespace " + n.namespace) }
	follow(w, w.Core, selection{resource: "pods", namespace: n.namespace}, o.pod, func() { o.counted(time.Now(), n.namespace) }, missing("pods"))
	follow(w, w.Policy, selection{resource: "poddisruptionbudgets", namespace: n.namespace}, o.budget, nil, missing("disruption budgets"))
	for kind, resource := range countedKinds {
		all := w.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource})
		bare := selection{namespace: n.namespace, labels: "!pod-template-hash"} // not the ReplicaSets of Deployments
		w.followDynamic(all, bare, func(at time.Time, object *unstructured.Unstructured, gone bool) {
			o.controller(at, kind, object, gone)
		}, missing(resource))
	}
}

// miss returns what notes that something is not allowed; that something is not there is no news.
func (w *watcher) miss(what string) func(error) {
	return func(err error) {
		if apierrors.IsForbidden(err) {
			w.observer.miss(what + ": " + err.Error())
		}
	}
}

// follow has changed called with every change of what is selected, and synced, if it is not nil,
// once all that there is was shown.
func follow[T any, P interface {
	*T
	runtime.Object
}](w *watcher, client rest.Interface, of selection, changed func(time.Time, P, bool), synced func(), refused func(error)) {
	lists := cache.NewFilteredListWatchFromClient(client, of.resource, of.namespace, of.narrow)
	w.run(lists, client, P(new(T)), func(at time.Time, object runtime.Object, gone bool) { changed(at, object.(P), gone) }, synced, refused)
}

func (w *watcher) followDynamic(resource dynamic.NamespaceableResourceInterface, of selection, changed func(time.Time, *unstructured.Unstructured, bool), refused func(error)) {
	w.run(rewatch.Of(resource.Namespace(of.namespace), of.narrow), w.Dynamic, &unstructured.Unstructured{}, func(at time.Time, object runtime.Object, gone bool) {
		changed(at, object.(*unstructured.Unstructured), gone)
	}, nil, refused)
}

// run runs a watch, and passes on every change singly and in order. What the API server refuses is
// passed on once, and not tried again: an informer would try forever.
func (w *watcher) run(of *cache.ListWatch, client any, empty runtime.Object, changed func(time.Time, runtime.Object, bool), synced func(), refused func(error)) {
	ctx, cancel := context.WithCancel(w.ctx)
	over := make(chan struct{}) // known, or never to be known
	end := sync.OnceFunc(func() { close(over) })
	answer := func(err error) {
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			refused(err)
			cancel()
			end()
		}
	}
	pass := func(object any, gone bool) {
		if lost, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = lost.Obj
		}
		if object, ok := object.(runtime.Object); ok {
			changed(time.Now(), object, gone)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(rewatch.Soon(of, answer, zerolog.Nop()), client),
		ObjectType:    empty,
		Transform:     lean,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { pass(object, false) },
			UpdateFunc: func(_, object any) { pass(object, false) },
			DeleteFunc: func(object any) { pass(object, true) },
		},
	})
	w.mu.Lock()
	w.syncing = append(w.syncing, over)
	w.mu.Unlock()
	w.running.Go(func() { informer.RunWithContext(ctx) })
	w.running.Go(func() {
		select {
		case <-informer.HasSyncedChecker().Done():
			if synced != nil {
				synced()
			}
			end()
		case <-ctx.Done():
			end()
		}
	})
}

// longestMessage is how much is kept of an Event's text, which the API server bounds for those of
// events.k8s.io.
const longestMessage = 1 << 10

// lean drops what nobody reads.
func lean(object any) (any, error) {
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	switch o := object.(type) {
	case *corev1.Node:
		o.Status.Images = nil
	case *corev1.Event: // which anybody can write, of any size
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion},
			InvolvedObject: o.InvolvedObject, Reason: o.Reason, Message: o.Message[:min(len(o.Message), longestMessage)], FirstTimestamp: o.FirstTimestamp, Count: o.Count,
		}, nil
	}
	return object, nil
}
