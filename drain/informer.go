package drain

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// dynamicWatch lists and watches with the dynamic client what pick selects. The generated
// informers would bring the types of whole API groups with them. Where the API server
// forbids it refused is told: an informer would only try again, for ever, and what waits
// for it would wait as long.
func dynamicWatch(client dynamic.Interface, of dynamic.ResourceInterface, pick func(*metav1.ListOptions), refused func(error), logger zerolog.Logger) cache.ListerWatcher {
	tell := func(err error) {
		if apierrors.IsForbidden(err) {
			refused(err)
		}
	}
	return cache.ToListWatcherWithWatchListSemantics(patient(&cache.ListWatch{
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

// How long a request of an informer waits to be made again while the API server is away.
// Left to itself an informer waits twice as long each time, up to a minute: after an outage
// of half a minute that would be all that is left of two.
const (
	firstPatience   = 250 * time.Millisecond
	longestPatience = 2 * time.Second
)

// patient makes the requests again that have no answer, and says so once when that takes
// long.
func patient(of *cache.ListWatch, logger zerolog.Logger) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return patiently(ctx, logger, func() (runtime.Object, error) { return of.ListWithContext(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return patiently(ctx, logger, func() (watch.Interface, error) { return of.WatchWithContext(ctx, o) })
		},
	}
}

func patiently[T any](ctx context.Context, logger zerolog.Logger, ask func() (T, error)) (T, error) {
	for wait, told := firstPatience, false; ; wait = min(2*wait, longestPatience) {
		answer, err := ask()
		if err == nil || !away(err) {
			return answer, err
		}
		if wait == longestPatience && !told {
			told = true
			logger.Warn().Err(err).Msg("read what drains rest on; tried again")
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
	}
}

// away: there was no answer, or none that says anything about the request.
func away(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	if _, ok := cause(status.Status(), metav1.CauseTypeResourceVersionTooLarge); ok {
		return false // the informer knows what to do
	}
	return status.Status().Code >= http.StatusInternalServerError || apierrors.IsTooManyRequests(err)
}
