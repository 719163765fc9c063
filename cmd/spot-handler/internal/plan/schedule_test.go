package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// placed says where the replacement pods of an app end up: the names of their nodes, "-" for none.
func placed(in Input, app string) []string {
	w := newWorld(in)
	w.play()
	on := []string{}
	for _, p := range w.pods {
		if p.fresh && p.Labels["app"] == app {
			name := "-"
			if p.node != nil {
				name = p.node.Name
			}
			on = append(on, name)
		}
	}
	slices.Sort(on)
	return on
}

func zoned(n *corev1.Node, zone string) *corev1.Node {
	n.Labels[corev1.LabelTopologyZone] = zone
	return n
}

func tainted(n *corev1.Node, key string) *corev1.Node {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	return n
}

func apps(names ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: names}}}
}

func away(key string, from ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: apps(from...)}},
		}}
	}
}

func beside(key string, of ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: apps(of...)}},
		}}
	}
}

func spread(key string, change ...func(*corev1.TopologySpreadConstraint)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := corev1.TopologySpreadConstraint{TopologyKey: key, MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: apps(p.Labels["app"])}
		for _, f := range change {
			f(&c)
		}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{c}
	}
}

// atRisk has the node stay, as EC2 only recommends to leave it.
func atRisk(s *scene) {
	s.Lost[0].Kind, s.Lost[0].Deadline, s.Lost[0].Capacity = interruption.RebalanceRecommendation, time.Time{}, plan.ReadyCapacity
}

