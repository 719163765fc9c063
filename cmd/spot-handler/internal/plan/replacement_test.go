package plan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// pool is a NodePool with on-demand instances in zone a, and spot ones if spot is true.
func pool(t *testing.T, name, capacity, limits string) *unstructured.Unstructured {
	t.Helper()
	text := fmt.Sprintf(`
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: %s}
spec:
  limits: %s
  template:
    metadata: {labels: {tier: %s}}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [%s]}
        - {key: topology.kubernetes.io/zone, operator: In, values: [a, b]}
      taints: [{key: dedicated, effect: NoSchedule}]
status: {conditions: [{type: Ready, status: "True"}]}
`, name, limits, name, capacity)
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func asking(name, cpu string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	return p
}

func claimedNode(name string) (*corev1.Node, interruption.Record) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"karpenter.sh/nodepool": "batch", "karpenter.sh/capacity-type": "spot", corev1.LabelTopologyZone: "b", corev1.LabelArchStable: "arm64",
		"tier": "batch", "example.com/rack": "7",
	}}}
	end := time.Now().Add(2 * time.Minute)
	return node, interruption.Record{Kind: interruption.SpotInterruption, Instance: "i-" + name, Received: time.Now(), Deadline: end}
}

// karpenters is a daemon over an API server that has these objects of Karpenter.
func karpenters(t *testing.T, pools ...*unstructured.Unstructured) *Daemon {
	t.Helper()
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodePoolList"}}
	for _, pool := range pools {
		list.Items = append(list.Items, *pool)
	}
	known, err := list.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	requests := &Requests{}
	client, err := dynamic.NewForConfigAndClient(&rest.Config{Host: "http://server"}, &http.Client{Transport: requests.Over(promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		body := `{"apiVersion":"v1","kind":"List","items":[]}`
		if strings.HasSuffix(r.URL.Path, "/nodepools") {
			body = string(known)
		}
		for _, pool := range pools {
			if strings.HasSuffix(r.URL.Path, "/nodepools/"+pool.GetName()) {
				text, _ := pool.MarshalJSON()
				body = string(text)
			}
		}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}))})
	if err != nil {
		t.Fatal(err)
	}
	b := karpenter.New(karpenter.Options{FallbackNodePools: map[string]string{}, Dynamic: client, Offerings: offerings.New(), Logger: zerolog.Nop()})
	return &Daemon{Provisioner: provisioner.New(provisioner.Options{Choice: provisioner.Auto, Backends: []provisioner.Backend{b}}), Pools: b, Requests: requests}
}

func (d *Daemon) ask(t *testing.T, name string, need provisioner.Need) Lost {
	t.Helper()
	node, rec := claimedNode(name)
	l := Lost{Node: node, record: rec}
	if err := d.request(t.Context(), &l, need); err != nil {
		t.Fatal(err)
	}
	return l
}

// What is planned is what would be asked for, with the reasons, and what has no place in it.
func TestReplacement(t *testing.T) {
	p := karpenters(t, pool(t, "batch", "spot", "{}"), pool(t, "fallback", "on-demand", "{}"), pool(t, "zz", "on-demand", "{}"))
	picky := asking("picky", "1")
	picky.Spec.NodeSelector = map[string]string{"tier": "gold"}
	got := p.ask(t, "n", provisioner.Need{Moving: []*corev1.Pod{asking("web", "1500m"), picky}, Daemons: []*corev1.Pod{asking("agent", "250m")}})
	want := Replacement{
		Backend: "karpenter", State: "Requested", Name: "fallback-i-n", Pool: "fallback",
		Why:  "it comes first by name, unlike zz; without 1 of 2 pods, which cannot run in pool fallback: default/picky needs tier=gold",
		Pods: 1, Daemons: 1, Requests: corev1.ResourceList{"cpu": resource.MustParse("1750m"), "pods": resource.MustParse("2")},
		Requirements: []string{
			"karpenter.sh/nodepool In fallback", "karpenter.sh/capacity-type In on-demand", "topology.kubernetes.io/zone In a,b",
		},
		NoPlace: []string{"default/picky: needs tier=gold"},
		Others:  []OtherPool{{Name: "zz", Why: "it comes after fallback"}, {Name: "batch", Why: "has no on-demand instances"}},
	}
	if diff := cmp.Diff(&want, got.Replacement); diff != "" {
		t.Errorf("replacement (-want +got):\n%s", diff)
	}
	if got.Capacity != plan.PendingCapacity || got.Becomes == nil {
		t.Fatalf("capacity %v, becomes %v", got.Capacity, got.Becomes)
	}
	labels := map[string]string{
		corev1.LabelHostname: "fallback-i-n", "karpenter.sh/nodepool": "fallback", "karpenter.sh/capacity-type": "on-demand", "tier": "fallback",
		corev1.LabelTopologyZone: "b", corev1.LabelArchStable: "arm64", "example.com/rack": "7",
	}
	for key, value := range labels {
		if got.Becomes.Labels[key] != value {
			t.Errorf("label %s is %q, want %q", key, got.Becomes.Labels[key], value)
		}
	}
	if cpu := got.Becomes.Status.Allocatable.Cpu(); cpu.String() != "1750m" || len(got.Becomes.Spec.Taints) != 1 {
		t.Errorf("becomes a node of %s, tainted %v", cpu, got.Becomes.Spec.Taints)
	}
}

