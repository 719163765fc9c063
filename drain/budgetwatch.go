package drain

import (
	"context"

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
	sharedWatch[string, *informer] // by namespace
	client                         rest.Interface
	wake                           func(namespace string, selector labels.Selector, n int)
	known                          func() // is called when a namespace's budgets are known
	logger                         zerolog.Logger
}

func newBudgetWatch(opts Options, wake func(string, labels.Selector, int), known func()) *budgetWatch {
	b := &budgetWatch{client: opts.Budgets, wake: wake, known: known, logger: opts.Logger}
	b.sharedWatch = newSharedWatch(opts.Notify, b.watch)
	return b
}

// watch watches a namespace. The nodes that use it are notified when its budgets are known.
func (b *budgetWatch) watch(ctx context.Context, namespace string) *informer {
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
	synced := func() {
		b.known()
		b.notifyUsers(namespace)
	}
	return startInformer(ctx, synced, cache.InformerOptions{
		ListerWatcher: rewatch.Soon(cache.NewListWatchFromClient(b.client, "poddisruptionbudgets", namespace, fields.Everything()), b.logger),
		ObjectType:    &policyv1.PodDisruptionBudget{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    changed,
			UpdateFunc: func(_, obj any) { changed(obj) },
		},
	})
}

// list returns the known budgets of a namespace.
func (b *budgetWatch) list(namespace string) []*policyv1.PodDisruptionBudget {
	w := b.get(namespace)
	if w == nil {
		return nil
	}
	return contents[*policyv1.PodDisruptionBudget](w)
}

// synced reports whether the budgets of a namespace are known.
func (b *budgetWatch) synced(namespace string) bool {
	w := b.get(namespace)
	return w != nil && w.HasSynced()
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
