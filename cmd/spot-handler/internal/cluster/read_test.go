package cluster

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
)

// apiOf answers with the list at each path, as the request wants it. Other paths are forbidden. asked has
// the paths, with their label selectors.
func apiOf(t *testing.T, lists map[string]runtime.Object) (l Lister, asked func() []string) {
	t.Helper()
	paths := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if s := r.URL.Query().Get("labelSelector"); s != "" {
			path += "?" + s
		}
		paths <- path
		list := lists[r.URL.Path]
		if list == nil {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden})
			return
		}
		w.Header().Set("Content-Type", r.Header.Get("Accept"))
		var err error
		if strings.HasPrefix(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) {
			err = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, w)
		} else {
			err = json.NewEncoder(w).Encode(list)
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
	return Lister{Client: client}, func() (list []string) {
		for len(paths) > 0 {
			list = append(list, <-paths)
		}
		slices.Sort(list)
		return slices.Compact(list)
	}
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-of-" + name), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "somebody"}}}
}

func templateOf(app string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}}
}

// inZone is a volume of the claim that cannot leave its zone.
func inZone(claim, zone string) corev1.PersistentVolume {
	return corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: claim},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}},
	}}
}

// shop is a cluster with something of everything.
func shop() map[string]runtime.Object {
	running := corev1.Pod{ObjectMeta: named("web-1"), Spec: corev1.PodSpec{
		NodeName: "node-1", Priority: new(int32(7)), ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "gate"}},
		Containers: []corev1.Container{
			{Name: "plain"},
			{Name: "ready", ReadinessProbe: &corev1.Probe{PeriodSeconds: 9}},
			{Name: "starts", StartupProbe: &corev1.Probe{PeriodSeconds: 9}, Lifecycle: &corev1.Lifecycle{
				PreStop:   &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}},
				PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}},
			}},
		},
		Volumes: []corev1.Volume{
			{Name: "free", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "files"}}},
			{Name: "bound", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		},
	}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"}}}}
	running.GenerateName = "web-"
	over := corev1.Pod{ObjectMeta: named("once"), Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	elsewhere := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "theirs"}}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		Images:      []corev1.ContainerImage{{Names: []string{"large"}}},
		Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		NodeInfo:    corev1.NodeSystemInfo{BootID: "boot-1", KernelVersion: "6.1"},
	}}
	return map[string]runtime.Object{
		"/api/v1/pods":       &corev1.PodList{Items: []corev1.Pod{running, over, elsewhere}},
		"/api/v1/nodes":      &corev1.NodeList{Items: []corev1.Node{node}},
		"/api/v1/namespaces": &corev1.NamespaceList{Items: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}},
		"/apis/policy/v1/poddisruptionbudgets": &policyv1.PodDisruptionBudgetList{Items: []policyv1.PodDisruptionBudget{
			{ObjectMeta: named("web")}, {ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "theirs"}},
		}},
		"/apis/apps/v1/deployments": &appsv1.DeploymentList{Items: []appsv1.Deployment{
			{ObjectMeta: named("web"), Spec: appsv1.DeploymentSpec{Replicas: new(int32(2)), Template: templateOf("web")}},
			{ObjectMeta: named("idle"), Spec: appsv1.DeploymentSpec{Replicas: new(int32(0)), Template: templateOf("idle")}},
		}},
		"/apis/apps/v1/statefulsets": &appsv1.StatefulSetList{Items: []appsv1.StatefulSet{
			{ObjectMeta: named("db"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3)), Template: templateOf("db")}},
			{ObjectMeta: named("cache"), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(0)), PodManagementPolicy: appsv1.ParallelPodManagement, Template: templateOf("cache")}},
		}},
		"/apis/apps/v1/replicasets": &appsv1.ReplicaSetList{Items: []appsv1.ReplicaSet{
			{ObjectMeta: named("bare"), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(4))}},
		}},
		"/apis/apps/v1/daemonsets": &appsv1.DaemonSetList{Items: []appsv1.DaemonSet{
			{ObjectMeta: named("agent"), Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}}},
		}},
		"/api/v1/resourcequotas": &corev1.ResourceQuotaList{},
		"/api/v1/persistentvolumeclaims": &corev1.PersistentVolumeClaimList{Items: []corev1.PersistentVolumeClaim{
			{ObjectMeta: named("files"), Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}}},
			{ObjectMeta: named("data"), Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}},
		}},
		"/api/v1/persistentvolumes": &corev1.PersistentVolumeList{Items: []corev1.PersistentVolume{inZone("data", "a"), {}}},
		"/apis/storage.k8s.io/v1/volumeattachments": &storagev1.VolumeAttachmentList{Items: []storagev1.VolumeAttachment{
			{Spec: storagev1.VolumeAttachmentSpec{NodeName: "node-1"}}, {Spec: storagev1.VolumeAttachmentSpec{NodeName: "node-1"}},
		}},
	}
}

