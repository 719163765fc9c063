package watch

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
)

// surveyed is a cluster that is read once: a Deployment web with a pod on node-1, and what a test adds.
type surveyed struct {
	pods    []corev1.Pod
	budgets []policyv1.PodDisruptionBudget
	objects []runtime.Object
	fails   string // what cannot be listed
}

func (s *surveyed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case s.fails != "" && strings.HasSuffix(r.URL.Path, s.fails):
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}`, http.StatusInternalServerError)
	case strings.HasSuffix(r.URL.Path, "/pods"):
		_ = json.NewEncoder(w).Encode(corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: s.pods})
	default:
		_ = json.NewEncoder(w).Encode(policyv1.PodDisruptionBudgetList{
			TypeMeta: metav1.TypeMeta{Kind: "PodDisruptionBudgetList", APIVersion: "policy/v1"}, Items: s.budgets,
		})
	}
}

// decide surveys node-1, and returns what a plan says of its pod.
func (s *surveyed) decide(t *testing.T) (plan.Decision, error) {
	t.Helper()
	server := httptest.NewServer(s)
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[schema.GroupVersionResource]string{
		deploymentResource: "DeploymentList", replicaSetResource: "ReplicaSetList", claimResource: "PersistentVolumeClaimList", namespaceResource: "NamespaceList",
		{Group: "apps", Version: "v1", Resource: "daemonsets"}: "DaemonSetList", {Version: "v1", Resource: "resourcequotas"}: "ResourceQuotaList",
	}
	clients := Clients{
		Pods: client.CoreV1().RESTClient(), Budgets: client.PolicyV1().RESTClient(),
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, s.objects...),
	}
	in := plan.NodeState{Since: time.Now(), Deadline: time.Now().Add(2 * time.Minute), Capacity: plan.ReadyCapacity}
	survey, err := Survey(context.Background(), clients, "node-1", in, plan.Policy{Strategy: plan.StrategySurge, Margin: 10 * time.Second})
	if err != nil {
		return plan.Decision{}, err
	}
	view, known := survey.View(time.Now(), plan.Wanted{NodeState: in, Goal: plan.Drain})
	if !known || len(view.Plan) != 1 {
		t.Fatalf("%d decisions", len(view.Plan))
	}
	return view.Plan[0], nil
}

func object(kind, name string, spec map[string]any) runtime.Object {
	version := "apps/v1"
	if kind == "PersistentVolumeClaim" || kind == "ResourceQuota" {
		version = "v1"
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version, "kind": kind, "metadata": map[string]any{"namespace": "shop", "name": name}, "spec": spec,
	}}
}

func selecting(app string) map[string]any {
	return map[string]any{"matchLabels": map[string]any{"app": app}}
}

// cluster has the Deployment web, of which one pod runs, on node-1.
func cluster() *surveyed {
	started := metav1.NewTime(time.Now().Add(-time.Hour))
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-1", UID: "uid-1", CreationTimestamp: started, Labels: map[string]string{"app": "web", "pod-template-hash": "abc"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "of-web", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "node-1"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: started},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: started},
		}},
	}
	return &surveyed{pods: []corev1.Pod{pod}, objects: []runtime.Object{
		object("Deployment", "web", map[string]any{
			"replicas": int64(1), "selector": selecting("web"),
			"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(1)}},
		}),
	}}
}

// A dry run reads what a drain would know of a pod: its Deployment, its budgets, its volumes, and what else in its
// namespace is against a replacement pod.
func TestSurvey(t *testing.T) {
	claim := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
	budget := policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "by-hash"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"pod-template-hash": "abc"}}},
	}
	for name, tt := range map[string]struct {
		change  func(s *surveyed)
		against string // a replacement pod; empty: it is surged
	}{
		"a Deployment's pod": {func(*surveyed) {}, ""},
		"no Deployment":      {func(s *surveyed) { s.objects = nil }, "its ReplicaSet belongs to no Deployment"},
		"one without a selector": {
			func(s *surveyed) {
				s.objects = []runtime.Object{object("Deployment", "web", map[string]any{"replicas": int64(1)})}
			},
			"cannot be read: it is not as the API describes it",
		},
		"a budget by hash": {func(s *surveyed) { s.budgets = append(s.budgets, budget) }, "PDB by-hash"},
		"a volume": {func(s *surveyed) {
			s.pods[0].Spec.Volumes = []corev1.Volume{claim}
			s.objects = append(s.objects, object("PersistentVolumeClaim", "data", map[string]any{"accessModes": []any{"ReadWriteOnce"}}))
		}, "volume data"},
		"a DaemonSet that selects it": {func(s *surveyed) {
			s.objects = append(s.objects, object("DaemonSet", "agent", map[string]any{"selector": selecting("web")}))
		}, "DaemonSet agent would adopt it"},
		"one that doesn't": {func(s *surveyed) {
			s.objects = append(s.objects, object("DaemonSet", "agent", map[string]any{"selector": selecting("agent")}))
		}, ""},
		"a quota": {func(s *surveyed) {
			quota := object("ResourceQuota", "small", nil)
			quota.(*unstructured.Unstructured).Object["status"] = map[string]any{"hard": map[string]any{"pods": "1"}, "used": map[string]any{"pods": "1"}}
			s.objects = append(s.objects, quota)
		}, "ResourceQuota small"},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster()
			tt.change(s)
			d, err := s.decide(t)
			if err != nil {
				t.Fatal(err)
			}
			if tt.against == "" && d.NoSurge != "" || !strings.Contains(d.NoSurge, tt.against) {
				t.Errorf("%s; not surged: %q, want %q", d.Action, d.NoSurge, tt.against)
			}
		})
	}
}

// What cannot be read is an error: a dry run must not say what would only be true of half a cluster.
func TestSurveyFails(t *testing.T) {
	for _, what := range []string{"/pods", "/namespaces/shop/pods", "/poddisruptionbudgets"} {
		s := cluster()
		s.fails = what
		if d, err := s.decide(t); err == nil {
			t.Errorf("without %s: %s", what, d.Action)
		}
	}
}
