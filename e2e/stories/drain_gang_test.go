package stories

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
)

// A gang of eight is on four nodes, of which one goes: the two pods on it leave together, when the
// one with the longer grace period has to, and the six others are left alone. Of another gang both nodes go, one after the other: its pods leave with the first, and by then their
// replacements are asked for. Of a third, one pod answers that it goes now, and the other goes with
// it. A pod of another namespace that claims to be of the first gang changes nothing, and is notified of
// nothing of it.
func TestGangLeavesTogether(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true, Audit: true})
	s.pools(20 * time.Second)
	ranks := s.bare("rank", 4, 8)
	sooner, later := s.node("batch"), s.node("batch")
	all := s.servers()
	names := map[types.UID]string{}
	run := func(name string, replicas int, gang, path string, change func(*controlplane.DeploymentSpec)) []*corev1.Pod {
		spec := controlplane.DeploymentSpec{
			Namespace: "default", Name: name, Replicas: replicas, Labels: map[string]string{"spot-handler/gang": gang}, Annotations: all.asks(path),
		}
		quick(&spec)
		change(&spec)
		_, err := s.cluster.RunDeployment(s.ctx, spec)
		s.must(err)
		pods, err := s.cluster.WaitReady(s.ctx, spec.Namespace, name, replicas)
		s.must(err)
		for _, p := range pods {
			names[p.UID] = name + " " + p.Spec.NodeName
		}
		return pods
	}
	on := func(node *corev1.Node) func(*controlplane.DeploymentSpec) {
		return func(d *controlplane.DeploymentSpec) {
			d.NodeSelector = map[string]string{corev1.LabelHostname: node.Name}
		}
	}
	spread := func(d *controlplane.DeploymentSpec) {
		d.Spread = corev1.LabelHostname
		d.Change = func(d *appsv1.Deployment) { // any pool of Karpenter will do
			d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "karpenter.sh/nodepool", Operator: corev1.NodeSelectorOpExists}}}},
			}}}
		}
	}
	run("slow", 1, "train", "silent", func(d *controlplane.DeploymentSpec) {
		on(ranks[0])(d)
		d.Grace = 20 * time.Second
	})
	run("fast", 1, "train", "silent", on(ranks[0]))
	for _, node := range ranks[1:] {
		run(node.Name, 2, "train", "now", on(node))
	}
	for i, node := range ranks[:2] {
		run(fmt.Sprint("forger", i), 1, "train", "now", func(d *controlplane.DeploymentSpec) {
			on(node)(d)
			d.Namespace = "elsewhere"
		})
	}
	run("pair", 2, "pair", "silent", spread)
	for _, p := range run("duo", 2, "duo", "silent", spread) {
		if p.Spec.NodeName == later.Name {
			answers := fmt.Sprintf(`{"metadata":{"annotations":{"spot-handler/notice":"%s/now"}}}`, all.port)
			_, err := s.cluster.Client.CoreV1().Pods("default").Patch(s.ctx, p.Name, types.MergePatchType, []byte(answers), metav1.PatchOptions{})
			s.must(err)
		}
	}
	_, queue := s.drill(noticing...)

	const margin, grace = 10 * time.Second, 5 * time.Second
	deadline := interrupt(queue, ranks[0].Name, 65*time.Second)
	ofTrain := deadline.Add(-margin - 20*time.Second)
	interrupt(queue, later.Name, 75*time.Second)
	ofPair := interrupt(queue, sooner.Name, 60*time.Second).Add(-margin - grace)
	gone := func() map[string]time.Time {
		at := map[string]time.Time{}
		for _, r := range s.evicted() {
			at[names[types.UID(r.RequestObject.DeleteOptions.Preconditions.UID)]] = r.RequestReceivedTimestamp
		}
		return at
	}
	both := func(name string) [2]string { return [2]string{name + " " + sooner.Name, name + " " + later.Name} }
	train, pair, duo := [2]string{"slow " + ranks[0].Name, "fast " + ranks[0].Name}, both("pair"), both("duo")
	s.eventually("departure of the gangs", func() bool {
		at := gone()
		return !slices.ContainsFunc(slices.Concat(train[:], pair[:], duo[:]), func(name string) bool { return at[name].IsZero() })
	})
	at := gone()
	for name, late := range map[string]time.Duration{
		train[0]: at[train[0]].Sub(ofTrain), train[1]: at[train[1]].Sub(ofTrain), pair[0]: at[pair[0]].Sub(ofPair), pair[1]: at[pair[1]].Sub(ofPair),
	} {
		if late < 0 || late > 5*time.Second {
			t.Errorf("%s was evicted %s after its gang had to leave", name, late)
		}
	}
	for _, name := range duo {
		if early := ofPair.Sub(at[name]); early < 5*time.Second {
			t.Errorf("%s was evicted %s before its last safe second, want when one has answered", name, early)
		}
	}
	if forger := at["forger0 "+ranks[0].Name]; forger.IsZero() || ofTrain.Sub(forger) < 5*time.Second {
		t.Errorf("the pod of another namespace was evicted at %s, want when it has answered", forger)
	}

	for name, node := range map[string]*corev1.Node{ranks[1].Name: ranks[1], ranks[2].Name: ranks[2], ranks[3].Name: ranks[3], "forger1": ranks[1]} {
		if got, _ := all.by(name); len(got) > 0 {
			t.Errorf("%s, whose node stays, was notified of %v", name, got)
		}
		if evicted := at[name+" "+node.Name]; !evicted.IsZero() {
			t.Errorf("%s, whose node stays, was evicted at %s", name, evicted)
		}
	}
	if _, said := all.by("fast"); said.Type != "spot-handler.notice" || !said.Data.EvictBy.Equal(ofTrain) {
		t.Errorf("the pod that leaves early heard %+v", said)
	}
	asked := s.requests(func(r request) bool {
		return r.Verb == "create" && r.ObjectRef.Resource == "nodeclaims" && r.ResponseStatus.Code == 201
	})
	if len(asked) != 2 || asked[0].RequestReceivedTimestamp.After(at[pair[0]]) || asked[1].RequestReceivedTimestamp.After(at[pair[0]]) {
		t.Errorf("%d replacements, want both to be asked for before the gang leaves: %+v", len(asked), asked)
	}
}
