package drain

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
)

// budgetWatch watches the disruption budgets of the namespaces whose pods have to leave. They
// say how many pods can go at a time, and wake refused ones when they allow disruptions
// again. A namespace without such pods is not watched.
type budgetWatch struct {
	client rest.Interface
	wake   func(namespace string, selector labels.Selector, n int)
	known  func() // is called when a namespace's budgets are known
	notify func(node string)
	logger zerolog.Logger

	mu      sync.Mutex
	watched map[string]*namespaceBudgets // by namespace
}

// namespaceBudgets is one namespace's watch.
type namespaceBudgets struct {
	store      cache.Store
	controller cache.Controller
	stop       context.CancelFunc
	users      map[string]struct{} // nodes
}

func newBudgetWatch(opts Options, wake func(string, labels.Selector, int), known func()) *budgetWatch {
	return &budgetWatch{client: opts.Budgets, wake: wake, known: known, notify: opts.Notify, logger: opts.Logger, watched: map[string]*namespaceBudgets{}}
}

// use watches the namespace on behalf of the node, until leave. The node is notified when
// the budgets are known.
func (b *budgetWatch) use(ctx context.Context, node, namespace string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil {
		return // the node's drain has ended
	}
	w, ok := b.watched[namespace]
	if !ok {
		w = b.start(ctx, namespace)
		b.watched[namespace] = w
	}
	w.users[node] = struct{}{}
}

func (b *budgetWatch) start(ctx context.Context, namespace string) *namespaceBudgets {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	changed := func(obj any) {
		budget, ok := obj.(*policyv1.PodDisruptionBudget)
		if !ok || budget.Status.DisruptionsAllowed <= 0 {
			return
		}
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil {
			b.logger.Warn().Err(err).Str("budget", namespace+"/"+budget.Name).Msg("read disruption budget's selector")
			return
		}
		b.wake(namespace, selector, int(budget.Status.DisruptionsAllowed))
	}
	w := &namespaceBudgets{stop: cancel, users: map[string]struct{}{}}
	w.store, w.controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: rewatch.Soon(cache.NewListWatchFromClient(b.client, "poddisruptionbudgets", namespace, fields.Everything()), b.logger),
		ObjectType:    &policyv1.PodDisruptionBudget{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    changed,
			UpdateFunc: func(_, obj any) { changed(obj) },
		},
	})
	go w.controller.RunWithContext(ctx)
	go onSync(ctx, w.controller, func() {
		b.known()
		for _, node := range b.usersOf(w) {
			b.notify(node)
		}
	})
	return w
}

func (b *budgetWatch) usersOf(w *namespaceBudgets) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(w.users))
}

// list returns the known budgets of a namespace.
func (b *budgetWatch) list(namespace string) []*policyv1.PodDisruptionBudget {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, ok := b.watched[namespace]
	if !ok {
		return nil
	}
	return contents[*policyv1.PodDisruptionBudget](w.store)
}

// synced reports whether the budgets of a namespace are known.
func (b *budgetWatch) synced(namespace string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, ok := b.watched[namespace]
	return ok && w.controller.HasSynced()
}

// of returns a known budget that covers the pod, or nil.
func (b *budgetWatch) of(pod *corev1.Pod) *policyv1.PodDisruptionBudget {
	for _, budget := range b.list(pod.Namespace) {
		if covers(budget, pod.Labels) {
			return budget
		}
	}
	return nil
}

// all returns every known budget.
func (b *budgetWatch) all() []*policyv1.PodDisruptionBudget {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*policyv1.PodDisruptionBudget
	for _, w := range b.watched {
		list = append(list, contents[*policyv1.PodDisruptionBudget](w.store)...)
	}
	return list
}

// covers reports whether the budget counts pods with the labels. Every pod is compared with every
// budget of its namespace, so only the rare selector with expressions is compiled.
func covers(budget *policyv1.PodDisruptionBudget, pod labels.Set) bool {
	of := budget.Spec.Selector
	if of == nil {
		return false
	}
	for key, value := range of.MatchLabels {
		if has, ok := pod[key]; !ok || has != value {
			return false
		}
	}
	if len(of.MatchExpressions) == 0 {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	return err == nil && selector.Matches(pod)
}

// leave ends the watches that only this node has used.
func (b *budgetWatch) leave(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for namespace, w := range b.watched {
		delete(w.users, node)
		if len(w.users) == 0 {
			w.stop()
			delete(b.watched, namespace)
		}
	}
}
