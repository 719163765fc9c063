package narrow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// narrowed is what is left of the answer, read in pieces of every size.
func narrowed(t *testing.T, resource, answer string) string {
	t.Helper()
	var first string
	for i, split := range []func(io.Reader) io.Reader{
		func(r io.Reader) io.Reader { return r }, iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader,
	} {
		body, err := io.ReadAll(split(newReader(newSource(io.NopCloser(split(strings.NewReader(answer)))), kinds[resource])))
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && string(body) != first {
			t.Fatalf("read in other pieces it is\n%s\ninstead of\n%s", body, first)
		}
		first = string(body)
	}
	return first
}

func TestNarrow(t *testing.T) {
	many := strings.Repeat(`{"name":"e\"}]","value":"\\"},`, 1000)
	for _, c := range []struct{ name, resource, in, want string }{
		{"an object", "persistentvolumeclaims",
			`{"kind":"PersistentVolumeClaim","metadata":{"name":"a","managedFields":[{"f":{}},2],"uid":"u"},"spec":{"x":{"y":[1,{"z":"}"}]},"accessModes":["ReadWriteMany"],"volumeName":"v","n":1},"status":{"phase":"Bound"}}`,
			`{"kind":"PersistentVolumeClaim","metadata":{"name":"a","uid":"u"},"spec":{"accessModes":["ReadWriteMany"],"volumeName":"v"},"status":{}}`},
		{"a list", "apps/replicasets",
			`{"kind":"ReplicaSetList","metadata":{"resourceVersion":"7","continue":"c"},"items":[{"metadata":{"name":"a"},"spec":{"replicas":0,"template":{"env":[` + many + `1]},"selector":{"matchLabels":{"a":"b"}}}},{"spec":{"template":null}},{"metadata":{"name":"c"}}]}` + "\n",
			`{"kind":"ReplicaSetList","metadata":{"resourceVersion":"7","continue":"c"},"items":[{"metadata":{"name":"a"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}}}},{"spec":{}},{"metadata":{"name":"c"}}]}` + "\n"},
		{"a list without elements", "pods", `{"metadata":{}, "items": [ ] }`, `{"metadata":{},"items":[]}`},
		{"what a pod's containers have", "pods",
			`{"status":{"containerStatuses":[{"name":"a","image":"x","allocatedResources":{"cpu":"1"},"resources":{"limits":{"cpu":"2"},"requests":{"cpu":"1"}},"state":{}}]}}`,
			`{"status":{"containerStatuses":[{"name":"a","allocatedResources":{"cpu":"1"},"resources":{"requests":{"cpu":"1"}}}]}}`},
		{"a Node's addresses", "nodes", `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}],"images":[{}]}}`, `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}`},
		{"whose evictions a budget has granted", "policy/poddisruptionbudgets",
			`{"spec":{"maxUnavailable":1},"status":{"conditions":[{}],"disruptedPods":{"db-0":"2026-01-01T00:00:00Z"},"disruptionsAllowed":0}}`,
			`{"spec":{"maxUnavailable":1},"status":{"disruptedPods":{"db-0":"2026-01-01T00:00:00Z"},"disruptionsAllowed":0}}`},
		{"how a ReplicaSet is deleted", "apps/replicasets", `{"metadata":{"finalizers":["orphan"]},"status":{"replicas":1}}`, `{"metadata":{"finalizers":["orphan"]},"status":{}}`},
		{"a list that is null", "pods", `{"items":null}`, `{"items":null}`},
		{"events of a watch", "pods",
			`{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"nodeName":"n","containers":[{"name":"c","env":[` + many + `{}],"resources":{"requests":{"cpu":"1"}}}]}}}` + "\n" +
				`{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true","other":"x","spot-handler/when":"last"}}}}` + "\n" +
				`{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old","reason":"Expired","code":410,"details":{"a":[1]}}}` + "\n",
			`{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"nodeName":"n","containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]}}}` + "\n" +
				`{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true","spot-handler/when":"last"}}}}` + "\n" +
				`{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"too old","reason":"Expired","code":410,"details":{"a":[1]}}}` + "\n"},
		{"only that there is one", "pods", `{"spec":{"volumes":[{"name":"v","ephemeral":{"volumeClaimTemplate":{"a":1}}},{"name":"w","secret":{}}]}}`, `{"spec":{"volumes":[{"name":"v","ephemeral":{}},{"name":"w"}]}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, narrowed(t, c.resource, c.in)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A field that is used has a bound too, and what comes after it is still read.
func TestBounds(t *testing.T) {
	var labels strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&labels, `,"l%d":"v"`, i)
	}
	long := strings.Repeat(`\u003c\"`, 100_000)
	for _, c := range []struct{ name, object string }{
		{"many labels", `{"metadata":{"labels":{"app":"a"` + labels.String() + `},"uid":"u"},"spec":{"terminationGracePeriodSeconds":5,"nodeName":"n"}}`},
		{"a long label", `{"metadata":{"labels":{"app":"a","b":"` + long + `","c":"d"},"uid":"u"},"spec":{"terminationGracePeriodSeconds":5,"nodeName":"n"}}`},
		{"many containers", `{"metadata":{"labels":{"app":"a"},"uid":"u"},"spec":{"containers":[{}` + strings.Repeat(`,{"name":"c"}`, 100_000) + `],"terminationGracePeriodSeconds":5,"nodeName":"n"}}`},
		{"all fields", `{"metadata":{"labels":{"app":"a"` + labels.String() + `},"uid":"u"},"spec":{"affinity":[` + strings.Repeat(`[[[[`, 10_000) + strings.Repeat(`]]]]`, 10_000) + `],"tolerations":[{}` + strings.Repeat(`,{}`, 100_000) +
			`],"overhead":{"a":"b"` + labels.String() + `},"containers":[{}` + strings.Repeat(`,{"name":"c"}`, 100_000) + `],"terminationGracePeriodSeconds":5,"nodeName":"n"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			left := narrowed(t, "pods", `{"items":[`+c.object+`,{"metadata":{"name":"next"}}]}`)
			if len(left) > podBound+2*podField {
				t.Errorf("%d bytes are left of %d", len(left), len(c.object))
			}
			var list struct {
				Items []struct {
					Metadata struct {
						Name, UID string
						Labels    map[string]string
					}
					Spec struct {
						NodeName                      string
						TerminationGracePeriodSeconds int
					}
					SpotHandlerCut bool
				}
			}
			if err := json.Unmarshal([]byte(left), &list); err != nil {
				t.Fatalf("%v in %.300s", err, left)
			}
			got := list.Items[0]
			if got.Metadata.UID != "u" || got.Spec.NodeName != "n" || got.Spec.TerminationGracePeriodSeconds != 5 || got.Metadata.Labels["app"] != "a" || !got.SpotHandlerCut {
				t.Errorf("%.300s", left)
			}
			if next := list.Items[1]; next.Metadata.Name != "next" || next.SpotHandlerCut {
				t.Errorf("the next one is %+v", next)
			}
		})
	}
}

// Wherever a bound falls, what is left of a pod can be decoded: it is read together with others.
func TestWhatIsCutCanBeDecoded(t *testing.T) {
	for length := range 300 {
		var before strings.Builder
		for i := range 15 {
			fmt.Fprintf(&before, `"%d%s":"1",`, i, strings.Repeat("a", 500))
		}
		pod := `{"metadata":{"name":"a"},"spec":{"overhead":{` + before.String() + `"` + strings.Repeat("b", 300+length) + `":"100Mi","c":"1"}}}`
		var list corev1.PodList
		left := narrowed(t, "pods", `{"items":[`+pod+`]}`)
		if err := json.Unmarshal([]byte(left), &list); err != nil {
			t.Fatalf("%v in ...%s", err, left[len(left)-100:])
		}
		for name, got := range list.Items[0].Spec.Overhead {
			if name[0] == 'b' && got.String() != "100Mi" {
				t.Errorf("100Mi became %s", &got)
			}
		}
	}
}

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTransport(t *testing.T) {
	secret := `{"metadata":{"managedFields":[]},"data":{}}`
	ask := func(ctx context.Context, path, contentType string, status int) (string, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://cluster"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := Transport(answers(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(secret))}, nil
		})).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	const narrow = `{"metadata":{}}`
	for _, c := range []struct {
		path, contentType string
		status            int
		want              string
	}{
		{"/api/v1/pods", "application/json", 200, narrow},
		{"/proxy/api/v1/namespaces/a/pods/b/status", "application/json;stream=watch", 201, narrow},
		{"/api/v1/namespaces/a", "application/json", 200, narrow},
		{"/apis/apps/v1/namespaces/a/deployments", "application/json", 200, narrow},
		{"/apis/karpenter.sh/v1/nodepools", "application/json", 200, secret},
		{"/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "application/json", 200, secret},
		{"/api/v1/configmaps", "application/vnd.kubernetes.protobuf", 200, secret},
		{"/apis/apps/v1/deployments", "application/vnd.kubernetes.protobuf", 200, secret},
		{"/api/v1/pods", "text/plain", 200, secret},
		{"/api/v1/pods", "application/json", 404, secret},
		{"/version", "application/json", 200, secret},
	} {
		if got, err := ask(t.Context(), c.path, c.contentType, c.status); err != nil || got != c.want {
			t.Errorf("%s: %s, %v; want %s", c.path, got, err, c.want)
		}
	}
	if _, err := ask(Limit(t.Context(), 10, 100), "/api/v1/pods", "application/json", 200); !errors.Is(err, ErrTooLong) {
		t.Errorf("past the limit: %v", err)
	}
	if _, err := ask(Limit(t.Context(), 100, 10), "/version", "application/json", 200); !errors.Is(err, ErrTooLong) {
		t.Errorf("past the limit of what is not narrowed: %v", err)
	}
}

// A list of 260 MB of tiny entries costs next to nothing.
func TestMemory(t *testing.T) {
	item := []byte(`{"metadata":{"name":"a"},"spec":{"template":{"env":[` + strings.Repeat(`{"name":"e"},`, 100_000) + `{}]}}},`)
	var parts []io.Reader
	for range 200 {
		parts = append(parts, bytes.NewReader(item))
	}
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	r := newReader(newSource(io.NopCloser(io.MultiReader(strings.NewReader(`{"items":[`), io.MultiReader(parts...), strings.NewReader(`{}]}`)))), kinds["apps/replicasets"])
	body, err := io.ReadAll(r)
	if err != nil || !json.Valid(body) || len(body) > 10_000 {
		t.Fatalf("%d bytes are left, %v", len(body), err)
	}
	runtime.ReadMemStats(&now)
	if took := now.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("it took %d bytes", took)
	}
}

func BenchmarkNarrow(b *testing.B) {
	item := `{"metadata":{"name":"a"},"spec":{"template":{"env":[` + strings.Repeat(`{"name":"e"},`, 100_000) + `{}]}}}`
	b.SetBytes(int64(len(item)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, newReader(newSource(io.NopCloser(strings.NewReader(item))), kinds["pods"])); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzNarrow(f *testing.F) {
	f.Add(`{"items":[{"metadata":{"labels":{"a":"\u003c"}},"spec":{"containers":[{"env":[1]}]}}]}`)
	f.Add(`{"type":"ADDED","object":{"spec":null,"status":{"phase":"x"}}}` + "\n" + `{}`)
	f.Add(`]}"\`)
	f.Fuzz(func(t *testing.T, in string) {
		out, err := io.ReadAll(newReader(newSource(io.NopCloser(strings.NewReader(in))), kinds["pods"]))
		if err != nil {
			t.Fatal(err)
		}
		if json.Valid([]byte(in)) && strings.HasPrefix(in, "{") && !json.Valid(out) {
			t.Errorf("%q became %q", in, out)
		}
	})
}

// A connection that has died without a word is given up long before the two minutes are over.
func TestSilentConnectionsAreAsked(t *testing.T) {
	var t1 http.Transport
	Transport(&t1)
	if h2 := t1.HTTP2; h2 == nil || h2.SendPingTimeout+h2.PingTimeout != 15*time.Second {
		t.Errorf("%+v", h2)
	}
}

// What is large is read slowly, if nothing else bounds it, and nothing else is.
func TestLargeObjectsAreReadSlowly(t *testing.T) {
	list := func(objects, size int) string {
		one := `{"metadata":{"name":"a","managedFields":"` + strings.Repeat("x", size) + `"}},`
		return `{"items":[` + strings.Repeat(one, objects) + `{}]}`
	}
	managed := func(size int) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("x", size)}}}}
	}
	large := managed(1 << 20)
	inList := string(inProtobuf(t, &corev1.PodList{Items: slices.Repeat([]corev1.Pod{large}, 20)}))
	smallInList := string(inProtobuf(t, &corev1.PodList{Items: slices.Repeat([]corev1.Pod{managed(10 << 10)}, 2000)}))
	inEvents := strings.Repeat(string(eventInProtobuf(t, apiwatch.Modified, &large)), 20)
	const ofNode, ofNamespace = "/api/v1/pods?fieldSelector=spec.nodeName%3Da", "/apis/apps/v1/namespaces/a/deployments"
	for _, c := range []struct {
		name, method, path, answer string
		limit                      int64
		from, to                   time.Duration
	}{
		{"large ones of a namespace", http.MethodGet, ofNamespace, list(20, 1<<20), 0, 4 * time.Second, 6 * time.Second},
		{"large ones of a node", http.MethodGet, ofNode, list(20, 1<<20), 0, 2 * time.Second, 3 * time.Second},
		{"very many of a node", http.MethodGet, ofNode, list(200, 1<<20), 0, slowFor / 2, slowFor/2 + 100*time.Millisecond},
		{"many of a namespace", http.MethodGet, ofNamespace, list(2000, 10<<10), 0, 0, 0},
		{"many of a node", http.MethodGet, ofNode, list(2000, 10<<10), 0, 0, 0},
		{"large ones of a node, in protobuf", http.MethodGet, ofNode, inList, 0, 2 * time.Second, 3 * time.Second},
		{"many of a node, in protobuf", http.MethodGet, ofNode, smallInList, 0, 0, 0},
		{"large ones in events", http.MethodGet, ofNode, inEvents, 0, 2 * time.Second, 3 * time.Second},
		{"with a limit", http.MethodGet, ofNamespace, list(20, 1<<20), 32 << 20, 0, 0},
		{"one that is changed", http.MethodPatch, ofNamespace + "/a", list(0, 1<<20), 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			contentType := "application/json"
			switch {
			case strings.HasPrefix(c.answer, prefix):
				contentType = "application/vnd.kubernetes.protobuf"
			case c.answer[0] == 0:
				contentType = "application/vnd.kubernetes.protobuf;stream=watch"
			}
			synctest.Test(t, func(t *testing.T) {
				client := Slowly(answers(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(c.answer))}, nil
				}))
				ctx := t.Context()
				if c.limit > 0 {
					ctx = Limit(ctx, c.limit, c.limit)
				}
				began := time.Now()
				var both sync.WaitGroup
				for range 2 { // at the same time, half as fast each
					both.Go(func() {
						request, err := http.NewRequestWithContext(ctx, c.method, "https://example.com"+c.path, nil)
						if err != nil {
							t.Error(err)
							return
						}
						answer, err := client.RoundTrip(request)
						if err == nil {
							_, err = io.Copy(io.Discard, answer.Body)
						}
						if err != nil {
							t.Error(err)
						}
					})
				}
				both.Wait()
				if took := time.Since(began); took < 2*c.from || took > 2*c.to {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}

// wrapping is how client-go hands out its transports.
type wrapping struct{ http.RoundTripper }

func (w wrapping) WrappedRoundTripper() http.RoundTripper { return w.RoundTripper }

func TestWrappedConnectionsAreAsked(t *testing.T) {
	var inner http.Transport
	outer := wrapping{wrapping{&inner}}
	for name, wrap := range map[string]func(http.RoundTripper) http.RoundTripper{"Transport": Transport, "Slowly": Slowly} {
		of := wrap(outer)
		h2 := inner.HTTP2
		if h2 == nil || h2.SendPingTimeout != 10*time.Second || h2.PingTimeout != 5*time.Second || h2.MaxReceiveBufferPerStream != 128<<10 {
			t.Errorf("%s: %+v", name, h2)
		}
		inner.HTTP2 = nil
		if got := of.(interface{ WrappedRoundTripper() http.RoundTripper }).WrappedRoundTripper(); got != outer {
			t.Errorf("%s wraps %v", name, got)
		}
		bound(of)
		if inner.HTTP2 == nil {
			t.Errorf("%s hides the connections from its wrapper", name)
		}
		inner.HTTP2 = nil
	}
	own := &http.HTTP2Config{PingTimeout: time.Minute}
	inner.HTTP2 = own
	Transport(outer)
	if inner.HTTP2 != own || own.PingTimeout != time.Minute {
		t.Errorf("somebody else's settings became %+v", inner.HTTP2)
	}
}

// closable says whether it was closed.
type closable struct {
	io.Reader
	closed bool
}

func (c *closable) Close() error {
	c.closed = true
	return errors.New("closed")
}

// What is not read to its end gives its stream back all the same.
func TestBodyIsClosed(t *testing.T) {
	const text = `{"metadata":{"name":"a","managedFields":[]}}`
	body := &closable{Reader: strings.NewReader(text)}
	client := Transport(answers(func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode:    http.StatusOK,
			Header:        http.Header{"Content-Type": {"application/json"}, "Content-Length": {fmt.Sprint(len(text))}},
			ContentLength: int64(len(text)),
			Body:          body,
		}, nil
	}))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://cluster/api/v1/pods", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	if answer.ContentLength != -1 || answer.Header.Get("Content-Length") != "" {
		t.Errorf("length %d, %v; it isn't known any more", answer.ContentLength, answer.Header)
	}
	if err := answer.Body.Close(); err == nil || err.Error() != "closed" || !body.closed {
		t.Errorf("error %v, closed %t", err, body.closed)
	}
}

// Without an answer there is nothing to narrow.
func TestNoAnswer(t *testing.T) {
	refused := errors.New("connection refused")
	client := Transport(answers(func(*http.Request) (*http.Response, error) { return nil, refused }))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://cluster/api/v1/pods", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := client.RoundTrip(r); answer != nil || !errors.Is(err, refused) {
		t.Errorf("%v, %v; want the error", answer, err)
	}
}
