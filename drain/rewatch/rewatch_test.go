package rewatch

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// TestMain turns off client-go's pause between errors: it counts from process start, which in a synctest bubble is
// decades ahead.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	os.Exit(m.Run())
}

// What the API server means with its error is the reflector's to know.
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

// It is known what has changed within seconds of the end of an outage.
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
		w := New(Options[*corev1.Node, *corev1.Node]{
			Source: unstreamed{&cache.ListWatch{
				ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
					return &corev1.NodeList{Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}, refused()
				},
				WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return stream, refused() },
			}},
			Keep:    whole[*corev1.Node],
			Changed: func(_, _ *corev1.Node) {},
			Logger:  zerolog.Nop(),
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go w.Run(ctx)
		time.Sleep(outage + Longest)
		synctest.Wait()
		if n := len(w.All()); n != 1 {
			t.Errorf("%d nodes are known %s after the outage, want 1", n, Longest)
		}
	})
}

// unstreamed tells client-go to list first.
type unstreamed struct{ *cache.ListWatch }

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

// Where the API server streams the first list, nothing is listed, and no more is kept than of a list.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := watch.NewFake()
		defer stream.Stop()
		var seen []string
		w := New(Options[*corev1.Node, *metav1.PartialObjectMetadata]{
			Source: &cache.ListWatch{
				ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
					t.Error("listed")
					return &corev1.NodeList{}, nil
				},
				WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
					if o.SendInitialEvents == nil || !*o.SendInitialEvents {
						t.Errorf("asked for %+v, want a stream", o)
					}
					return stream, nil
				},
			},
			Keep: func(node *corev1.Node) *metav1.PartialObjectMetadata {
				return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion}}
			},
			Changed: func(before, after *metav1.PartialObjectMetadata) {
				switch {
				case before == nil:
					seen = append(seen, "new "+after.Name)
				case after == nil:
					seen = append(seen, "gone "+before.Name)
				default:
					seen = append(seen, after.Name+" from "+before.ResourceVersion+" to "+after.ResourceVersion)
				}
			},
			Synced: func() { seen = append(seen, "synced") },
			Logger: zerolog.Nop(),
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go w.Run(ctx)
		node := func(name, version string) *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
		}
		stream.Add(node("a", "1"))
		synctest.Wait()
		if len(seen) != 0 || w.HasSynced() {
			t.Errorf("before all have come: %q, synced %t", seen, w.HasSynced())
		}
		end := node("", "2")
		end.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		stream.Action(watch.Bookmark, end)
		stream.Modify(node("a", "3"))
		stream.Add(node("b", "4"))
		stream.Delete(node("a", "5"))
		synctest.Wait()
		if want := []string{"new a", "synced", "a from 1 to 3", "new b", "gone a"}; !slices.Equal(seen, want) || !w.HasSynced() {
			t.Errorf("seen %q, synced %t; want %q", seen, w.HasSynced(), want)
		}
	})
}

// whole is a Keep that keeps all.
func whole[T any](of T) T { return of }

// Whoever watches is notified of every change once, also of those that a gap in the watch has hidden.
func TestChanges(t *testing.T) {
	var seen []string
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Status: corev1.PodStatus{Phase: phase}}
	}
	w := New(Options[*corev1.Pod, *metav1.PartialObjectMetadata]{
		Source: &cache.ListWatch{},
		Keep: func(pod *corev1.Pod) *metav1.PartialObjectMetadata {
			kept := &metav1.PartialObjectMetadata{ObjectMeta: pod.ObjectMeta}
			kept.Labels = map[string]string{"phase": string(pod.Status.Phase)}
			return kept
		},
		Indexes: map[string]func(*metav1.PartialObjectMetadata) []string{"phase": func(of *metav1.PartialObjectMetadata) []string {
			return []string{of.Labels["phase"]}
		}},
		Changed: func(before, after *metav1.PartialObjectMetadata) {
			switch {
			case before == nil:
				seen = append(seen, "new "+after.Name)
			case after == nil:
				seen = append(seen, "gone "+before.Name)
			default:
				seen = append(seen, "changed "+after.Name+" to "+after.Labels["phase"])
			}
		},
		Synced: func() { seen = append(seen, "synced") },
	})
	// streamed is what a list is that has come as a stream.
	streamed := func(pods ...*corev1.Pod) []any {
		list := []any{}
		for _, pod := range pods {
			kept, err := w.Transformer()(pod)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, kept)
		}
		return list
	}
	const running, failed = corev1.PodRunning, corev1.PodFailed
	steps := []struct {
		name string
		do   func() error
		want []string
		have []string
	}{
		{"the first list", func() error { return w.Replace([]any{pod("a", running), pod("b", running)}, "1") }, []string{"new a", "new b", "synced"}, []string{"a", "b"}},
		{"a new pod", func() error { return w.Add(pod("c", running)) }, []string{"new c"}, []string{"a", "b", "c"}},
		{"a change", func() error { return w.Update(pod("a", failed)) }, []string{"changed a to Failed"}, []string{"a", "b", "c"}},
		{"an end", func() error { return w.Delete(pod("c", running)) }, []string{"gone c"}, []string{"a", "b"}},
		{"the same end", func() error { return w.Delete(pod("c", running)) }, nil, []string{"a", "b"}},
		{"a gap", func() error { return w.Replace([]any{pod("a", failed), pod("d", running)}, "9") }, []string{"changed a to Failed", "gone b", "new d"}, []string{"a", "d"}},
		{"another, as a stream", func() error { return w.Replace(streamed(pod("a", failed), pod("e", running)), "10") },
			[]string{"changed a to Failed", "gone d", "new e"}, []string{"a", "e"}},
	}
	for _, s := range steps {
		seen = nil
		if w.HasSynced() != (s.name != "the first list") {
			t.Errorf("before %s: synced %t", s.name, w.HasSynced())
		}
		if err := s.do(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(seen)
		if diff := cmp.Diff(s.want, seen); diff != "" {
			t.Errorf("%s (-want +seen):\n%s", s.name, diff)
		}
		var have []string
		for _, p := range w.All() {
			have = append(have, p.Name)
		}
		slices.Sort(have)
		if diff := cmp.Diff(s.have, have); diff != "" {
			t.Errorf("after %s (-want +have):\n%s", s.name, diff)
		}
	}
	if a, ok := w.Get("shop/a"); !ok || a.Labels["phase"] != "Failed" {
		t.Errorf("a is %v, %t", a, ok)
	}
	if of := w.By("phase", "Failed"); len(of) != 1 || of[0].Name != "a" {
		t.Errorf("failed are %v, want a", of)
	}
}

