// Package rewatch lets informers go on soon after the API server was away.
//
// By itself an informer waits twice as long each time, up to a minute (client-go's
// cache.Reflector): after an outage of half a minute, that would use up the rest of two
// minutes.
package rewatch

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
	"k8s.io/client-go/tools/cache"
)

// How long a request waits before it is repeated.
const (
	first   = 250 * time.Millisecond
	Longest = 2 * time.Second
)

// Client reads one kind of object; its lists are of the type L.
type Client[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

// Of lists and watches with a client what pick selects.
func Of[L runtime.Object](client Client[L], pick func(*metav1.ListOptions)) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			pick(&o)
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			pick(&o)
			return client.Watch(ctx, o)
		},
	}
}

// Soon repeats an informer's requests that have no answer, after Longest at the most, and
// says so once if that takes long. What the API server does answer goes to the informer, and to
// answered, if that is not nil. It is as safe for concurrent use as what it is given.
func Soon(of *cache.ListWatch, answered func(error), logger zerolog.Logger) *cache.ListWatch {
	if answered == nil {
		answered = func(error) {}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := ask(ctx, logger, func() (runtime.Object, error) { return of.ListWithContext(ctx, o) })
			answered(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := ask(ctx, logger, func() (watch.Interface, error) { return of.WatchWithContext(ctx, o) })
			answered(err)
			return stream, err
		},
	}
}

func ask[T any](ctx context.Context, logger zerolog.Logger, request func() (T, error)) (T, error) {
	for wait, logged := first, false; ; wait = min(2*wait, Longest) {
		answer, err := request()
		if err == nil || !away(err) {
			return answer, err
		}
		if wait == Longest && !logged {
			logged = true
			logger.Warn().Err(err).Msg("watch the cluster; will try again")
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(wait/2 + rand.N(wait/2)):
		}
	}
}

// away reports whether there was no answer, or none that says anything about the request.
func away(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return false // the informer knows what to do
	}
	return status.Status().Code >= http.StatusInternalServerError || apierrors.IsTooManyRequests(err)
}
