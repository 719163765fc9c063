package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/karpenter"
)

var onDemand = nodes.OnDemandLabels[0]

// offered are spot nodes a-0, a-1 of pool batch, and so on, with as many of each type and zone as
// the names say.
func offered(counts map[string]int) (list []*corev1.Node) {
	for name, count := range counts {
		kind, zone, _ := strings.Cut(name, "/")
		for i := range count {
			list = append(list, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%s-%d", kind, zone, i),
				Labels: map[string]string{
					"karpenter.sh/nodepool": "batch", "karpenter.sh/capacity-type": "spot",
					corev1.LabelInstanceTypeStable: kind, corev1.LabelTopologyZone: zone,
				},
			}})
		}
	}
	return list
}

// on puts the pods on nodes, in turn.
func on(list []Pod, nodes ...string) []Pod {
	for i := range list {
		list[i].Spec.NodeName = nodes[i%len(nodes)]
	}
	return list
}

func TestChecksOfCapacity(t *testing.T) {
	nodes := offered(map[string]int{"m5/a": 2, "m5/b": 1})
	batch := on(of("deployment/web", 4, unchanged), "m5-a-0", "m5-a-1", "m5-b-0")
	outlook := func(change func(*karpenter.Outlook)) Snapshot {
		o := karpenter.Outlook{Pool: "batch", Named: "od", Fallbacks: []string{"od"}}
		change(&o)
		return Snapshot{MaxShare: 100, Outlooks: []karpenter.Outlook{o}}
	}
	daemon := func(node string) Daemon {
		return Daemon{Owned: Owned{"ops", "deployment/spot-handler"}, Node: node, Fleet: true, Queue: true, Ready: true, Nodes: labels.Everything()}
	}
	fromChart := func(d Daemon) Daemon { d.Release = "r"; return d }
	safe := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "safe"}}
	for name, tt := range map[string]struct {
		s    Snapshot
		want []string // id, object, pods, fix
	}{
		"all is well": {outlook(func(*karpenter.Outlook) {}), nil},
		"missing": {outlook(func(o *karpenter.Outlook) { o.Missing, o.Instead, o.Fallbacks = "gone", "best", nil }),
			[]string{"SH201 nodepool/batch 4 kubectl annotate nodepool batch --overwrite spot-handler/fallback-nodepool=best"}},
		"none suits": {outlook(func(o *karpenter.Outlook) { o.Missing, o.CapacityTypes, o.Fallbacks = "none", "/x/-", nil }),
			[]string{`SH201 nodepool/batch 4 kubectl patch nodepool batch --type=json -p '[{"op":"add","path":"/x/-","value":"on-demand"}]'`}},
		"none suits, and values are not listed": {outlook(func(o *karpenter.Outlook) { o.Missing, o.Fallbacks = "none", nil }),
			[]string{"SH201 nodepool/batch 4 in the manifest of NodePool batch: allow on-demand as karpenter.sh/capacity-type"}},
		"of no use": {outlook(func(o *karpenter.Outlook) { o.Refused, o.Instead, o.Fallbacks = "is not Ready", "best", nil }),
			[]string{"SH202 nodepool/batch 4 kubectl annotate nodepool batch --overwrite spot-handler/fallback-nodepool=best"}},
		"of no use, without another": {outlook(func(o *karpenter.Outlook) { o.Refused, o.Fallbacks = "is not Ready", nil }),
			[]string{"SH202 nodepool/batch 4 kubectl describe nodepool od"}},
		"on spot": {outlook(func(o *karpenter.Outlook) { o.SpotOnly, o.CapacityTypes = true, "/x/-" }),
			[]string{`SH203 nodepool/batch 4 kubectl patch nodepool od --type=json -p '[{"op":"add","path":"/x/-","value":"on-demand"}]'`}},
		"in another zone": {outlook(func(o *karpenter.Outlook) { o.Barred, o.ZoneValues = []string{"a", "c"}, "/z/-" }),
			[]string{`SH204 nodepool/batch 3 kubectl patch nodepool od --type=json -p '[{"op":"add","path":"/z/-","value":"a"},{"op":"add","path":"/z/-","value":"c"}]'`}},
		"too small": {outlook(func(o *karpenter.Outlook) {
			o.Largest, o.Sharing, o.Unplaced, o.Raise = offerings.Offering{Type: "m5", Zone: "a"}, 2, 1, corev1.ResourceList{"cpu": resource.MustParse("16")}
		}), []string{`SH205 nodepool/batch 3 kubectl patch nodepool od --type=merge -p '{"spec":{"limits":{"cpu":"16"}}}'`}},
		"loses many nodes": {func() Snapshot {
			s := outlook(func(*karpenter.Outlook) {})
			s.TooMany = map[string]offerings.Losses{"batch": {Lost: 3, Standing: 3}, "of EKS": {Lost: 9}}
			return s
		}(), []string{"SH209 nodepool/batch 4 in the manifest of NodePool batch: allow more instance types and zones"}},
		"loses many nodes, and others are elsewhere": {func() Snapshot {
			s := outlook(func(o *karpenter.Outlook) { o.Elsewhere, o.OwnZones = []string{"c", "d"}, "/z/-" })
			s.TooMany = map[string]offerings.Losses{"batch": {Lost: 3, Standing: 3}}
			return s
		}(), []string{`SH209 nodepool/batch 4 kubectl patch nodepool batch --type=json -p '[{"op":"add","path":"/z/-","value":"c"},{"op":"add","path":"/z/-","value":"d"}]'`}},
		"a large share": {Snapshot{MaxShare: 70},
			[]string{`SH206 deployment/web 3 kubectl -n shop patch deployment web -p '{"spec":{"template":{"spec":{"topologySpreadConstraints":[{"topologyKey":"topology.kubernetes.io/zone","maxSkew":1,"whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":{"app":"web"}}}]}}}}'`}},
		"a large share twice": {Snapshot{MaxShare: 10, Pods: on(of("deployment/web", 2, unchanged), "m5-a-0", "m5-b-0")},
			[]string{`SH206 deployment/web 1 kubectl -n shop patch deployment web -p '{"spec":{"template":{"spec":{"topologySpreadConstraints":[{"topologyKey":"topology.kubernetes.io/zone","maxSkew":1,"whenUnsatisfiable":"ScheduleAnyway","labelSelector":{"matchLabels":{"app":"web"}}}]}}}}'`}},
		"a share that is stated":    {Snapshot{MaxShare: 75}, nil},
		"a share of more elsewhere": {Snapshot{MaxShare: 50, Replicas: map[Owned]int{{"shop", "deployment/web"}: 6}}, nil},
		"a Job":                     {Snapshot{MaxShare: 50, Pods: on(of("job/once", 2, unchanged), "m5-a-0")}, nil},
		"all on spot": {Snapshot{MaxShare: 100, Pods: on(of("statefulset/db", 2, unchanged), "m5-a-0", "m5-b-0"), OnDemand: onDemand},
			[]string{`SH207 statefulset/db 2 kubectl -n shop patch statefulset db -p '{"spec":{"template":{"spec":{"nodeSelector":{"karpenter.sh/capacity-type":"on-demand"}}}}}'`}},
		"all but one on spot":  {Snapshot{MaxShare: 100, Pods: on(of("statefulset/db", 2, unchanged), "m5-a-0", "safe")}, nil},
		"the only one on spot": {Snapshot{MaxShare: 100, Pods: on(of("statefulset/db", 1, unchanged), "m5-a-0")}, nil},
		"the daemon on spot": {Snapshot{MaxShare: 100, Daemons: []Daemon{daemon("m5-a-0"), daemon("m5-b-0")}},
			[]string{"SH208 deployment/spot-handler 2 in the manifest of deployment/spot-handler: node affinity to nodes that are not spot"}},
		"the chart's daemon on spot": {Snapshot{MaxShare: 100, Daemons: []Daemon{fromChart(daemon("m5-a-0")), fromChart(daemon(""))}},
			[]string{`SH208 deployment/spot-handler 1 helm upgrade r deploy/chart --namespace ops --reset-then-reuse-values --set-string 'spotLabels.karpenter\.sh/capacity-type=spot' --set controller.nodeSelector=null,controller.affinity=null`}},
		"the daemon on spot, like all nodes": {Snapshot{MaxShare: 100, Nodes: nodes, Daemons: []Daemon{daemon("m5-a-0"), daemon("m5-b-0")}}, nil},
		"one daemon off spot":                {Snapshot{MaxShare: 100, Daemons: []Daemon{daemon("m5-a-0"), daemon("safe")}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.s.Nodes == nil {
				tt.s.Nodes = append(slices.Clone(nodes), safe)
			}
			tt.s.Grace = 100 * time.Second
			tt.s.Deployments = map[Owned]*Deployment{{"shop", "deployment/web"}: {Replicas: 4, MinReady: 5}}
			if tt.s.Pods == nil {
				tt.s.Pods = batch
			}
			if tt.s.Replicas == nil {
				tt.s.Replicas = map[Owned]int{}
				for _, p := range tt.s.Pods {
					tt.s.Replicas[p.Owner]++
				}
			}
			var got []string
			for _, f := range Of(tt.s) {
				got = append(got, fmt.Sprint(f.ID, " ", f.Object, " ", f.Pods, " ", f.Fix))
				if f.What == "" || f.Why == "" {
					t.Errorf("incomplete: %+v", f)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestChecksOfCoverage(t *testing.T) {
	nodes, ignored := offered(map[string]int{"m5/a": 2}), offered(map[string]int{"m5/a": 2})
	for _, n := range ignored {
		n.Labels[interruption.IgnoreLabel] = "true"
	}
	marker := func(node string) Daemon {
		return Daemon{Owned: Owned{"ops", "daemonset/imds"}, Account: "imds", Node: node, Ready: true, Nodes: labels.Everything()}
	}
	drainer := Daemon{Owned: Owned{"ops", "deployment/drain"}, Account: "drain", Named: true, Fleet: true, Drains: true, Ready: true, Nodes: labels.Everything()}
	with := func(d Daemon, change func(*Daemon)) Daemon { change(&d); return d }
	queue := with(drainer, func(d *Daemon) { d.Queue = true })
	none := with(queue, func(d *Daemon) { d.Nodes = labels.Nothing() })
	ours := []Daemon{queue}
	evict, create := Permission{Verb: "create", Resource: "pods/eviction", ToStart: true}, Permission{Verb: "create", Group: "karpenter.sh", Resource: "nodeclaims"}
	lease := Permission{Verb: "get", Group: "coordination.k8s.io", Resource: "leases", Namespace: "ops", ToStart: true}
	const roles = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":`
	target := func(ip bool, delay time.Duration) []Balanced {
		return []Balanced{{Owned: Owned{"shop", "service/web"}, Selector: map[string]string{"app": "web"}, IP: ip, Annotation: "a", Attributes: fmt.Sprintf("x=1,%s=%.0f", delayAttribute, delay.Seconds())}}
	}
	for name, tt := range map[string]struct {
		s    Snapshot
		want []string
	}{
		"not known": {Snapshot{}, nil},
		"by queue":  {Snapshot{Daemons: ours}, nil},
		"by each":   {Snapshot{Daemons: []Daemon{marker("m5-a-0"), marker("m5-a-1"), drainer}}, nil},
		"nobody": {Snapshot{Daemons: []Daemon{}},
			[]string{"SH301 nodes 4 2 spot nodes, such as m5-a-0, are watched by no pod of spot-handler: helm upgrade --install spot-handler deploy/chart --namespace spot-handler --create-namespace --set image.repository=REGISTRY/spot-handler"}},
		"nobody, of nodes to be ignored": {Snapshot{Daemons: []Daemon{}, Nodes: ignored}, nil},
		"another handler":                {Snapshot{Daemons: []Daemon{}, Others: []Other{{Owned: Owned{"", "daemonset/other"}}}}, nil},
		"one is left out": {Snapshot{Daemons: []Daemon{marker("m5-a-1"), drainer}},
			[]string{"SH301 daemonset/imds 2 the spot node m5-a-0 is watched by no pod of spot-handler: in the manifest of daemonset/imds: node affinity to these nodes too"}},
		"one is left out by the chart": {Snapshot{Daemons: []Daemon{with(marker("m5-a-1"), func(d *Daemon) { d.Release = "r" }), drainer}},
			[]string{`SH301 daemonset/imds 2 the spot node m5-a-0 is watched by no pod of spot-handler: helm upgrade r deploy/chart --namespace ops --reset-then-reuse-values --set-string 'spotLabels.karpenter\.sh/capacity-type=spot'`}},
		"marked, and not drained": {Snapshot{Daemons: []Daemon{marker("m5-a-0"), marker("m5-a-1")}},
			[]string{"SH301 nodes 4 2 spot nodes, such as m5-a-0, are watched by no pod of spot-handler that drains: helm upgrade --install spot-handler deploy/chart --namespace spot-handler --create-namespace --set image.repository=REGISTRY/spot-handler"}},
		"each drains its own": {Snapshot{Daemons: []Daemon{with(marker("m5-a-0"), func(d *Daemon) { d.Drains = true }), with(marker("m5-a-1"), func(d *Daemon) { d.Drains = true })}}, nil},
		"not selected": {Snapshot{Daemons: []Daemon{none}},
			[]string{"SH301 nodes 4 2 spot nodes, such as m5-a-0, are watched by no pod of spot-handler: on 2 it is not ready, only says what it would do, or is set to leave them alone: kubectl get pods --all-namespaces --selector app.kubernetes.io/name=spot-handler --output wide"}},
		"Karpenter's queue": {Snapshot{Daemons: ours, Others: []Other{{Owned: Owned{"kube-system", "deployment/karpenter"}, Karpenter: true, HasQueue: true, Variable: "INTERRUPTION_QUEUE"}}},
			[]string{"SH302 deployment/karpenter 0 has an interruption queue of its own: kubectl -n kube-system set env deployment/karpenter INTERRUPTION_QUEUE-"}},
		"Karpenter's queue, by argument": {Snapshot{Daemons: ours, Others: []Other{{Owned: Owned{"kube-system", "deployment/karpenter"}, Karpenter: true, HasQueue: true}}},
			[]string{"SH302 deployment/karpenter 0 has an interruption queue of its own: in the manifest of deployment/karpenter: no --interruption-queue"}},
		"Karpenter polls EC2": {Snapshot{Daemons: ours, Others: []Other{{Owned: Owned{"kube-system", "deployment/karpenter"}, Karpenter: true, PollsStatus: true}}},
			[]string{"SH309 deployment/karpenter 0 asks EC2 each minute for scheduled events, and drains their nodes at once: accept it, or take ec2:DescribeInstanceStatus from Karpenter's IAM role and restart it; it then misses failed status checks, too"}},
		"Karpenter without a queue takes no notices": {Snapshot{Daemons: []Daemon{}, Others: []Other{{Owned: Owned{"kube-system", "deployment/karpenter"}, Karpenter: true, PollsStatus: true}}},
			[]string{"SH301 nodes 4 2 spot nodes, such as m5-a-0, are watched by no pod of spot-handler: helm upgrade --install spot-handler deploy/chart --namespace spot-handler --create-namespace --set image.repository=REGISTRY/spot-handler"}},
		"two handlers": {Snapshot{Daemons: ours, Others: []Other{{Owned: Owned{"kube-system", "daemonset/nth"}}}},
			[]string{"SH303 daemonset/nth 0 is aws-node-termination-handler, beside spot-handler: kubectl -n kube-system delete daemonset nth"}},
		"permissions of an account that nobody has named": {Snapshot{Daemons: []Daemon{with(queue, func(d *Daemon) { d.Missing, d.Named = []Permission{evict}, false })}}, []string{
			"SH304 serviceaccount/drain 0 is not allowed to create pods/eviction: in the manifest of deployment/drain: an account that a ClusterRoleBinding of spot-handler names"}},
		"permissions": {Snapshot{Daemons: []Daemon{with(queue, func(d *Daemon) { d.Missing = []Permission{evict, create, lease} })}}, []string{
			`SH304 serviceaccount/drain 0 is not allowed to create pods/eviction, get leases.coordination.k8s.io in namespace ops: echo '{"apiVersion":"v1","items":[` +
				roles + `"ClusterRole","metadata":{"name":"drain-may-start"},"rules":[{"apiGroups":[""],"resources":["pods/eviction"],"verbs":["create"]}]},` +
				roles + `"ClusterRoleBinding","metadata":{"name":"drain-may-start"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"drain-may-start"},"subjects":[{"kind":"ServiceAccount","name":"drain","namespace":"ops"}]},` +
				roles + `"Role","metadata":{"name":"drain-may-start","namespace":"ops"},"rules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get"]}]},` +
				roles + `"RoleBinding","metadata":{"name":"drain-may-start","namespace":"ops"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"drain-may-start"},"subjects":[{"kind":"ServiceAccount","name":"drain","namespace":"ops"}]}],"kind":"List"}' | kubectl apply -f -`,
			`SH305 serviceaccount/drain 0 is not allowed to create nodeclaims.karpenter.sh: echo '{"apiVersion":"v1","items":[` +
				roles + `"ClusterRole","metadata":{"name":"drain-may-act"},"rules":[{"apiGroups":["karpenter.sh"],"resources":["nodeclaims"],"verbs":["create"]}]},` +
				roles + `"ClusterRoleBinding","metadata":{"name":"drain-may-act"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"drain-may-act"},"subjects":[{"kind":"ServiceAccount","name":"drain","namespace":"ops"}]}],"kind":"List"}' | kubectl apply -f -`,
		}},
		"unprotected": {Snapshot{Daemons: []Daemon{with(queue, func(d *Daemon) { d.Release, d.Unlisted, d.Unheld = "r", true, true })}}, []string{
			"SH306 serviceaccount/drain 0 no FlowSchema names it: helm upgrade r deploy/chart --namespace ops --reset-then-reuse-values --set flowSchemas=true",
			"SH307 serviceaccount/drain 0 no admission policy holds it to what it changes: helm upgrade r deploy/chart --namespace ops --reset-then-reuse-values --set patchPolicies=true",
		}},
		"unprotected without a chart": {Snapshot{Daemons: []Daemon{with(queue, func(d *Daemon) { d.Unlisted, d.Unheld = true, true })}}, nil},
		"targets that are pods": {Snapshot{Balanced: target(true, 31*time.Second)},
			[]string{"SH308 service/web 4 its targets drain for 31 s, and its pods have 30 s to end: kubectl -n shop annotate service web --overwrite a=x=1,deregistration_delay.timeout_seconds=30"}},
		"targets that drain in time": {Snapshot{Balanced: target(true, 30*time.Second)}, nil},
		"targets that are nodes": {Snapshot{Balanced: target(false, 300*time.Second)},
			[]string{"SH308 service/web 4 its targets, which are nodes, drain for 300 s, and a notice leaves them 100 s: kubectl -n shop annotate service web --overwrite a=x=1,deregistration_delay.timeout_seconds=100"}},
		"targets on safe nodes": {Snapshot{Balanced: []Balanced{{Owned: Owned{"shop", "service/db"}, Selector: map[string]string{"app": "db"}}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := tt.s
			if s.Nodes == nil {
				s.Nodes = nodes
			}
			s.Pods, s.Grace, s.MaxShare = on(of("deployment/web", 4, unchanged), "m5-a-0", "m5-a-1"), 100*time.Second, 100
			s.Deployments = map[Owned]*Deployment{{"shop", "deployment/web"}: {Replicas: 4, MinReady: 5}}
			var got []string
			for _, f := range Of(s) {
				got = append(got, fmt.Sprint(f.ID, " ", f.Object, " ", f.Pods, " ", f.What, ": ", f.Fix))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Karpenter polls EC2 since 1.12, by its image or, without a tag, by its chart's label.
func TestKarpenterPollsStatus(t *testing.T) {
	for _, tt := range []struct {
		image, label string
		want         bool
	}{
		{"public.ecr.aws/karpenter/controller:1.12.0@sha256:00", "", true},
		{"public.ecr.aws/karpenter/controller:1.11.9", "", false},
		{"mirror:5000/karpenter:v1.15.1", "1.11.0", true}, // the image is what runs
		{"mirror:5000/karpenter:latest", "1.13.0", false}, // nobody knows
		{"mirror:5000/karpenter", "1.13.0", true},
		{"mirror/karpenter@sha256:00", "1.13.0", true},
		{"mirror/karpenter@sha256:00", "1.11.0", false},
		{"mirror/karpenter@sha256:00", "", false},
	} {
		var p program
		text := fmt.Sprintf(`{"metadata":{"labels":{"app.kubernetes.io/version":%q}},
			"spec":{"template":{"spec":{"containers":[{"image":%q}]}}}}`, tt.label, tt.image)
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if got := p.pollsStatus(); got != tt.want {
			t.Errorf("image %s, label %q: %v, want %v", tt.image, tt.label, got, tt.want)
		}
	}
}

// A queue is one that is not empty.
func TestInterruptionQueue(t *testing.T) {
	for text, want := range map[string]bool{
		`{"env":[{"name":"INTERRUPTION_QUEUE","value":"q"}]}`: true,
		`{"env":[{"name":"INTERRUPTION_QUEUE","value":""}]}`:  false,
		`{"args":["--interruption-queue=q"]}`:                 true,
		`{"args":["--interruption-queue","q"]}`:               true,
		`{"args":["--interruption-queue="]}`:                  false,
		`{"args":["--interruption-queue",""]}`:                false,
		`{}`:                                                  false,
	} {
		var p program
		if err := json.Unmarshal([]byte(`{"spec":{"template":{"spec":{"containers":[`+text+`]}}}}`), &p); err != nil {
			t.Fatal(err)
		}
		if _, got := p.interruptionQueue(); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestDelayOfTargets(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 300 * time.Second, "deregistration_delay.timeout_seconds=30": 30 * time.Second, "a=b, deregistration_delay.timeout_seconds=0": 0,
		"deregistration_delay.timeout_seconds=soon": 300 * time.Second, "deregistration_delay.connection_termination.enabled=true": 300 * time.Second,
	} {
		if got, _ := (Balanced{Attributes: text}).delay(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// A selector of what is recommended has no label that distinguishes the pods of one workload, or where
// they are now.
func TestCommonLabels(t *testing.T) {
	pod := func(zone, hash string) *Pod {
		return &Pod{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web", "topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "eu-west-1", hashLabel: hash}}}}
	}
	if got := commonLabels([]*Pod{pod("a", "1"), pod("a", "1")}); len(got) != 1 || got["app"] != "web" {
		t.Errorf("%v, want the app's own", got)
	}
}

func TestVolumesElsewhere(t *testing.T) {
	for name, tt := range map[string]struct {
		zone string
		want string
	}{
		"no volume":                    {"", ""},
		"a volume where there is room": {"eu-west-1b", ""},
		"a volume where there is none": {"eu-west-1a", "[statefulset/db 2]"},
	} {
		s := Snapshot{Nodes: nodesWith(1, map[string]string{"karpenter.sh/nodepool": "spot"})}
		s.Pods = of("statefulset/db", 2, func(p *Pod) { p.Spec.NodeName, p.Zone = "node-0", tt.zone })
		s.Outlooks = []karpenter.Outlook{{Pool: "other", Fallbacks: []string{"od"}, Barred: []string{"eu-west-1a"}}, {Pool: "spot", Fallbacks: []string{"od"}, Barred: []string{"eu-west-1a"}}}
		s.index()
		got := ""
		for _, f := range each(workloads, volumesElsewhere)(s) {
			got += fmt.Sprintf("[%s %d]", f.Object, f.Pods)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
