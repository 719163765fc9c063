package karpenter

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/provisioner"
)

func selects(pairs ...string) *corev1.Pod {
	p := pod(container("1", ""))
	p.Spec.NodeSelector = map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		p.Spec.NodeSelector[pairs[i]] = pairs[i+1]
	}
	return p
}

type expression = corev1.NodeSelectorRequirement

// affine requires one of the terms, each of which is a list of expressions.
func affine(terms ...[]expression) *corev1.Pod {
	p := pod(container("1", ""))
	required := &corev1.NodeSelector{}
	for _, t := range terms {
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: t})
	}
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
	return p
}

func where(key string, op corev1.NodeSelectorOperator, values ...string) []expression {
	return []expression{{Key: key, Operator: op, Values: values}}
}

func withVolume() *corev1.Pod {
	p := pod(container("1", ""))
	p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return p
}

func spread(key string, otherwise corev1.UnsatisfiableConstraintAction) *corev1.Pod {
	p := pod(container("1", ""))
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: otherwise}}
	return p
}

func near(key string) *corev1.Pod {
	p := pod(container("1", ""))
	p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key}}}}
	return p
}

func alone(key string) *corev1.Pod {
	p := pod(container("1", ""))
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key}}}}
	return p
}

func ofDaemonSet(p *corev1.Pod) *corev1.Pod {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", Controller: &yes}}
	return p
}

