// Package rewatch keeps what the API server has of one kind of object, and goes on soon after the API
// server was away.
//
// client-go's reflector lists, watches and resumes. By itself it waits twice as long each time, up to
// a minute (cache.Reflector): after an outage of half a minute, that would use up the rest of two
// minutes. It writes to a Watch directly, as thousands can run at a time: an informer puts a queue and
// two more goroutines in between, a third of what a watch costs.
package rewatch

import (
	"context"
	"errors"
	"fmt"
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

// Pages lists in pages of o.Limit, and calls use with one after the other.
func Pages[L metav1.ListInterface](
	ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), o metav1.ListOptions, use func(L),
) error {
	for {
		page, err := list(ctx, o)
		if err != nil {
			return err
		}
		use(page)
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// Options say what is watched: objects that arrive as an R, and of each of which a T is kept.
type Options[R runtime.Object, T metav1.Object] struct {
	// Source lists and watches. It is listed first if it says so, as client-go asks it.
	Source cache.ListerWatcher
	// Keep is what is kept of an object; it is called like Changed. If T is R, it can be given what it
	// has returned.
	Keep func(R) T
	// Admit is whether an object that is not known yet is kept; it is called like Changed, with what
	// Keep returned. nil: all are. It is asked again whenever the object changes.
	Admit func(T) bool
	// Indexes are the values by which By finds what is kept.
	Indexes map[string]func(T) []string

	// Changed is called after every change, one at a time: before is zero if the object is new, after
	// if it has gone. The first list is a change of each of its objects.
	Changed func(before, after T)
	// Synced is called once, when all objects are known; nil: nobody waits for that.
	Synced func()
	// Refused is called each time the API server forbids to read, or has no such kind; nil: nobody
	// asks. It is tried again all the same.
	Refused func(error)

	Logger zerolog.Logger
}

// Watch is what is known of the objects, by their keys: NAMESPACE/NAME, or the name alone. It is safe
// for concurrent use. What it returns is shared and must not be changed.
type Watch[T metav1.Object] struct {
	reflector *cache.Reflector
	objects   cache.Indexer
	keep      func(any) (T, bool)
	admit     func(T) bool
	changed   func(before, after T)
	synced    func()
	known     chan struct{}
}

var _ cache.TransformingStore = (*Watch[*metav1.ObjectMeta])(nil)

// New returns a Watch that knows nothing until it runs.
func New[R runtime.Object, T metav1.Object](o Options[R, T]) *Watch[T] {
	indexers := cache.Indexers{}
	for name, values := range o.Indexes {
		indexers[name] = func(obj any) ([]string, error) { return values(obj.(T)), nil }
	}
	w := &Watch[T]{
		objects: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers), admit: o.Admit, changed: o.Changed, synced: o.Synced, known: make(chan struct{}),
		keep: func(obj any) (kept T, ok bool) {
			if whole, ok := obj.(R); ok {
				return o.Keep(whole), true
			}
			kept, ok = obj.(T) // of a list that was streamed, see Transformer
			return kept, ok
		},
	}
	answered := func(err error) {
		if o.Refused != nil && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) {
			o.Refused(err)
		}
	}
	source := cache.ToListWatcherWithWatchListSemantics(soon(cache.ToListerWatcherWithContext(o.Source), answered, o.Logger), o.Source)
	w.reflector = cache.NewReflectorWithOptions(source, nil, w, cache.ReflectorOptions{TypeDescription: fmt.Sprintf("%T", *new(R))})
	return w
}

// Run watches until ctx ends.
func (w *Watch[T]) Run(ctx context.Context) { w.reflector.RunWithContext(ctx) }

// Known is closed when all objects are known.
func (w *Watch[T]) Known() <-chan struct{} { return w.known }

// HasSynced reports whether all objects are known.
func (w *Watch[T]) HasSynced() bool {
	select {
	case <-w.known:
		return true
	default:
		return false
	}
}

// Get returns the object of that key.
func (w *Watch[T]) Get(key string) (of T, ok bool) {
	obj, _, _ := w.objects.GetByKey(key) // its error is always nil
	of, ok = obj.(T)
	return of, ok
}

// All returns all objects.
func (w *Watch[T]) All() []T { return typed[T](w.objects.List()) }

// By returns the objects that have the value in one of the Indexes.
func (w *Watch[T]) By(index, value string) []T {
	found, _ := w.objects.ByIndex(index, value) // it fails only if there is no such index
	return typed[T](found)
}

// Values are those of one of the Indexes.
func (w *Watch[T]) Values(index string) []string { return w.objects.ListIndexFuncValues(index) }

func typed[T any](objects []any) []T {
	list := make([]T, 0, len(objects))
	for _, obj := range objects {
		if of, ok := obj.(T); ok {
			list = append(list, of)
		}
	}
	return list
}

// Add and the other exported methods are for the reflector.
func (w *Watch[T]) Add(obj any) error { return w.Update(obj) }

func (w *Watch[T]) Update(obj any) error {
	after, ok := w.keep(obj)
	if !ok {
		return nil
	}
	before, known := w.Get(keyOf(after))
	if !known && w.admit != nil && !w.admit(after) {
		return nil
	}
	defer w.changed(before, after)
	return w.objects.Update(after)
}

func (w *Watch[T]) Delete(obj any) error {
	of, ok := obj.(metav1.Object)
	if !ok {
		return nil
	}
	before, ok := w.Get(keyOf(of))
	if !ok {
		return nil
	}
	defer w.changed(before, *new(T))
	return w.objects.Delete(before)
}

// Replace takes in a whole list: the first one, and one after every gap in the watch.
func (w *Watch[T]) Replace(objects []any, _ string) error {
	gone := map[string]T{}
	for _, of := range w.All() {
		gone[keyOf(of)] = of
	}
	var errs []error
	for _, obj := range objects {
		if of, ok := obj.(metav1.Object); ok {
			delete(gone, keyOf(of))
			errs = append(errs, w.Update(obj))
		}
	}
	for _, of := range gone {
		errs = append(errs, w.Delete(of))
	}
	if !w.HasSynced() {
		close(w.known)
		if w.synced != nil {
			w.synced()
		}
	}
	return errors.Join(errs...)
}

func (w *Watch[T]) Resync() error { return nil }

// Transformer has no more kept of a list that is streamed, until it is complete.
func (w *Watch[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if of, ok := w.keep(obj); ok {
			return of, nil
		}
		return obj, nil
	}
}

func keyOf(of metav1.Object) string { return cache.MetaObjectToName(of).String() }

// soon repeats requests that have no answer, after Longest at the most, and says so once if that
// takes long. What the API server does answer goes to the reflector, and to answered.
func soon(of cache.ListerWatcherWithContext, answered func(error), logger zerolog.Logger) *cache.ListWatch {
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
		return false // the reflector knows what to do
	}
	return status.Status().Code >= http.StatusInternalServerError || apierrors.IsTooManyRequests(err)
}
