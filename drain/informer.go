package drain

import (
	"context"

	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
)

// dynamicWatch lists and watches what pick selects, with the dynamic client: the generated
// informers would bring the types of whole API groups with them. If the API server forbids
// it, refused is called: an informer would only try again, forever, and whatever waits for it
// would wait as long.
func dynamicWatch(client dynamic.Interface, of dynamic.ResourceInterface, pick func(*metav1.ListOptions), refused func(error), logger zerolog.Logger) cache.ListerWatcher {
	tell := func(err error) {
		if apierrors.IsForbidden(err) {
			refused(err)
		}
	}
	return cache.ToListWatcherWithWatchListSemantics(rewatch.Soon(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			pick(&o)
			list, err := of.List(ctx, o)
			tell(err)
			if err != nil {
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			pick(&o)
			w, err := of.Watch(ctx, o)
			tell(err)
			return w, err
		},
	}, logger), client)
}

// onSync calls then once the informer knows everything, unless ctx ends first.
func onSync(ctx context.Context, informer cache.Controller, then func()) {
	select {
	case <-informer.HasSyncedChecker().Done():
		then()
	case <-ctx.Done():
	}
}

// contents is what a store holds.
func contents[T any](store cache.Store) []T {
	var list []T
	for _, obj := range store.List() {
		if object, ok := obj.(T); ok {
			list = append(list, object)
		}
	}
	return list
}