func TestAdmit(t *testing.T) {
	const zone, arch, typ = corev1.LabelTopologyZone, corev1.LabelArchStable, corev1.LabelInstanceTypeStable
	mixed := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot","on-demand"]}]`)
	elsewhere := requires(`[{"key":"topology.kubernetes.io/zone","operator":"In","values":["eu-west-1c"]}]`)
	byDriver := requires(`[{"key":"topology.ebs.csi.aws.com/zone","operator":"In","values":["eu-west-1c"]}]`)
	for name, tt := range map[string]struct {
		change []func(*unstructured.Unstructured)
		pod    *corev1.Pod
		needed []requirement
		reason string
	}{
		"free":                          {pod: pod(container("1", ""))},
		"does not tolerate":             {pod: &corev1.Pod{}, reason: "does not tolerate example.com/dedicated=web:NoSchedule"},
		"pinned to spot":                {pod: selects(capacityTypeLabel, "spot"), reason: "needs karpenter.sh/capacity-type=spot"},
		"pinned to spot, pool has both": {change: changes{mixed}, pod: selects(capacityTypeLabel, "spot"), reason: "needs karpenter.sh/capacity-type=spot"},
		"pinned to the source pool":     {pod: selects(nodePoolLabel, "spot"), reason: "needs karpenter.sh/nodepool=spot"},
		"not on the source pool":        {pod: affine(where(nodePoolLabel, "NotIn", "spot"))},
		"on demand":                     {pod: selects(capacityTypeLabel, "on-demand")},
		"label of the template":         {pod: selects("team", "web")},
		"other label":                   {pod: selects("team", "ml"), reason: "needs team=ml"},
		"label by requirement":          {pod: selects("example.com/tier", "silver")},
		"value that another node has":   {pod: selects("example.com/tier", "gold"), reason: "needs example.com/tier=gold"},
		"undeclared":                    {pod: selects("nobody.has/this", "x"), reason: "needs nobody.has/this=x"},
		"set by an agent":               {pod: selects("feature.node/avx", "true")},
		"label that must not be there":  {pod: affine(where("example.com/legacy", "DoesNotExist"))},
		"label that is there":           {pod: affine(where("team", "DoesNotExist")), reason: "needs team DoesNotExist"},
		"greater":                       {pod: affine(where("example.com/rank", "Gt", "3"))},
		"too great":                     {pod: affine(where("example.com/rank", "Gt", "9")), reason: "needs example.com/rank Gt 9"},
		"hostname":                      {pod: selects(corev1.LabelHostname, "node-1"), reason: "needs kubernetes.io/hostname=node-1"},
		"other hosts":                   {pod: affine(where(corev1.LabelHostname, "NotIn", "node-1"))},
		"Karpenter's own":               {pod: selects("karpenter.sh/registered", "true")},
		"node class":                    {pod: selects("karpenter.k8s.aws/ec2nodeclass", "other"), reason: "needs karpenter.k8s.aws/ec2nodeclass=other"},
		"what the pool gives anyway":    {pod: selects(arch, "amd64")},
		"other architecture":            {pod: selects(arch, "arm64"), reason: "needs kubernetes.io/arch=arm64"},
		"one of the zones":              {pod: selects(zone, "eu-west-1a"), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1a"}}}},
		"old name of the zone":          {pod: selects(corev1.LabelFailureDomainBetaZone, "eu-west-1a"), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1a"}}}},
		"zone of the EBS CSI driver":    {pod: selects("topology.ebs.csi.aws.com/zone", "eu-west-1a"), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1a"}}}},
		"pool that names zones by it":   {change: changes{byDriver}, pod: selects(zone, "eu-west-1a"), reason: "needs topology.kubernetes.io/zone=eu-west-1a"},
		"alone in the driver's zone":    {pod: alone("topology.ebs.csi.aws.com/zone"), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1b"}}}},
		"zone outside the pool":         {pod: selects(zone, "eu-west-1c"), reason: "needs topology.kubernetes.io/zone=eu-west-1c"},
		"volumes":                       {pod: withVolume(), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1b"}}}},
		"volumes elsewhere":             {change: changes{elsewhere}, pod: withVolume(), reason: "has volumes and needs topology.kubernetes.io/zone=eu-west-1b"},
		"spread over zones":             {pod: spread(zone, corev1.DoNotSchedule), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1b"}}}},
		"spread over zones elsewhere":   {change: changes{elsewhere}, pod: spread(zone, corev1.DoNotSchedule)},
		"spread over zones if possible": {pod: spread(zone, corev1.ScheduleAnyway)},
		"spread over hosts":             {pod: spread(corev1.LabelHostname, corev1.DoNotSchedule)},
		"near others of the zone":       {pod: near(zone), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1b"}}}},
		"near others of the host":       {pod: near(corev1.LabelHostname)},
		"alone in its zone":             {pod: alone(corev1.LabelFailureDomainBetaZone), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1b"}}}},
		"alone on its host":             {pod: alone(corev1.LabelHostname)},
		"instance type":                 {pod: affine(where(typ, "NotIn", "m5.large")), needed: []requirement{{Key: typ, Operator: "NotIn", Values: []string{"m5.large"}}}},
		"provider's label":              {pod: selects("karpenter.k8s.aws/instance-family", "c6i"), needed: []requirement{{Key: "karpenter.k8s.aws/instance-family", Operator: "In", Values: []string{"c6i"}}}},
		"first term that fits":          {pod: affine(where("team", "In", "ml"), where(zone, "In", "eu-west-1b")), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1b"}}}},
		"terms on one label are joined": {pod: affine(where(zone, "In", "eu-west-1c"), where(zone, "In", "eu-west-1b")), needed: []requirement{{Key: zone, Operator: "In", Values: []string{"eu-west-1b", "eu-west-1c"}}}},
		"no term fits":                  {pod: affine(where("team", "In", "ml"), nil), reason: "needs team=ml"},
		"empty affinity":                {pod: affine(), reason: "has a node affinity that nothing satisfies"},
	} {
		t.Run(name, func(t *testing.T) {
			node := interruptedNode()
			node.Labels["feature.node/avx"] = "true"
			node.Labels["topology.ebs.csi.aws.com/zone"] = "eu-west-1b" // of its own driver, not inherited
			source := decodePool(sourcePool())
			s := newShape(pool(t, tt.change...), source, node)
			s.preferOnDemand()
			base := len(s.needed)
			reason := s.admit(tt.pod)
			if reason != tt.reason {
				t.Fatalf("admit() = %q, want %q", reason, tt.reason)
			}
			if diff := cmp.Diff(append([]requirement{}, tt.needed...), append([]requirement{}, s.needed[base:]...)); diff != "" {
				t.Errorf("needed (-want +got):\n%s", diff)
			}
		})
	}
}

type changes = []func(*unstructured.Unstructured)

// Each pod that fits narrows the node for those after it.
func TestFitTo(t *testing.T) {
	a, b, free := selects(corev1.LabelTopologyZone, "eu-west-1a"), selects(corev1.LabelTopologyZone, "eu-west-1b"), pod(container("1", ""))
	a.Name, b.Name, free.Name = "a", "b", "free"
	agent, other := ofDaemonSet(affine(where("team", "In", "web"))), ofDaemonSet(selects("team", "ml"))
	agent.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields =
		where("metadata.name", "In", "node-1") // as the DaemonSet controller writes it
	f := fitTo(newShape(pool(t), decodePool(sourcePool()), interruptedNode()), provisioner.Need{
		Moving: []*corev1.Pod{a, b, free}, Daemons: []*corev1.Pod{agent, other},
	})
	if !slices.Equal(f.need.Moving, []*corev1.Pod{a, free}) || !slices.Equal(f.need.Daemons, []*corev1.Pod{agent}) {
		t.Errorf("%d pods and %d of DaemonSets fit, want a, free and the agent", len(f.need.Moving), len(f.need.Daemons))
	}
	if want := "default/b needs topology.kubernetes.io/zone=eu-west-1b"; f.remark() != want || len(f.need.Moving) != 2 {
		t.Errorf("remark %q, want %q", f.remark(), want)
	}
}

// A pod that names its node, as the DaemonSet controller's do, needs that very node: no replacement can be it.
func TestOneCertainNode(t *testing.T) {
	p := affine(where("team", "In", "web"))
	p.Name = "pinned"
	p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields = where("metadata.name", "In", "node-1")
	f := fitTo(newShape(pool(t), decodePool(sourcePool()), interruptedNode()), provisioner.Need{Moving: []*corev1.Pod{p}})
	if want := "default/pinned needs one certain node"; f.remark() != want || len(f.need.Moving) != 0 {
		t.Errorf("remark %q, and %d pods fit; want %q and none", f.remark(), len(f.need.Moving), want)
	}
}

func TestRemarkIsShort(t *testing.T) {
	need := provisioner.Need{}
	for i := range 100 {
		p := selects("key-"+string(rune('a'+i%5)), "x")
		p.Name = strings.Repeat("long", 20)
		need.Moving = append(need.Moving, p)
	}
	f := fitTo(newShape(pool(t), nil, &corev1.Node{}), need)
	if got := f.remark(); len(got) > 1500 || !strings.Contains(got, "and 17 more needs key-a=x") || !strings.HasSuffix(got, "2 more reasons") || len(f.need.Moving) != 0 {
		t.Errorf("remark of %d bytes: %s", len(got), got)
	}
}

func onDemandIn(p *nodePool) *shape {
	s := newShape(p, nil, &corev1.Node{})
	s.preferOnDemand()
	return s
}

// A pool of both capacity types replaces on demand.
func TestOnDemandWhereThereIs(t *testing.T) {
	notSpot := []requirement{{Key: capacityTypeLabel, Operator: "NotIn", Values: []string{"spot"}}}
	for list, want := range map[string][]requirement{
		`["spot","on-demand"]`:            notSpot,
		`["spot","on-demand","reserved"]`: notSpot,
		`["on-demand","reserved"]`:        nil,
		`["on-demand"]`:                   nil,
		`["spot"]`:                        nil,
	} {
		p := pool(t, requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":`+list+`}]`))
		if diff := cmp.Diff(want, onDemandIn(p).needed); diff != "" {
			t.Errorf("%s: needed (-want +got):\n%s", list, diff)
		}
	}
	silent := onDemandIn(pool(t, requires(`[]`))) // Karpenter allows such a pool all three
	if diff := cmp.Diff(notSpot, silent.needed); diff != "" {
		t.Errorf("no requirement: needed (-want +got):\n%s", diff)
	}
	if !constraintOn(capacityTypeLabel, silent.needed).Allows("reserved") {
		t.Error("no requirement: reserved instances, which are paid for, are excluded")
	}
}
