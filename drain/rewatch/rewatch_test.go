package rewatch

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// What the API server means with its error is the informer's to know.
func TestAway(t *testing.T) {
	for code, want := range map[int32]bool{500: true, 503: true, 429: true, 410: false, 422: false, 403: false} {
		if got := away(&apierrors.StatusError{ErrStatus: metav1.Status{Code: code}}); got != want {
			t.Errorf("%d: away %v, want %v", code, got, want)
		}
	}
	tooLarge := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGatewayTimeout, Details: &metav1.StatusDetails{
		Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}},
	}}}
	if away(tooLarge) {
		t.Error("a resource version that is too large counts as no answer")
	}
}

// An informer knows what has changed within seconds of the end of an outage.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage = 40 * time.Second
		back := time.Now().Add(outage)
		refused := func() error {
			if time.Now().Before(back) {
				return errors.New("connection refused")
			}
			return nil
		}
		stream := watch.NewFake()
		defer stream.Stop()
		lw := unstreamed{Soon(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				return &corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}, refused()
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return stream, refused() },
		}, nil, zerolog.Nop())}
		store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw.ListWatch, lw), ObjectType: &corev1.Node{}, Handler: cache.ResourceEventHandlerFuncs{},
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go informer.RunWithContext(ctx)
		time.Sleep(outage + Longest)
		synctest.Wait()
		if n := len(store.ListKeys()); n != 1 {
			t.Errorf("%d nodes are known %s after the outage, want 1", n, Longest)
		}
	})
}

// unstreamed tells client-go to list first.
type unstreamed struct{ *cache.ListWatch }

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }
