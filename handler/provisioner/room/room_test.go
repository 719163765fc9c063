package room

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// cluster is what the API server has. It answers in pages.
type cluster struct {
	nodes []corev1.Node
	pods  []corev1.Pod
	mu    sync.Mutex // a check and a snapshot list at the same time
	lists []metav1.ListOptions
	fail  error
	hangs bool // lists of Nodes and pods do not answer
}

// answer is as the API server's: none until ctx is done if it hangs.
// there: the pods fit.
var there = provisioner.Fit{Known: true}

func (c *cluster) answer(ctx context.Context) error {
	if c.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return c.fail
}

type clusterNodes struct{ *cluster }

var (
	_ Pods  = (*cluster)(nil)
	_ Nodes = clusterNodes{}
)

func page[T any](all []T, o metav1.ListOptions) ([]T, metav1.ListMeta) {
	from, _ := strconv.Atoi(o.Continue)
	to := len(all)
	if o.Limit > 0 {
		to = min(to, from+int(o.Limit))
	}
	meta := metav1.ListMeta{}
	if to < len(all) {
		meta.Continue = strconv.Itoa(to)
	}
	return all[from:to], meta
}

func (c *cluster) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	c.mu.Lock()
	c.lists = append(c.lists, o)
	c.mu.Unlock()
	if err := c.answer(ctx); err != nil {
		return nil, err
	}
	var pods []corev1.Pod
	for _, p := range c.pods {
		if o.FieldSelector != "spec.nodeName=" || p.Spec.NodeName == "" {
			pods = append(pods, p)
		}
	}
	items, meta := page(pods, o)
	return &corev1.PodList{ListMeta: meta, Items: items}, nil
}

func (c clusterNodes) List(_ context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	items, meta := page(c.nodes, o)
	return &corev1.NodeList{ListMeta: meta, Items: items}, nil
}

// room is of a cluster whose Nodes are also known to the daemon.
func room(c *cluster) *Room {
	return New(Options{Pods: c, Nodes: clusterNodes{c}, Node: func(name string) (*corev1.Node, bool) {
		for i := range c.nodes {
			if c.nodes[i].Name == name {
				return &c.nodes[i], true
			}
		}
		return nil, false
	}})
}

// aNode has 4 processors.
func aNode(name string, change ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: "a"}}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("10")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, f := range change {
		f(&n)
	}
	return n
}

// aPod is a pod of a ReplicaSet, on the node.
func aPod(name, node, cpu string, change ...func(*corev1.Pod)) corev1.Pod {
	yes := true
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "web", Controller: &yes}},
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
	for _, f := range change {
		f(&p)
	}
	return p
}

func doomed(name string) *corev1.Node {
	n := aNode(name, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	return &n
}

func TestAsTheSchedulerWould(t *testing.T) {
	hostname := corev1.LabelHostname
	anti := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: hostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		}}}
	}
	claim := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	}
	taint := func(effect corev1.TaintEffect) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "team", Effect: effect}} }
	}
	tests := map[string]struct {
		node   corev1.Node
		others []corev1.Pod // on node, or waiting
		moving []corev1.Pod
		why    string // "" if they fit
	}{
		"they fit":                  {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "2"), aPod("2", "gone", "2")}, ""},
		"too large together":        {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "3"), aPod("2", "gone", "2")}, "no room for default/2"},
		"others are there":          {aNode("n"), []corev1.Pod{aPod("o", "n", "3")}, []corev1.Pod{aPod("1", "gone", "2")}, "no room"},
		"too many pods":             {aNode("n", func(n *corev1.Node) { n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("1") }), []corev1.Pod{aPod("o", "n", "0")}, []corev1.Pod{aPod("1", "gone", "1")}, "no room"},
		"others wait":               {aNode("n"), []corev1.Pod{aPod("o", "", "3")}, []corev1.Pod{aPod("1", "gone", "2")}, "no room"},
		"a device that no node has": {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests["x/gpu"] = resource.MustParse("1") })}, "no room"},
		"cordoned":                  {*doomed("n"), nil, []corev1.Pod{aPod("1", "gone", "1")}, "no room"},
		"interrupted":               {aNode("n", func(n *corev1.Node) { n.Annotations = map[string]string{interruption.Annotation: "{}"} }), nil, []corev1.Pod{aPod("1", "gone", "1")}, "no room"},
		"not Ready":                 {aNode("n", func(n *corev1.Node) { n.Status.Conditions = nil }), nil, []corev1.Pod{aPod("1", "gone", "1")}, "no room"},
		"a taint":                   {aNode("n", taint(corev1.TaintEffectNoSchedule)), nil, []corev1.Pod{aPod("1", "gone", "1")}, "no room"},
		"a taint that only advises": {aNode("n", taint(corev1.TaintEffectPreferNoSchedule)), nil, []corev1.Pod{aPod("1", "gone", "1")}, ""},
		"a taint that is tolerated": {aNode("n", taint(corev1.TaintEffectNoSchedule)), nil, []corev1.Pod{aPod("1", "gone", "1", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: "team", Operator: corev1.TolerationOpExists}}
		})}, ""},
		"a selector":                      {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"team": "blue"} })}, "no room"},
		"a volume of the zone":            {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", claim)}, ""},
		"a volume of another zone":        {aNode("n", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "b" }), nil, []corev1.Pod{aPod("1", "gone", "1", claim)}, "no room"},
		"anti-affinity":                   {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", anti)}, "default/1 has required affinity"},
		"anti-affinity of who is there":   {aNode("n"), []corev1.Pod{aPod("o", "n", "0", anti)}, []corev1.Pod{aPod("1", "gone", "1")}, "no room"},
		"that of another namespace's pod": {aNode("n"), []corev1.Pod{aPod("o", "n", "0", anti, func(p *corev1.Pod) { p.Namespace = "other" })}, []corev1.Pod{aPod("1", "gone", "1")}, ""},
		"spread": {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{WhenUnsatisfiable: corev1.DoNotSchedule}}
		})}, "must be spread"},
		"a sidecar's port of the node": {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 80}}}}
		})}, "port of its node"},
		"a port of the node": {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} })}, "port of its node"},
		"devices":            {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} })}, "claims devices"},
		"another scheduler":  {aNode("n"), nil, []corev1.Pod{aPod("1", "gone", "1", func(p *corev1.Pod) { p.Spec.SchedulerName = "own" })}, "a scheduler of its own"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			gone := doomed("gone")
			r := room(&cluster{nodes: []corev1.Node{*gone, tt.node}, pods: append(tt.others, tt.moving...)})
			var moving []*corev1.Pod
			for i := range tt.moving {
				moving = append(moving, plan.Lean(&tt.moving[i])) // as the daemon has them
			}
			fit, err := r.Fit(t.Context(), gone, moving)
			if err != nil || !fit.Known || (fit.Against == "") != (tt.why == "") || !strings.Contains(fit.Against, tt.why) {
				t.Errorf("%+v, %v, want %q", fit, err, tt.why)
			}
		})
	}
}

// A burst shares a snapshot and what there is; the next snapshot knows what was promised.
func TestNothingIsPromisedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{nodes: []corev1.Node{aNode("n"), aNode("m")}}
		for i := range 5 {
			name := fmt.Sprint("gone-", i)
			c.nodes = append(c.nodes, *doomed(name))
			c.pods = append(c.pods, aPod("of-"+name, name, "2"))
		}
		r := room(c)
		ask := func(i int) bool {
			t.Helper()
			fit, err := r.Fit(t.Context(), &c.nodes[i+2], []*corev1.Pod{&c.pods[i]})
			if err != nil {
				t.Fatal(err)
			}
			return fit == there
		}
		if !ask(0) || !ask(1) || len(c.lists) != 1 {
			t.Errorf("want room for two, and one snapshot: %d", len(c.lists))
		}
		time.Sleep(freshFor + time.Second)
		if !ask(2) || !ask(3) || ask(4) || len(c.lists) != 2 {
			t.Errorf("want room for two more and no fifth, by a second snapshot: %d", len(c.lists))
		}
		c.pods = c.pods[1:] // the first has moved, and its replacement pod is not there
		r.Forget("gone-0")
		time.Sleep(freshFor + time.Second)
		r.Forget("gone-4")
		fit, err := r.Fit(t.Context(), &c.nodes[6], []*corev1.Pod{&c.pods[3]})
		if err != nil || fit != there {
			t.Errorf("no room where one has left: %v", err)
		}
		c.nodes[3].Spec.Unschedulable = false // cancelled: its pods stay
		time.Sleep(freshFor + time.Second)
		c.nodes = append(c.nodes, *doomed("gone-5"))
		if _, err := r.Fit(t.Context(), &c.nodes[7], nil); err != nil || r.promises["gone-1"] != nil {
			t.Errorf("a node that stays keeps what it was promised: %v", err)
		}
	})
}

// A node that is interrupted after the snapshot has no room.
func TestNoRoomWhereDangerIs(t *testing.T) {
	c := &cluster{nodes: []corev1.Node{aNode("n"), *doomed("gone"), *doomed("gone-too")}, pods: []corev1.Pod{aPod("1", "gone", "1"), aPod("2", "gone-too", "1")}}
	r := room(c)
	if fit, err := r.Fit(t.Context(), &c.nodes[1], []*corev1.Pod{&c.pods[0]}); fit != there || err != nil {
		t.Fatalf("no room: %v", err)
	}
	c.nodes[0].Spec.Unschedulable = true
	if fit, _ := r.Fit(t.Context(), &c.nodes[2], []*corev1.Pod{&c.pods[1]}); fit.Against == "" {
		t.Errorf("room on a node that is cordoned")
	}
}

// The node itself is no room, also before it is cordoned.
func TestNoRoomWhereThePodsAre(t *testing.T) {
	c := &cluster{nodes: []corev1.Node{aNode("n")}, pods: []corev1.Pod{aPod("1", "n", "1")}}
	if fit, err := room(c).Fit(t.Context(), &c.nodes[0], []*corev1.Pod{&c.pods[0]}); fit.Against == "" || err != nil {
		t.Errorf("%+v, %v", fit, err)
	}
}

// A promise stands until one of the pods, or its replacement pod, finds no place.
func TestPromiseIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{nodes: []corev1.Node{aNode("n"), *doomed("gone")}, pods: []corev1.Pod{aPod("1", "gone", "1")}}
		r := room(c)
		want := func(want string) {
			t.Helper()
			fit, err := r.Fit(t.Context(), &c.nodes[1], []*corev1.Pod{&c.pods[0]})
			if err != nil || !fit.Known || (fit.Against == "") != (want == "") || !strings.Contains(fit.Against, want) {
				t.Errorf("%+v, %v, want %q", fit, err, want)
			}
		}
		refused := func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		}
		want("")
		c.pods = append(c.pods, aPod("replacement", "", "1"), aPod("other", "", "1", refused, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "other" }))
		want("")
		time.Sleep(2 * waitingFor)
		want("") // the scheduler has not looked, and of another it says nothing
		refused(&c.pods[1])
		time.Sleep(2 * waitingFor)
		want("default/replacement finds no place")
		c.pods = c.pods[:1]
		time.Sleep(2 * waitingFor)
		want("default/replacement finds no place")
		r.Forget("gone")
		want("")
		for _, o := range c.lists[1:] {
			if o.FieldSelector != "spec.nodeName=" && o.Limit == 0 {
				t.Errorf("listed %+v", o)
			}
		}
	})
}

func TestInPages(t *testing.T) {
	c := &cluster{}
	for i := range nodesPerPage + 1 {
		c.nodes = append(c.nodes, aNode(fmt.Sprint("n-", i), func(n *corev1.Node) { n.Spec.Unschedulable = i < nodesPerPage }))
	}
	for i := range podsPerPage + 1 {
		c.pods = append(c.pods, aPod(fmt.Sprint("p-", i), fmt.Sprint("n-", i%nodesPerPage), "0"))
	}
	c.pods[podsPerPage] = aPod("last", fmt.Sprint("n-", nodesPerPage), "2")
	moving := aPod("1", "n-0", "3")
	r := room(c)
	fit, err := r.Fit(t.Context(), &c.nodes[0], []*corev1.Pod{&moving})
	if err != nil || fit.Against == "" || len(c.lists) != 2 {
		t.Errorf("%+v, %v, after %d pages of pods, want no room by the last of two", fit, err, len(c.lists))
	}
	c.fail = errors.New("away")
	r = room(c)
	if _, err := r.Fit(t.Context(), &c.nodes[0], []*corev1.Pod{&moving}); !errors.Is(err, c.fail) {
		t.Errorf("%v, want the error", err)
	}
}

// A burst asks while the lists hang: nobody waits for them, a promise that stands goes on
// standing, and a failure is remembered. Everybody is notified of the end.
func TestNobodyWaitsForALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{nodes: []corev1.Node{aNode("n")}}
		const burst = 50
		for i := range burst {
			c.nodes = append(c.nodes, *doomed(fmt.Sprint("gone-", i)))
		}
		r := room(c)
		notified := map[string]int{}
		r.opts.Notify = func(node string) { notified[node]++ }
		pod := aPod("1", "gone-0", "1")
		ask := func(i int) (fit provisioner.Fit, err error) {
			t.Helper()
			began := time.Now()
			fit, err = r.Fit(t.Context(), &c.nodes[i+1], []*corev1.Pod{&pod})
			if took := time.Since(began); took > 0 {
				t.Errorf("node %d waited %s for its answer", i, took)
			}
			return fit, err
		}
		unknown := func(i int) {
			t.Helper()
			if fit, err := ask(i); fit.Known || err != nil {
				t.Errorf("%+v, %v; want not known yet", fit, err)
			}
		}
		unknown(0)
		synctest.Wait()
		if fit, err := ask(0); fit != there || err != nil || notified["gone-0"] != 1 {
			t.Fatalf("%+v, %v, notified %d times", fit, err, notified["gone-0"])
		}
		time.Sleep(freshFor)
		synctest.Wait()

		c.hangs = true
		if fit, err := ask(0); fit != there || err != nil {
			t.Errorf("%+v, %v, want the promise kept while its check goes on", fit, err)
		}
		for i := range burst - 1 {
			unknown(i + 1)
		}
		time.Sleep(readTimeout)
		synctest.Wait()
		if lists := len(c.lists); lists != 3 {
			t.Errorf("%d lists of pods, want the first, one check, and one snapshot", lists)
		}
		for i := range burst {
			if _, err := ask(i); !errors.Is(err, context.DeadlineExceeded) || i > 0 && notified[fmt.Sprint("gone-", i)] != 1 {
				t.Errorf("%v, notified %d times, want the error at once", err, notified[fmt.Sprint("gone-", i)])
			}
		}
		c.hangs = false
		time.Sleep(failedFor)
		unknown(1)
		synctest.Wait()
		if fit, err := ask(1); fit != there || err != nil {
			t.Errorf("%+v, %v, want a new snapshot after a while", fit, err)
		}
	})
}

// Pods that fit together are found to fit, whichever is asked about first.
func TestLargestFirst(t *testing.T) {
	for _, sizes := range [][]string{{"2", "2", "4"}, {"1", "1", "3", "3"}, {"1", "3", "1", "3"}} {
		c := &cluster{nodes: []corev1.Node{aNode("n"), aNode("m"), *doomed("gone")}}
		var pods []*corev1.Pod
		for i, size := range sizes {
			c.pods = append(c.pods, aPod(fmt.Sprint("p-", i), "gone", size))
		}
		for i := range c.pods {
			pods = append(pods, &c.pods[i])
		}
		if fit, err := room(c).Fit(t.Context(), &c.nodes[2], pods); fit != there || err != nil {
			t.Errorf("pods of %v: %+v, %v; want room on two nodes of 4", sizes, fit, err)
		}
	}
}

// A node with more room left scores higher, whatever was placed there or has gone.
func TestScoreFollowsWhatIsPlaced(t *testing.T) {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi")}
	}
	s := NewSpace(list("4"))
	whole := s.Score(Measure{})
	s.Reserve(list("1"))
	less := s.Score(Measure{})
	s.GiveBack(list("1"))
	if again := s.Score(Measure{}); less >= whole || again != whole {
		t.Errorf("scores %v, %v once a pod is there, and %v once it has gone", whole, less, again)
	}
}

// Whom a pod keeps away is looked for in its own namespace, in those that are named, or by a selector in any.
func TestNamespacesOfTerms(t *testing.T) {
	for name, tt := range map[string]struct {
		named    []string
		selector *metav1.LabelSelector
		want     []string
	}{
		"its own":             {nil, nil, []string{"shop"}},
		"named":               {[]string{"a", "b"}, nil, []string{"a", "b"}},
		"selected":            {nil, &metav1.LabelSelector{}, nil},
		"selected, and named": {[]string{"a"}, &metav1.LabelSelector{}, nil},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone", Namespaces: tt.named, NamespaceSelector: tt.selector}},
		}}
		if got := AntiTerms(pod)[0].namespaces; !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
