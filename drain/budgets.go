package drain

import (
	"context"
	"sync"

	"github.com/rs/zerolog"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// budgets watches the disruption budgets of the namespaces in which one has
// refused, and wakes the pods that wait for it when it allows disruptions again. A
// cluster without refusals is not watched at all.
type budgets struct {
	client rest.Interface
	wake   func(namespace string, selector labels.Selector, n int)
	logger zerolog.Logger

	mu      sync.Mutex
	watched map[string]watched
}

// watched is one namespace's watch.
type watched struct {
	store cache.Store
	stop  context.CancelFunc
}

func newBudgets(client rest.Interface, wake func(string, labels.Selector, int), logger zerolog.Logger) *budgets {
	return &budgets{client: client, wake: wake, logger: logger, watched: map[string]watched{}}
}

// watch starts the namespace's watch, once. It lives until forget, and not only as
// long as the node that asked for it: others may share the budget.
func (b *budgets) watch(ctx context.Context, namespace string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.watched[namespace]; ok {
		return
	}
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
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(b.client, "poddisruptionbudgets", namespace, fields.Everything()),
		ObjectType:    &policyv1.PodDisruptionBudget{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    changed,
			UpdateFunc: func(_, obj any) { changed(obj) },
		},
	})
	b.watched[namespace] = watched{store: store, stop: cancel}
	go controller.RunWithContext(ctx)
}

// list returns the budgets of a namespace as far as they are watched.
func (b *budgets) list(namespace string) []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	if w, ok := b.watched[namespace]; ok {
		return w.store.List()
	}
	return nil
}

// forget ends all watches.
func (b *budgets) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for namespace, w := range b.watched {
		w.stop()
		delete(b.watched, namespace)
	}
}
