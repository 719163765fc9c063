package observe

import (
	"cmp"
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

	"spot-handler/cmd/spot-handler/internal/cluster"
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

// Watch shows the observer all that it needs, until ctx ends, which is no error. ready is called when
// the Nodes are known, and what there is of the wanted ones.
func (c Cluster) Watch(ctx context.Context, o *Observer, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watcher{Cluster: c, ctx: ctx, observer: o, asked: map[need]bool{}}
	o.need = w.ask
	o.begin()
	noNodes := func(err error) { cancel(fmt.Errorf("watch nodes: %w", err)) }
	follow(w, cache.NewListWatchFromClient(c.Core, "nodes", "", fields.Everything()), o.node, nil, noNodes)
	ours := fields.OneTermEqualSelector("reportingComponent", "spot-handler")
	follow(w, cache.NewListWatchFromClient(c.Core, "events", c.Namespace, ours), o.event, nil, w.miss("Events about pods"))
	follow(w, c.labelled(cluster.Resource("karpenter.sh", "nodeclaims"), "", karpenter.ReplacesLabel), o.claim, nil, w.miss("NodeClaims"))
	if w.waitSynced(ctx) {
		ready()
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

// waitSynced waits until all watches that were asked for know what there is, and so those that were
// asked for meanwhile.
func (w *watcher) waitSynced(ctx context.Context) bool {
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
		on := fields.OneTermEqualSelector("spec.nodeName", n.node)
		follow(w, cache.NewListWatchFromClient(w.Core, "pods", w.Namespace, on), o.pod, nil, w.miss("pods on nodes"))
		return
	}
	missing := func(what string) func(error) { return w.miss(what + " of namespace " + n.namespace) }
	all := fields.Everything()
	pods := cache.NewListWatchFromClient(w.Core, "pods", n.namespace, all)
	follow(w, pods, o.pod, func() { o.counted(time.Now(), n.namespace) }, missing("pods"))
	budgets := cache.NewListWatchFromClient(w.Policy, "poddisruptionbudgets", n.namespace, all)
	follow(w, budgets, o.budget, nil, missing("PDBs"))
	for _, kind := range countedKinds {
		bare := w.labelled(cluster.Resource("apps", kind+"s"), n.namespace, "!pod-template-hash") // not the ReplicaSets of Deployments
		changed := func(at time.Time, object *unstructured.Unstructured, gone bool) { o.controller(at, kind, object, gone) }
		follow(w, bare, changed, nil, missing(kind+"s"))
	}
}

// labelled lists and watches what has the label, or has it not.
func (c Cluster) labelled(of schema.GroupVersionResource, namespace, label string) *cache.ListWatch {
	return rewatch.Of(c.Dynamic.Resource(of).Namespace(namespace), func(l *metav1.ListOptions) { l.LabelSelector = label })
}

// miss returns what notes that something is not allowed; that something is not there is no news.
func (w *watcher) miss(what string) func(error) {
	return func(err error) {
		if apierrors.IsForbidden(err) {
			w.observer.miss(what + ": " + err.Error())
		}
	}
}

// follow runs a watch, and has changed called with every change, singly and in order; and synced, if
// it is not nil, once all that there is was shown. What the API server refuses is passed on once, and
// not tried again.
func follow[T interface {
	comparable
	runtime.Object
	metav1.Object
}](w *watcher, of *cache.ListWatch, changed func(at time.Time, object T, gone bool), synced func(), refused func(error)) {
	ctx, cancel := context.WithCancel(w.ctx)
	watch := rewatch.New(rewatch.Options[T, T]{
		Source: of, Keep: lean[T],
		Changed: func(before, after T) { changed(time.Now(), cmp.Or(after, before), after == *new(T)) },
		Refused: func(err error) {
			refused(err)
			cancel()
		},
		Logger: zerolog.Nop(),
	})
	over := make(chan struct{}) // known, or never to be known
	w.mu.Lock()
	w.syncing = append(w.syncing, over)
	w.mu.Unlock()
	w.running.Go(func() { watch.Run(ctx) })
	w.running.Go(func() {
		defer close(over)
		select {
		case <-watch.Known():
			if synced != nil {
				synced()
			}
		case <-ctx.Done():
		}
	})
}

// lean bounds Events, which the clients' transport does not.
func lean[T runtime.Object](object T) T {
	if e, ok := any(object).(*corev1.Event); ok {
		return any(cluster.Event(e)).(T)
	}
	return object
}
