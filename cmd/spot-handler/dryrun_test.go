package main

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

// spotOnly and onDemand are NodePools, and roomy is a Node with room for a pod.
const (
	spotOnly = `
metadata: {name: batch}
spec: {template: {spec: {nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default},
  requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]}}}
status: {conditions: [{type: Ready, status: "True"}]}
`
	onDemand = `
metadata: {name: fallback}
spec: {limits: {nodes: 1}, template: {spec: {nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default},
  requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]}}}
status: {conditions: [{type: Ready, status: "True"}]}
`
	roomy = `
metadata: {name: roomy}
status: {allocatable: {cpu: "8", memory: 16Gi, pods: "100"}, conditions: [{type: Ready, status: "True"}]}
`
)

// listServer is an API server with these objects by resource, and notes what is more than a read.
func listServer(t *testing.T, objects map[string][]string) (conf *rest.Config, wrote func() []string) {
	t.Helper()
	var mu sync.Mutex
	var writes []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			_, _ = w.Write([]byte(`{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`))
			return
		case r.Method != http.MethodGet:
			mu.Lock()
			writes = append(writes, r.Method+" "+r.URL.Path)
			mu.Unlock()
		}
		items, resource := []json.RawMessage{}, path.Base(r.URL.Path)
		for _, text := range objects[resource] {
			object, err := yaml.YAMLToJSON([]byte(text))
			if err != nil {
				t.Error(err)
			}
			items = append(items, object)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": cmp.Or(map[string]string{"nodes": "NodeList", "pods": "PodList"}[resource], "List"), "apiVersion": "v1", "metadata": map[string]any{}, "items": items})
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return writes
	}
}

// A dry run says which replacement would be requested, or why none, and nothing gets out that changes
// the cluster. Each answer is as if it were the first.
func TestDryRunRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		args    []string
		objects map[string][]string
		want    interruption.Replacement
	}{
		"a NodeClaim": {
			objects: map[string][]string{"nodepools": {spotOnly, onDemand}},
			want:    interruption.Replacement{Backend: provisioner.Karpenter, State: provisioner.StateRequested, Name: "fallback-i-0123456789abcdef0", Pool: "fallback"},
		},
		"no pool": {
			objects: map[string][]string{"nodepools": {spotOnly}},
			want:    interruption.Replacement{Backend: provisioner.Karpenter, State: provisioner.StateUnsupported, Reason: "no NodePool is named to replace nodes of pool batch, and none suits: batch has no on-demand instances"},
		},
		"placeholders": {
			args: []string{"--provisioner=placeholder", "--fallback-selector=tier=on-demand"},
			want: interruption.Replacement{Backend: provisioner.Placeholder, State: provisioner.StateRequested, Name: "placeholder-i-0123456789abcdef0", Pool: "tier=on-demand"},
		},
		"room elsewhere": {
			args: []string{"--replacement=when-needed"}, objects: map[string][]string{"nodepools": {spotOnly, onDemand}, "nodes": {roomy}},
			want: interruption.Replacement{Backend: provisioner.Spare, State: provisioner.StateReady, Reason: "the pods fit on nodes that are there"},
		},
		"switched off": {
			args: []string{"--provisioner=none"},
			want: interruption.Replacement{Backend: provisioner.None, State: provisioner.StateUnsupported, Reason: "replacement is switched off"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := settingsOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: append([]string{modeDrain, "--dry-run"}, tt.args...)}}}})
			if err != nil {
				t.Fatal(err)
			}
			conf, wrote := listServer(t, tt.objects)
			clients, err := connectDaemon(conf, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := checkPermissions(t.Context(), clients.own, permissionsOf(cfg, "")); err != nil {
				t.Errorf("permissions of a dry run cannot be asked about: %v", err)
			}
			request := dryRequests(backing{
				cfg: cfg, clients: clients, taken: offerings.New(), logger: zerolog.Nop(),
				node: func(string) (*corev1.Node, bool) { return nil, false },
			})
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"karpenter.sh/nodepool": "batch"}}}
			rec := interruption.Record{Kind: interruption.SpotInterruption, Instance: "i-0123456789abcdef0", Received: time.Now(), Deadline: time.Now().Add(2 * time.Minute)}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", UID: "web", Controller: new(true)}}}}
			pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse("1")}}}}
			for range 2 { // the fallback pool has room for one node
				got, err := request(t.Context(), node, rec, provisioner.Need{Moving: []*corev1.Pod{pod}})
				if err != nil || got != tt.want {
					t.Errorf("got %+v, %v\nwant %+v", got, err, tt.want)
				}
				rec.Instance = rec.Instance[:len(rec.Instance)-1] + "1"
				tt.want.Name = strings.Replace(tt.want.Name, "def0", "def1", 1)
			}
			if w := wrote(); len(w) != 0 {
				t.Errorf("it wrote: %v", w)
			}
		})
	}
}
