package observe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
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

// need is something that an observer asks to be told of.
type need struct {
	podsOn    string // of a node
	podsOf    podSelector
	workload  workloadRef
	budgetsOf string // of a namespace
}

// podSelector selects pods of a namespace.
type podSelector struct{ namespace, labels string }

var (
	claimResource = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}
	workloadKinds = map[string]string{"Deployment": "deployments", "StatefulSet": "statefulsets", "ReplicaSet": "replicasets"}
)

// Watch tells the observer all that it needs, until ctx ends, which is no error. ready, if it is
// not nil, is called when the Nodes are known, and what there is of the wanted ones.
func (c Cluster) Watch(ctx context.Context, o *Observer, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watcher{Cluster: c, ctx: ctx, observer: o, asked: map[need]bool{}}
	o.need = w.ask
	o.begin()
	w.run("nodes", c.Core, metav1.NamespaceNone, nil, &corev1.Node{}, func(at time.Time, object runtime.Object, gone bool) {
		o.node(at, object.(*corev1.Node), gone)
	}, nil, func(err error) { cancel(fmt.Errorf("watch nodes: %w", err)) })
	w.run("events", c.Core, c.Namespace, func(l *metav1.ListOptions) { l.FieldSelector = "reportingComponent=spot-handler" }, &corev1.Event{},
		func(at time.Time, object runtime.Object, _ bool) { o.event(at, object.(*corev1.Event)) }, nil, w.miss("Events about pods"))
	w.runDynamic(claimResource, metav1.NamespaceNone, func(l *metav1.ListOptions) { l.LabelSelector = karpenter.ReplacesLabel },
		func(at time.Time, claim *unstructured.Unstructured, _ bool) {
			if hasInstance(claim) {
				o.launched(at, claim.GetName())
			}
		}, w.miss("NodeClaims"))
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
	pods := func(byLabels bool) func(time.Time, runtime.Object, bool) {
		return func(at time.Time, object runtime.Object, gone bool) { o.pod(at, object.(*corev1.Pod), gone, byLabels) }
	}
	switch {
	case n.podsOn != "":
		w.run("pods", w.Core, w.Namespace, func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.podsOn).String()
		}, &corev1.Pod{}, pods(false), nil, w.miss("pods on nodes"))
	case n.podsOf != podSelector{}:
		w.run("pods", w.Core, n.podsOf.namespace, func(l *metav1.ListOptions) { l.LabelSelector = n.podsOf.labels }, &corev1.Pod{}, pods(true),
			func() { o.counted(time.Now(), n.podsOf) }, w.miss("pods of namespace "+n.podsOf.namespace))
	case n.budgetsOf != "":
		w.run("poddisruptionbudgets", w.Policy, n.budgetsOf, nil, &policyv1.PodDisruptionBudget{}, func(at time.Time, object runtime.Object, gone bool) {
			o.budget(at, object.(*policyv1.PodDisruptionBudget), gone)
		}, nil, w.miss("disruption budgets of namespace "+n.budgetsOf))
	default:
		gvr := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: workloadKinds[n.workload.Kind]}
		w.runDynamic(gvr, n.workload.Namespace, func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector("metadata.name", n.workload.Name).String()
		}, func(at time.Time, object *unstructured.Unstructured, gone bool) {
			if selector, desired, ok := asks(object); ok {
				if gone {
					desired = 0
				}
				o.workload(at, n.workload, selector, desired)
			}
		}, w.miss(gvr.Resource+" of namespace "+n.workload.Namespace))
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

func (w *watcher) run(resource string, client rest.Interface, namespace string, pick func(*metav1.ListOptions), empty runtime.Object, changed func(time.Time, runtime.Object, bool), synced func(), refused func(error)) {
	if pick == nil {
		pick = func(*metav1.ListOptions) {}
	}
	lw := cache.NewFilteredListWatchFromClient(client, resource, namespace, pick)
	w.follow(lw, client, empty, changed, synced, refused)
}

func (w *watcher) runDynamic(resource schema.GroupVersionResource, namespace string, pick func(*metav1.ListOptions), changed func(time.Time, *unstructured.Unstructured, bool), refused func(error)) {
	of := w.Dynamic.Resource(resource).Namespace(namespace)
	w.follow(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) {
			pick(&l)
			return of.List(ctx, l)
		},
		WatchFuncWithContext: func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) {
			pick(&l)
			return of.Watch(ctx, l)
		},
	}, w.Dynamic, &unstructured.Unstructured{}, func(at time.Time, object runtime.Object, gone bool) {
		changed(at, object.(*unstructured.Unstructured), gone)
	}, nil, refused)
}

// follow runs a watch, and tells of every change singly and in order. What the API server refuses
// is told of once, and not tried again: an informer would try forever.
func (w *watcher) follow(of *cache.ListWatch, client any, empty runtime.Object, changed func(time.Time, runtime.Object, bool), synced func(), refused func(error)) {
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
	tell := func(object any, gone bool) {
		if lost, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = lost.Obj
		}
		if object, ok := object.(runtime.Object); ok {
			changed(time.Now(), object, gone)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(rewatch.Soon(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, l metav1.ListOptions) (runtime.Object, error) {
				list, err := of.ListWithContext(ctx, l)
				answer(err)
				return list, err
			},
			WatchFuncWithContext: func(ctx context.Context, l metav1.ListOptions) (watch.Interface, error) {
				stream, err := of.WatchWithContext(ctx, l)
				answer(err)
				return stream, err
			},
		}, zerolog.Nop()), client),
		ObjectType: empty,
		Transform:  lean,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { tell(object, false) },
			UpdateFunc: func(_, object any) { tell(object, false) },
			DeleteFunc: func(object any) { tell(object, true) },
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

// lean drops what nobody looks at.
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

// asks is what a workload selects, and how many pods it asks for.
func asks(object *unstructured.Unstructured) (selector labels.Selector, desired int, ok bool) {
	var w struct {
		Spec struct {
			Replicas *int                  `json:"replicas"`
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &w); err != nil {
		return nil, 0, false
	}
	selector, err := metav1.LabelSelectorAsSelector(w.Spec.Selector)
	if desired = 1; w.Spec.Replicas != nil {
		desired = *w.Spec.Replicas
	}
	return selector, desired, err == nil
}

// hasInstance reports whether Karpenter has launched what was claimed.
func hasInstance(claim *unstructured.Unstructured) bool {
	id, _, _ := unstructured.NestedString(claim.Object, "status", "providerID")
	return id != ""
}