// In an outage each request waits twice as long as the one before it, up to 2 s, and at random up to
// half less: neither do all of them come at once, nor one after the other without a pause.
func TestPausesInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []time.Time
		var log bytes.Buffer
		list := soon(&cache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				if asked = append(asked, time.Now()); len(asked) <= 50 {
					return nil, errors.New("connection refused")
				}
				return &corev1.NodeList{}, nil
			},
		}, func(err error) {
			if err != nil {
				t.Errorf("answered: %v", err)
			}
		}, zerolog.New(&log))
		if got, err := list.ListWithContext(t.Context(), metav1.ListOptions{}); got == nil || err != nil {
			t.Fatalf("%v, %v", got, err)
		}
		wait := 250 * time.Millisecond
		for i := 1; i < len(asked); i++ {
			if pause := asked[i].Sub(asked[i-1]); pause < wait/2 || pause > wait {
				t.Errorf("pause %d: %s, want %s to %s", i, pause, wait/2, wait)
			}
			wait = min(2*wait, 2*time.Second)
		}
		if n := strings.Count(log.String(), "will try again"); n != 1 {
			t.Errorf("said %d times", n)
		}
	})
}

// A request that nobody waits for any more isn't repeated.
func TestOutageThatIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, n := errors.New("connection refused"), 0
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		_, err := ask(ctx, zerolog.Nop(), func() (int, error) { n++; return 0, refused })
		if took := time.Since(began); !errors.Is(err, refused) || took != 10*time.Second || n > 25 {
			t.Errorf("%v after %s and %d requests", err, took, n)
		}
	})
}

// asked is a client that notes what it was asked for.
type asked struct{ list, watch metav1.ListOptions }

func (a *asked) List(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	a.list = o
	return &corev1.PodList{}, nil
}

func (a *asked) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	a.watch = o
	return watch.NewEmptyWatch(), nil
}

// What is picked holds for the list and for the watch.
func TestOf(t *testing.T) {
	client := &asked{}
	source := Of(client, func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName=a" })
	if _, err := source.ListWithContext(t.Context(), metav1.ListOptions{Limit: 7}); err != nil {
		t.Fatal(err)
	}
	if _, err := source.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "9"}); err != nil {
		t.Fatal(err)
	}
	if client.list.FieldSelector != "spec.nodeName=a" || client.list.Limit != 7 {
		t.Errorf("listed %+v", client.list)
	}
	if client.watch.FieldSelector != "spec.nodeName=a" || client.watch.ResourceVersion != "9" {
		t.Errorf("watched %+v", client.watch)
	}
}

// Pages are listed until there is no more, each with what the one before it says, and an error ends that.
func TestPages(t *testing.T) {
	var got []string
	broken := errors.New("API server is down")
	list := func(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
		if o.Continue == "c" {
			return nil, broken
		}
		next := map[string]string{"": "a", "a": "b", "b": ""}[o.Continue]
		return &corev1.PodList{ListMeta: metav1.ListMeta{Continue: next, ResourceVersion: "page after " + o.Continue}}, nil
	}
	use := func(l *corev1.PodList) { got = append(got, l.ResourceVersion) }
	if err := Pages(t.Context(), list, metav1.ListOptions{}, use); err != nil {
		t.Fatal(err)
	}
	if want := []string{"page after ", "page after a", "page after b"}; !slices.Equal(got, want) {
		t.Errorf("pages %q, want %q", got, want)
	}
	if err := Pages(t.Context(), list, metav1.ListOptions{Continue: "c"}, use); !errors.Is(err, broken) {
		t.Errorf("error %v, want the list's", err)
	}
}

// Whoever wants to know is told that the API server allows nothing or knows no such resource; other answers are the
// watch's own affair.
func TestRefused(t *testing.T) {
	of := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: reason}}
	}
	for name, tt := range map[string]struct {
		answer error
		want   bool
	}{
		"forbidden": {of(403, metav1.StatusReasonForbidden), true},
		"unknown":   {of(404, metav1.StatusReasonNotFound), true},
		"invalid":   {of(422, metav1.StatusReasonInvalid), false},
		"allowed":   {nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			var told []error
			for _, asks := range []bool{true, false} {
				options := Options[*corev1.Node, *corev1.Node]{
					Source: unstreamed{&cache.ListWatch{
						ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
							return &corev1.NodeList{}, tt.answer
						},
						WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
							<-ctx.Done()
							return nil, ctx.Err()
						},
					}},
					Keep: whole[*corev1.Node], Changed: func(_, _ *corev1.Node) {}, Logger: zerolog.Nop(),
				}
				if asks {
					options.Refused = func(err error) { told = append(told, err) }
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				New(options).Run(ctx)
				cancel()
			}
			if got := len(told) > 0; got != tt.want || got && !errors.Is(told[0], tt.answer) {
				t.Errorf("%s: told %v", name, told)
			}
		})
	}
}