// What is read is kept under the names by which it is looked up, and nothing else of it.
func TestReadForForecast(t *testing.T) {
	l, _ := apiOf(t, shop())
	c := ReadForForecast(t.Context(), l)
	if len(c.Unread) > 0 || c.At.IsZero() {
		t.Fatalf("at %s, not read: %q", c.At, c.Unread)
	}
	if len(c.Pods) != 2 || len(c.Nodes) != 1 || len(c.Budgets) != 2 {
		t.Fatalf("%d pods, %d nodes, %d budgets; want 2, 1, 2", len(c.Pods), len(c.Nodes), len(c.Budgets))
	}
	pod := c.Pods[slices.IndexFunc(c.Pods, func(p *corev1.Pod) bool { return p.Name == "web-1" })]
	if pod.GenerateName != "web-" || *pod.Spec.Priority != 7 || len(pod.Spec.ReadinessGates) != 1 || pod.Status.Conditions[0].Reason != "Unschedulable" || pod.ManagedFields != nil {
		t.Errorf("pod %+v", pod)
	}
	for i, want := range []corev1.Container{
		{},
		{ReadinessProbe: &corev1.Probe{}},
		{ReadinessProbe: &corev1.Probe{}, Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 5}}}},
	} {
		got := corev1.Container{ReadinessProbe: pod.Spec.Containers[i].ReadinessProbe, Lifecycle: pod.Spec.Containers[i].Lifecycle}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("container %d (-want +got):\n%s", i, diff)
		}
	}
	node := c.Nodes[0]
	if node.ManagedFields != nil || node.Status.Images != nil || node.Status.NodeInfo != (corev1.NodeSystemInfo{BootID: "boot-1"}) ||
		node.Status.Allocatable.Cpu().Value() != 4 || len(node.Status.Conditions) != 1 {
		t.Errorf("node %+v", node)
	}
	name := func(n string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: n} }
	if web := c.Deployments[name("web")]; len(c.Deployments) != 2 || web == nil || web.Replicas() != 2 || web.ManagedFields != nil {
		t.Errorf("deployments %+v", c.Deployments)
	}
	for what, diff := range map[string]string{
		"owners":   cmp.Diff(map[types.UID]Owner{"uid-of-db": {3, true}, "uid-of-cache": {0, false}, "uid-of-bare": {Replicas: 4}}, c.Owners),
		"shared":   cmp.Diff(map[types.NamespacedName]bool{name("files"): true, name("data"): false}, c.Shared),
		"zones":    cmp.Diff(map[types.NamespacedName]string{name("data"): "a"}, c.Zones),
		"attached": cmp.Diff(map[string]int{"node-1": 2}, c.Attached),
	} {
		if diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	var adopts plan.NamespaceConstraints
	adopts.AddAdopter("ReplicaSet", "bare", nil, false)
	adopts.AddAdopter("DaemonSet", "agent", &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}, false)
	if around := c.Constraints["shop"]; !reflect.DeepEqual(around, adopts) {
		t.Errorf("what adopts pods: %+v, want %+v", around, adopts)
	}
	idle := c.Idle["shop"]
	slices.SortFunc(idle, func(a, b labels.Set) int { return strings.Compare(a["app"], b["app"]) })
	if diff := cmp.Diff([]labels.Set{{"app": "cache"}, {"app": "idle"}}, idle); diff != "" {
		t.Errorf("idle (-want +got):\n%s", diff)
	}
	if _, known := c.Namespaces["shop"]; !known {
		t.Errorf("namespaces %v", c.Namespaces)
	}
	if got := c.ZoneOf(pod); got != "a" {
		t.Errorf("the pod's volumes are in zone %q", got)
	}
	if got := c.ZoneOf(&corev1.Pod{}); got != "" {
		t.Errorf("a pod without volumes is in zone %q", got)
	}
	if mine := c.In("shop"); len(mine.Pods) != 1 || len(mine.Budgets) != 1 || mine.Pods[0].Name != "web-1" || mine.Budgets[0].Name != "web" || len(c.Pods) != 2 {
		t.Errorf("of shop: %+v", mine)
	}
	if all := c.In(""); len(all.Pods) != 2 || len(all.Budgets) != 2 {
		t.Errorf("of all namespaces: %d pods, %d budgets", len(all.Pods), len(all.Budgets))
	}
}