// The replacement pod goes where the scheduler would put it: where it fits and may run, and of those
// nodes to the one with the most room.
func TestPlaces(t *testing.T) {
	moves := func(s *scene, change ...func(*corev1.Pod)) { s.pods("ReplicaSet", "web", "lost", 1, change...) }
	for name, tt := range map[string]struct {
		of   func(s *scene)
		want []string
	}{
		"the most room": {func(s *scene) {
			s.Nodes = append(s.Nodes, aNode("large", "16"))
			moves(s)
		}, []string{"large"}},
		"the most room that is left": {func(s *scene) {
			s.Nodes = append(s.Nodes, aNode("large", "16"))
			s.pods("ReplicaSet", "busy", "large", 12)
			moves(s)
		}, []string{"other"}},
		"of two alike the first by name": {func(s *scene) {
			s.Nodes = append(s.Nodes, aNode("another", "8"), aNode("zz", "8"))
			moves(s)
		}, []string{"another"}},
		"no room": {func(s *scene) {
			s.pods("ReplicaSet", "busy", "other", 8)
			moves(s)
		}, []string{"-"}},
		"room for one of two": {func(s *scene) {
			s.pods("ReplicaSet", "busy", "other", 7)
			moves(s)
			moves(s)
		}, []string{"-", "other"}},
		"another node selector": {func(s *scene) {
			moves(s, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
		}, []string{"-"}},
		"a taint": {func(s *scene) {
			s.Nodes[1] = tainted(s.Nodes[1], "gpu")
			moves(s)
		}, []string{"-"}},
		"a taint that is tolerated": {func(s *scene) {
			s.Nodes[1] = tainted(s.Nodes[1], "gpu")
			moves(s, func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
			})
		}, []string{"other"}},
		"cordoned": {func(s *scene) {
			s.Nodes[1].Spec.Unschedulable = true
			moves(s)
		}, []string{"-"}},
		"being deleted": {func(s *scene) {
			s.Nodes[1].DeletionTimestamp = new(metav1.NewTime(at))
			moves(s)
		}, []string{"-"}},
		"not Ready": {func(s *scene) {
			s.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown
			moves(s)
		}, []string{"-"}},
		"its volume is in another zone": {func(s *scene) {
			s.Zones = map[types.NamespacedName]string{{Namespace: "shop", Name: "data"}: "b"}
			s.Nodes = append(s.Nodes, zoned(aNode("small-in-b", "1"), "b"))
			moves(s, func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
			})
		}, []string{"small-in-b"}},
		"away from its peers": {func(s *scene) {
			s.Nodes = append(s.Nodes, aNode("small", "1"))
			s.pods("ReplicaSet", "web", "other", 1, away(corev1.LabelHostname, "web"))
			moves(s, away(corev1.LabelHostname, "web"))
		}, []string{"small"}},
		"away from its peers, in every zone": {func(s *scene) {
			s.Nodes = append(s.Nodes, zoned(aNode("in-b", "8"), "b"), aNode("in-a", "16"))
			s.pods("ReplicaSet", "web", "other", 1, away(corev1.LabelTopologyZone, "web"))
			moves(s, away(corev1.LabelTopologyZone, "web"))
		}, []string{"in-b"}},
		"others keep it away": {func(s *scene) {
			s.Nodes = append(s.Nodes, aNode("small", "1"))
			s.pods("ReplicaSet", "shy", "other", 1, away(corev1.LabelHostname, "web"))
			moves(s)
		}, []string{"small"}},
		"it keeps away from others": {func(s *scene) {
			s.Nodes = append(s.Nodes, aNode("small", "1"))
			s.pods("ReplicaSet", "noisy", "other", 1)
			moves(s, away(corev1.LabelHostname, "noisy"))
		}, []string{"small"}},
		"a domain without the label is nobody's": {func(s *scene) {
			s.Nodes = append(s.Nodes, aNode("small", "1"))
			delete(s.Nodes[2].Labels, corev1.LabelTopologyZone)
			s.pods("ReplicaSet", "noisy", "other", 1)
			moves(s, away(corev1.LabelTopologyZone, "noisy"))
		}, []string{"small"}},
		"beside another": {func(s *scene) {
			s.Nodes = append(s.Nodes, aNode("large", "16"))
			s.pods("ReplicaSet", "cache", "other", 1)
			moves(s, beside(corev1.LabelHostname, "cache"))
		}, []string{"other"}},
		"beside what is nowhere": {func(s *scene) {
			moves(s, beside(corev1.LabelHostname, "cache"))
		}, []string{"-"}},
		"beside itself, as the first": {func(s *scene) {
			moves(s, beside(corev1.LabelHostname, "web"))
		}, []string{"other"}},
		"evenly over zones": {func(s *scene) {
			s.Nodes = append(s.Nodes, zoned(aNode("in-b", "2"), "b"))
			s.pods("ReplicaSet", "web", "other", 1, spread(corev1.LabelTopologyZone))
			moves(s, spread(corev1.LabelTopologyZone))
		}, []string{"in-b"}},
		"evenly over zones, but rather somewhere": {func(s *scene) {
			s.Nodes = append(s.Nodes, zoned(aNode("in-b", "2"), "b"))
			anyway := spread(corev1.LabelTopologyZone, func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway })
			s.pods("ReplicaSet", "web", "other", 1, anyway)
			moves(s, anyway)
		}, []string{"other"}},
		"evenly, and pods of other namespaces do not count": {func(s *scene) {
			s.Nodes = append(s.Nodes, zoned(aNode("in-b", "2"), "b"))
			s.pods("ReplicaSet", "web", "other", 1, func(p *corev1.Pod) { p.Namespace, p.OwnerReferences = "elsewhere", nil })
			moves(s, spread(corev1.LabelTopologyZone))
		}, []string{"other"}},
		"evenly, and pods of other apps do not count": {func(s *scene) {
			s.Nodes = append(s.Nodes, zoned(aNode("in-b", "2"), "b"))
			s.pods("ReplicaSet", "busy", "other", 2)
			moves(s, spread(corev1.LabelTopologyZone))
		}, []string{"other"}},
		"evenly by hash": {func(s *scene) {
			s.Nodes = append(s.Nodes, zoned(aNode("in-b", "2"), "b"))
			byHash := spread(corev1.LabelTopologyZone, func(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"pod-template-hash"} })
			s.pods("", "web", "other", 2, labelled("pod-template-hash", "an-older-one"))
			moves(s, byHash)
		}, []string{"other"}},
		"evenly, two more allowed": {func(s *scene) {
			s.Nodes = append(s.Nodes, zoned(aNode("in-b", "2"), "b"))
			two := spread(corev1.LabelTopologyZone, func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 2 })
			s.pods("ReplicaSet", "web", "other", 1, two)
			moves(s, two)
		}, []string{"other"}},
		"fewer domains than it wants": {func(s *scene) {
			three := spread(corev1.LabelHostname, func(c *corev1.TopologySpreadConstraint) { c.MinDomains = new(int32(3)) })
			s.pods("ReplicaSet", "web", "other", 1, three)
			moves(s, three)
		}, []string{"-"}},
		"the cordoned node counts": {func(s *scene) {
			atRisk(s)
			s.pods("ReplicaSet", "web", "other", 1, spread(corev1.LabelHostname))
			moves(s, spread(corev1.LabelHostname))
		}, []string{"-"}},
		"unless its taints are honoured": {func(s *scene) {
			atRisk(s)
			honour := spread(corev1.LabelHostname, func(c *corev1.TopologySpreadConstraint) {
				c.NodeTaintsPolicy = new(corev1.NodeInclusionPolicyHonor)
			})
			s.pods("ReplicaSet", "web", "other", 1, honour)
			moves(s, honour)
		}, []string{"other"}},
		"the node that is gone does not count": {func(s *scene) {
			s.pods("ReplicaSet", "web", "other", 1, spread(corev1.LabelHostname))
			moves(s, spread(corev1.LabelHostname))
		}, []string{"other"}},
		"the more important first": {func(s *scene) {
			s.pods("ReplicaSet", "busy", "other", 7)
			s.pods("ReplicaSet", "plain", "lost", 1)
			moves(s, func(p *corev1.Pod) { p.Spec.Priority = new(int32(1000)) })
		}, []string{"other"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			tt.of(s)
			if diff := cmp.Diff(tt.want, placed(s.Input, "web")); diff != "" {
				t.Errorf("nodes of replacement pods (-want +got):\n%s", diff)
			}
		})
	}
}

// What has gone gives its room back, and the DaemonSets of the lost node take theirs of the replacement.
func TestRoomOfReplacements(t *testing.T) {
	for agents, want := range map[int][]string{0: {"instead-of-lost"}, 8: {"-"}} {
		s := newScene(t)
		s.Nodes, s.Lost = nil, nil
		s.lose("lost", plan.PendingCapacity)
		s.pods("ReplicaSet", "web", "lost", 1)
		s.pods("DaemonSet", "agent", "lost", agents)
		if diff := cmp.Diff(want, placed(s.Input, "web")); diff != "" {
			t.Errorf("%d pods of DaemonSets (-want +got):\n%s", agents, diff)
		}
	}
}
