package audit

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/handler/offerings"
)

// listing reads from an API server that has these lists, by path and labels.
func listing(t *testing.T, lists map[string]string) cluster.Lister {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		items, ok := lists[r.URL.Path+" "+r.URL.Query().Get("labelSelector")]
		if !ok {
			items = "[]"
		}
		_, _ = w.Write([]byte(`{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":` + items + `}`))
	}))
	t.Cleanup(server.Close)
	client, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host: server.URL, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Lister{Client: client}
}

// What AWS Load Balancer Controller makes target groups of: its Services, and the Services of its Ingresses, whose own
// attributes go before the Ingress's.
func TestReadBalanced(t *testing.T) {
	lists := listing(t, map[string]string{
		"/api/v1/services ": `[
			{"metadata":{"namespace":"shop","name":"plain"},"spec":{"type":"ClusterIP","selector":{"app":"plain"}}},
			{"metadata":{"namespace":"shop","name":"other"},"spec":{"type":"LoadBalancer","selector":{"app":"other"}}},
			{"metadata":{"namespace":"shop","name":"nodes","annotations":{"service.beta.kubernetes.io/aws-load-balancer-type":"external"}},
				"spec":{"type":"LoadBalancer","selector":{"app":"nodes"}}},
			{"metadata":{"namespace":"shop","name":"pods","annotations":{"service.beta.kubernetes.io/aws-load-balancer-type":"nlb-ip",
				"service.beta.kubernetes.io/aws-load-balancer-target-group-attributes":"a=1"}},
				"spec":{"type":"LoadBalancer","selector":{"app":"pods"}}},
			{"metadata":{"namespace":"shop","name":"web"},"spec":{"selector":{"app":"web"}}},
			{"metadata":{"namespace":"shop","name":"own","annotations":{"alb.ingress.kubernetes.io/target-group-attributes":"c=3",
				"alb.ingress.kubernetes.io/target-type":"ip"}},"spec":{"selector":{"app":"own"}}}
		]`,
		"/apis/networking.k8s.io/v1/ingresses ": `[
			{"metadata":{"namespace":"shop","name":"nginx"},"spec":{"ingressClassName":"nginx","defaultBackend":{"service":{"name":"plain"}}}},
			{"metadata":{"namespace":"shop","name":"alb","annotations":{"alb.ingress.kubernetes.io/target-group-attributes":"b=2"}},
				"spec":{"ingressClassName":"internal","defaultBackend":{"service":{"name":"web"}},
				"rules":[{"http":{"paths":[{"backend":{"service":{"name":"own"}}},{"backend":{"service":{"name":"web"}}},{"backend":{"service":{"name":"none"}}}]}}]}},
			{"metadata":{"namespace":"shop","name":"byclass"},"spec":{"ingressClassName":"alb","defaultBackend":{"service":{"name":"plain"}}}},
			{"metadata":{"namespace":"shop","name":"legacy","annotations":{"kubernetes.io/ingress.class":"alb"}},"spec":{"defaultBackend":{"service":{"name":"plain"}}}}
		]`,
	})
	var s Snapshot
	if err := (Reader{Lists: lists}).balanced(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	app := func(name string) map[string]string { return map[string]string{"app": name} }
	want := []Balanced{
		{Owned{"shop", "service/nodes"}, app("nodes"), false, serviceAttributes, ""},
		{Owned{"shop", "service/pods"}, app("pods"), true, serviceAttributes, "a=1"},
		{Owned{"shop", "ingress/alb"}, app("web"), false, ingressAttributes, "b=2"},
		{Owned{"shop", "service/own"}, app("own"), true, ingressAttributes, "c=3"},
		{Owned{"shop", "ingress/byclass"}, app("plain"), false, ingressAttributes, ""},
		{Owned{"shop", "ingress/legacy"}, app("plain"), false, ingressAttributes, ""},
	}
	if diff := cmp.Diff(want, s.Balanced); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Who else acts on notices: Karpenter with a queue, and aws-node-termination-handler in any case.
func TestReadOthers(t *testing.T) {
	program := func(name, env string) string {
		return `{"metadata":{"namespace":"kube-system","name":"` + name + `"},"spec":{"template":{"spec":{"containers":[{"env":[` + env + `]}]}}}}`
	}
	queue := `{"name":"INTERRUPTION_QUEUE","value":"karpenter"}`
	lists := listing(t, map[string]string{
		"/apis/apps/v1/deployments app.kubernetes.io/name=karpenter":                   "[" + program("karpenter", queue) + "," + program("quiet", "") + "]",
		"/apis/apps/v1/daemonsets app.kubernetes.io/name=aws-node-termination-handler": "[" + program("nth", "") + "]",
	})
	var s Snapshot
	if err := (Reader{Lists: lists}).others(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range s.Others {
		got = append(got, o.Object+" "+o.Variable)
	}
	if want := []string{"deployment/karpenter INTERRUPTION_QUEUE", "daemonset/nth "}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A policy holds an account if it names it and is bound.
func TestReadPolicies(t *testing.T) {
	policy := func(name, account string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"matchConditions":[{"expression":"request.userInfo.username == 'system:serviceaccount:ops:` + account + `'"}]}}`
	}
	const group = "/apis/admissionregistration.k8s.io/v1/"
	lists := listing(t, map[string]string{
		group + "validatingadmissionpolicies ":       "[" + policy("bound", "held") + "," + policy("unbound", "free") + "]",
		group + "validatingadmissionpolicybindings ": `[{"metadata":{"name":"b"},"spec":{"policyName":"bound"}}]`,
	})
	s := Snapshot{}
	for _, account := range []string{"held", "free", "other"} {
		s.Daemons = append(s.Daemons, Daemon{Owned: Owned{"ops", "deployment/x"}, Account: account})
	}
	if err := (Reader{Lists: lists}).policies(t.Context(), &s); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{false, true, true} {
		if d := s.Daemons[i]; d.Unheld != want {
			t.Errorf("account %s: not held %t, want %t", d.Account, d.Unheld, want)
		}
	}
}

// Where Karpenter is not used, what it would need is not read.
func TestReadWithoutKarpenter(t *testing.T) {
	asked := 0
	r := Reader{
		WithoutKarpenter: true, Lists: listing(t, nil),
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}:  "NodePoolList",
			{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}: "NodeClaimList",
		}),
		Daemons:   func(context.Context) ([]Daemon, error) { return nil, nil },
		Offerings: func(context.Context, []*corev1.Node) (*offerings.Memory, error) { asked++; return offerings.New(), nil },
	}
	if unread := r.Read(t.Context(), &Snapshot{}); len(unread) > 0 || asked > 0 {
		t.Errorf("offerings are read %d times, unread %q", asked, unread)
	}
	if r.WithoutKarpenter = false; len(r.Read(t.Context(), &Snapshot{})) > 0 || asked != 1 {
		t.Errorf("with Karpenter, offerings are read %d times", asked)
	}
}