// An audit lists less than a forecast, and in one namespace less again. ReplicaSets of Deployments
// aren't listed at all.
func TestWhatIsListed(t *testing.T) {
	of := func(namespace string) []string {
		return []string{
			"/api/v1" + namespace + "/persistentvolumeclaims", "/api/v1" + namespace + "/pods", "/api/v1" + namespace + "/resourcequotas", "/api/v1/nodes",
			"/apis/apps/v1" + namespace + "/daemonsets", "/apis/apps/v1" + namespace + "/deployments",
			"/apis/apps/v1" + namespace + "/replicasets?!pod-template-hash", "/apis/apps/v1" + namespace + "/statefulsets",
			"/apis/policy/v1" + namespace + "/poddisruptionbudgets",
		}
	}
	forecast := []string{"/api/v1/namespaces", "/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/volumeattachments"}
	for name, tt := range map[string]struct {
		read      func(Lister) Cluster
		namespace string
		want      []string
	}{
		"an audit":                  {func(l Lister) Cluster { return Read(t.Context(), l) }, "", append(of(""), "/api/v1/persistentvolumes")},
		"an audit of a namespace":   {func(l Lister) Cluster { return Read(t.Context(), l) }, "shop", of("/namespaces/shop")},
		"a forecast":                {func(l Lister) Cluster { return ReadForForecast(t.Context(), l) }, "", append(of(""), forecast...)},
		"a forecast in a namespace": {func(l Lister) Cluster { return ReadForForecast(t.Context(), l) }, "shop", append(of("/namespaces/shop"), forecast...)},
	} {
		l, asked := apiOf(t, nil)
		l.Namespace = tt.namespace
		c := tt.read(l)
		slices.Sort(tt.want)
		if diff := cmp.Diff(tt.want, asked()); diff != "" {
			t.Errorf("%s lists (-want +got):\n%s", name, diff)
		}
		// All of it is forbidden here: it is missing, and is said to be.
		if len(c.Unread) != len(tt.want) || !slices.IsSorted(c.Unread) || c.Pods != nil || c.Deployments != nil {
			t.Errorf("%s: not read: %q; want all %d", name, c.Unread, len(tt.want))
		}
	}
}

// One list that fails costs no other.
func TestOneListFails(t *testing.T) {
	api := shop()
	delete(api, "/apis/policy/v1/poddisruptionbudgets")
	l, _ := apiOf(t, api)
	c := ReadForForecast(t.Context(), l)
	if len(c.Unread) != 1 || !strings.Contains(c.Unread[0], "poddisruptionbudgets") || len(c.Namespaces) != 1 || len(c.Nodes) != 1 {
		t.Errorf("not read: %q, namespaces %v, %d nodes", c.Unread, c.Namespaces, len(c.Nodes))
	}
}

// Anybody can write an Event of any size.
func TestEventIsClipped(t *testing.T) {
	whole := &corev1.Event{
		ObjectMeta: named("e"), Reason: "Drained", Type: "Warning", Message: strings.Repeat("x", 1<<20), Count: 3,
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "node-1"}, Action: "act", ReportingController: "somebody",
	}
	e := Event(whole)
	if len(e.Message) > 2048 || e.Reason != "Drained" || e.Type != "Warning" || e.Count != 3 || e.InvolvedObject.Name != "node-1" || e.Name != "e" || e.ManagedFields != nil || e.Action != "" {
		t.Errorf("%d bytes of message, event %.300v", len(e.Message), e)
	}
}