// Several nodes at once: the pool's limits, of resources and of nodes, hold as many as they hold.
func TestLimitsHoldAllOrSome(t *testing.T) {
	for name, tt := range map[string]struct{ limits, why string }{
		"processors": {"{cpu: 5}", "limit of NodePool fallback leaves no room (cpu: 0 used, 6 asked for, limit 5)"},
		"nodes":      {"{nodes: 2}", "limit of NodePool fallback leaves no room (nodes: 0 used, 3 asked for, limit 2)"},
	} {
		t.Run(name, func(t *testing.T) {
			p := karpenters(t, pool(t, "batch", "spot", "{}"), pool(t, "fallback", "on-demand", tt.limits))
			for i, want := range []plan.Capacity{plan.PendingCapacity, plan.PendingCapacity, plan.NoCapacity} {
				got := p.ask(t, fmt.Sprint("n", i), provisioner.Need{Moving: []*corev1.Pod{asking(fmt.Sprint("web-", i), "2")}})
				if got.Capacity != want {
					t.Errorf("node %d: %+v", i, got)
				}
				if want == plan.NoCapacity && (!strings.Contains(got.Replacement.Why, tt.why) || len(got.Replacement.NoPlace) != 1 || got.Becomes != nil) {
					t.Errorf("node %d: %+v, want %q", i, got, tt.why)
				}
			}
		})
	}
}

func TestBoot(t *testing.T) {
	known := map[string][]time.Duration{"fallback": {50 * time.Second, 40 * time.Second, 90 * time.Second}, "batch": {time.Minute}}
	for name, tt := range map[string]struct {
		pools, own []string
		want       Assumption
	}{
		"of its pool":          {[]string{"fallback"}, []string{"batch"}, Assumption{Value: 50, From: "median of 3 NodeClaims of fallback"}},
		"of the nodes' pool":   {[]string{"new"}, []string{"batch"}, Assumption{Value: 60, From: "median of 1 NodeClaim of batch, as new has none"}},
		"of several":           {[]string{"fallback", "batch"}, []string{"", ""}, Assumption{Value: 60, From: "median of 4 NodeClaims of fallback, batch"}},
		"nothing is asked for": {nil, nil, Assumption{}},
		"nobody knows":         {[]string{"new"}, []string{"old"}, Assumption{}},
		"away":                 {[]string{"away"}, []string{"batch"}, Assumption{}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Daemon{Boots: func(_ context.Context, pool string) ([]time.Duration, error) {
				if pool == "away" {
					return nil, errors.New("away")
				}
				return known[pool], nil
			}}
			var in Input
			var lost []*lostNode
			for i, pool := range tt.pools {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"karpenter.sh/nodepool": tt.own[i]}}}
				lost = append(lost, &lostNode{Lost: Lost{Node: node, Capacity: plan.PendingCapacity, Replacement: &Replacement{Backend: provisioner.Karpenter, Pool: pool}}})
			}
			d.boot(t.Context(), &in, lost)
			if in.Assumptions.Boot != tt.want || (len(in.Unread) > 0) != (name == "away") {
				t.Errorf("%+v, unread %q; want %+v", in.Assumptions.Boot, in.Unread, tt.want)
			}
		})
	}
}
