package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// serve answers with the pods in pages of two, as the request wants them.
func serve(t *testing.T, pods ...corev1.Pod) Lister {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/namespaces/secret/pods" {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden})
			return
		}
		if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); r.URL.Path == "/api/v1/namespaces/slow/pods" && limit > leastPage {
			panic(http.ErrAbortHandler)
		}
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		to := min(from+2, len(pods))
		page := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: pods[from:to]}
		if to < len(pods) {
			page.Continue = fmt.Sprint(to)
		}
		w.Header().Set("Content-Type", r.Header.Get("Accept"))
		var err error
		if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
			err = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(page, w)
		} else {
			err = json.NewEncoder(w).Encode(page)
		}
		if err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	client, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()}})
	if err != nil {
		t.Fatal(err)
	}
	return Lister{Client: client}
}

func pod(namespace, name string, labels map[string]string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
}

type labelled struct {
	meta `json:"metadata"`
}

type meta struct {
	Meta
	Labels map[string]string `json:"labels"`
}

// lists reads the pods in both ways.
var lists = map[string]func(context.Context, Lister) ([]string, error){
	"json": func(ctx context.Context, l Lister) (names []string, err error) {
		err = Each(ctx, l, podResource, "", func(p *labelled) { names = append(names, p.Namespace+"/"+p.Name) })
		return names, err
	},
	"protobuf": func(ctx context.Context, l Lister) (names []string, err error) {
		err = EachOf(ctx, l, podResource, "", func(p *corev1.Pod) *corev1.Pod {
			slim := pod(p.Namespace, p.Name, p.Labels)
			return &slim
		}, func(p *corev1.Pod) { names = append(names, p.Namespace+"/"+p.Name) })
		return names, err
	},
}

func TestPages(t *testing.T) {
	for name, list := range lists {
		for n := range 6 {
			var pods []corev1.Pod
			var want []string
			for i := range n {
				pods = append(pods, pod("shop", fmt.Sprint("web-", i), nil))
				want = append(want, fmt.Sprint("shop/web-", i))
			}
			got, err := list(t.Context(), serve(t, pods...))
			if diff := cmp.Diff(want, got); diff != "" || err != nil {
				t.Errorf("%s, %d pods: %v, -want +got:\n%s", name, n, err, diff)
			}
		}
	}
}

// What is kept of an object is what counts, and each namespace for itself.
func TestBounds(t *testing.T) {
	large := func(size int) map[string]string { return map[string]string{"a": strings.Repeat("x", size)} }
	unused := pod("shop", "unused", nil)
	unused.Annotations = map[string]string{"a": strings.Repeat("x", 10*mostOfObject)}
	pods := []corev1.Pod{pod("hostile", "large", large(mostOfObject)), pod("shop", "web", nil), unused}
	for i := range mostOfNamespace/(48<<10) + 50 {
		pods = append(pods, pod("crowd", fmt.Sprint("p-", i), large(48<<10)))
	}
	pods = append(pods, pod("shop", "last", nil))
	for name, list := range lists {
		got, err := list(t.Context(), serve(t, pods...))
		shop := strings.Join(got, " ")
		for _, want := range []string{"shop/web", "shop/unused", "shop/last", "crowd/p-0"} {
			if !strings.Contains(shop, want) {
				t.Errorf("%s: %s is missing", name, want)
			}
		}
		if strings.Contains(shop, "hostile/") || len(got) >= len(pods)-2 {
			t.Errorf("%s: %d of %d pods, the large one among them: %t", name, len(got), len(pods), strings.Contains(shop, "hostile/"))
		}
		if !errors.Is(err, errLeftOut) || !strings.Contains(err.Error(), `1 pods of namespace "hostile"`) || !strings.Contains(err.Error(), `of namespace "crowd"`) || strings.Contains(err.Error(), "shop") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Where the API server breaks off, smaller pages are asked for.
func TestSmallerPages(t *testing.T) {
	for name, list := range lists {
		l := serve(t, pod("slow", "web", nil))
		l.Namespace = "slow"
		if got, err := list(t.Context(), l); err != nil || len(got) != 1 {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	for name, list := range lists {
		l := serve(t)
		l.Namespace = "secret"
		if _, err := list(t.Context(), l); !apierrors.IsForbidden(err) || !strings.HasPrefix(err.Error(), "list pods: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// All of a list's fields are messages: anything else isn't a list, whatever length it claims to have.
func TestNoList(t *testing.T) {
	for name, answer := range map[string]string{
		"a number":          "\x10\x05",
		"a negative length": "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"too short":         "\x12\x05abc",
	} {
		_, err := protobufItems(bufio.NewReader(strings.NewReader(protobufMagic+answer)), func([]byte) error { return nil })
		if err == nil {
			t.Errorf("%s is taken for a list", name)
		}
	}
}

// Whatever the answer is, nothing panics, and an answer that breaks off is an error.
func FuzzAnswers(f *testing.F) {
	var list bytes.Buffer
	page := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{pod("shop", "web", nil)}}
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(page, &list); err != nil {
		f.Fatal(err)
	}
	text, _ := json.Marshal(page)
	f.Add(list.Bytes())
	f.Add(text)
	f.Add(list.Bytes()[:list.Len()-3])
	f.Add(text[:len(text)-3])
	f.Add([]byte(`{"items":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := 0
		_, protoErr := protobufItems(bufio.NewReader(bytes.NewReader(data)), func([]byte) error { n++; return nil })
		_, jsonErr := jsonItems(bytes.NewReader(data), func(dec *json.Decoder) error { n++; return dec.Decode(&labelled{}) })
		if bytes.Equal(data, list.Bytes()[:list.Len()-3]) && protoErr == nil || bytes.Equal(data, text[:len(text)-3]) && jsonErr == nil {
			t.Error("an answer that broke off is taken for whole")
		}
	})
}
