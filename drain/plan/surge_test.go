package plan

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestSurgesAsManyAsTheOwnerAllows(t *testing.T) {
	s := surging(DeploymentState{Slots: 2}, webPod("a"), webPod("b"), webPod("c"))
	if got, want := actions(Plan(now, s)), "a surge, b surge, c hold"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSurgeEvictsWhatHasASuccessor(t *testing.T) {
	s := surging(DeploymentState{Evictable: 1}, webPod("a", isSurgedPod), webPod("b", isSurgedPod))
	if got, want := actions(Plan(now, s)), "a evict, b hold"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A replacement pod that never becomes available does not keep the pod past its latest start.
func TestSurgeEndsAtTheLatestStart(t *testing.T) {
	s := surging(DeploymentState{}, webPod("a", isSurgedPod, withGrace(30)))
	for at, want := range map[time.Duration]Action{79 * time.Second: Hold, 80 * time.Second: Evict} {
		if d := Plan(now.Add(at), s)[0]; d.Action != want {
			t.Errorf("after %s: %s (%s), want %s", at, d.Action, d.Reason, want)
		}
	}
}

// What the owner wants meanwhile comes before all that an interruption wants, with a replacement
// and without, on a certain end and on a recommendation.
func TestSurgedPodsFollowTheirOwner(t *testing.T) {
	restored := func(p *corev1.Pod) { p.Labels[HashLabel] = p.Labels[SurgedLabel] }
	for name, tt := range map[string]struct {
		pods     []*corev1.Pod
		workload DeploymentState
		gone     bool
		left     time.Duration // until the deadline; zero is none
		want     string
	}{
		"Deployment gone":                         {pods: []*corev1.Pod{webPod("a", isSurgedPod)}, gone: true, left: time.Minute, want: "a return"},
		"Deployment gone, at risk only":           {pods: []*corev1.Pod{webPod("a", isSurgedPod)}, gone: true, want: "a return"},
		"Deployment gone, late":                   {pods: []*corev1.Pod{webPod("a", isSurgedPod)}, gone: true, left: time.Second, want: "a return"},
		"Deployment gone, another's pod":          {pods: []*corev1.Pod{webPod("a")}, gone: true, left: time.Minute, want: "a hold"},
		"fewer wanted":                            {pods: []*corev1.Pod{webPod("a", isSurgedPod), webPod("b", isSurgedPod)}, workload: DeploymentState{Excess: 1}, want: "a end, b hold"},
		"fewer wanted, late":                      {pods: []*corev1.Pod{webPod("a", isSurgedPod), webPod("b", isSurgedPod)}, workload: DeploymentState{Excess: 1}, left: time.Second, want: "a end, b evict"},
		"hash restored":                           {pods: []*corev1.Pod{webPod("a", isSurgedPod, restored), webPod("b", isSurgedPod)}, left: time.Minute, want: "a return, b hold"},
		"hash restored, at risk only":             {pods: []*corev1.Pod{webPod("a", isSurgedPod, restored)}, want: "a return"},
		"hash restored, late":                     {pods: []*corev1.Pod{webPod("a", isSurgedPod, restored)}, left: time.Second, want: "a evict"},
		"no replacement pods":                     {pods: []*corev1.Pod{webPod("a", isSurgedPod), webPod("b", isSurgedPod)}, workload: DeploymentState{Lacking: 1}, left: time.Minute, want: "a return, b hold"},
		"no replacement pods, at risk only":       {pods: []*corev1.Pod{webPod("a", isSurgedPod)}, workload: DeploymentState{Lacking: 1}, want: "a return"},
		"no replacement pods, late":               {pods: []*corev1.Pod{webPod("a", isSurgedPod)}, workload: DeploymentState{Lacking: 1}, left: time.Second, want: "a evict"},
		"one with a replacement pod, one without": {pods: []*corev1.Pod{webPod("a", isSurgedPod), webPod("b", isSurgedPod)}, workload: DeploymentState{Lacking: 1, Evictable: 1}, left: time.Minute, want: "a return, b evict"},
	} {
		t.Run(name, func(t *testing.T) {
			s := surging(tt.workload, tt.pods...)
			if s.Deadline = (time.Time{}); tt.left > 0 {
				s.Deadline = now.Add(tt.left)
			}
			if tt.gone {
				s.Deployments[web] = DeploymentState{}
			}
			if got := actions(Plan(now, s)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestSurgeWaitsForTheReplacementWithoutADeadline(t *testing.T) {
	s := surging(DeploymentState{Slots: 1}, webPod("a"))
	s.Deadline = time.Time{}
	if d := Plan(now, s)[0]; d.Action != Hold {
		t.Errorf("pending: %s, want hold", d.Action)
	}
	s.Capacity = ReadyCapacity
	if d := Plan(now, s)[0]; d.Action != SurgeNow {
		t.Errorf("ready: %s (%s), want surge", d.Action, d.Reason)
	}
}

// A pod that was surged in an earlier drain and put back has no owner until its ReplicaSet adopts it. If the node is
// drained again at once, and its replacement is Ready, the pod is not evicted in the meantime.
func TestPodIsTakenBack(t *testing.T) {
	orphan := webPod("p", func(p *corev1.Pod) { p.OwnerReferences = nil })
	bare := webPod("p", func(p *corev1.Pod) { p.OwnerReferences, p.Labels = nil, nil })
	for name, tt := range map[string]struct {
		pod      *corev1.Pod
		first    time.Time
		strategy Strategy
		want     Action
	}{
		"put back":        {orphan, now, StrategySurge, Hold},
		"nobody takes it": {orphan, now.Add(-takenBackWithin), StrategySurge, Evict},
		"taken back":      {webPod("p"), now, StrategySurge, SurgeNow},
		"never owned":     {bare, now, StrategySurge, Evict},
		"hold":            {orphan, now, StrategyHold, Evict},
	} {
		t.Run(name, func(t *testing.T) {
			s := surging(DeploymentState{Slots: 1}, tt.pod)
			s.Capacity, s.First, s.Policy.Strategy = ReadyCapacity, tt.first, tt.strategy
			d := Plan(now, s)[0]
			if d.Action != tt.want || d.Action == Hold && !d.Until.Equal(now.Add(takenBackWithin)) {
				t.Errorf("%s (%s) until %s, want %s", d.Action, d.Reason, d.Until, tt.want)
			}
		})
	}
}

// Every pod that cannot be surged is held as any other, and the plan says why.
func TestWhoIsNotSurged(t *testing.T) {
	volume := func(v corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{VolumeSource: v}} }
	}
	claim := volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})
	for name, tt := range map[string]struct {
		pod      *corev1.Pod
		workload DeploymentState
		change   func(*Situation)
		reason   string
	}{
		"StatefulSet":     {pod: webPod("p", ownedBy("StatefulSet")), reason: "its controller is a StatefulSet"},
		"no controller":   {pod: webPod("p", func(p *corev1.Pod) { p.OwnerReferences = nil }), reason: "no controller would make a replacement pod"},
		"bare ReplicaSet": {pod: webPod("p", func(p *corev1.Pod) { delete(p.Labels, HashLabel) }), reason: "its ReplicaSet belongs to no Deployment"},
		"other name":      {pod: webPod("p", func(p *corev1.Pod) { p.OwnerReferences[0].Name = "web" }), reason: "its ReplicaSet belongs to no Deployment"},
		"no Deployment": {pod: webPod("p"), change: func(s *Situation) { s.Deployments[web] = DeploymentState{} },
			reason: "its ReplicaSet belongs to no Deployment"},
		"not selected": {pod: webPod("p"), workload: DeploymentState{Selector: labels.SelectorFromSet(labels.Set{"app": "db"})},
			reason: "Deployment web does not select it"},
		"paused":         {pod: webPod("p"), workload: DeploymentState{Refuses: "is paused"}, reason: "Deployment web is paused"},
		"not Ready":      {pod: webPod("p", func(p *corev1.Pod) { p.Status.Conditions = nil }), reason: "it is not Ready, so there is nothing to keep up"},
		"do-not-disrupt": {pod: webPod("p", annotated(DoNotDisrupt, "true")), reason: DoNotDisrupt},
		"volume of its own": {pod: webPod("p", claim), change: func(s *Situation) { s.Shared[ClaimsOf(s.Pods[0])[0]] = false },
			reason: "its volume data cannot be shared"},
		"disk": {pod: webPod("p", volume(corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}})),
			reason: "its volume cannot be shared"},
		"budget by hash": {pod: webPod("p"), change: func(s *Situation) {
			b := budget("web", 1)
			b.Spec.Selector.MatchLabels[HashLabel] = "abc12"
			s.Budgets = []*policyv1.PodDisruptionBudget{b}
		}, reason: "its pod-template-hash puts it under PDB web"},
		"adopted": {pod: webPod("p"), change: func(s *Situation) {
			s.Constraints["shop"] = NamespaceConstraints{adopters: []adopter{
				{"DaemonSet db", labels.SelectorFromSet(labels.Set{"app": "db"})},
				{"ReplicaSet old", labels.SelectorFromSet(labels.Set{HashLabel: "abc12"})},
				{"DaemonSet web", labels.SelectorFromSet(labels.Set{"app": "web"})},
			}}
		}, reason: "DaemonSet web would adopt it"},
		"quota": {pod: webPod("p"), change: func(s *Situation) {
			s.Constraints["shop"] = NamespaceConstraints{quotas: []quota{{"small", corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}}}
		}, reason: "ResourceQuota small has no room for a replacement pod: pods"},
		"own pod": {pod: webPod("p"), change: func(s *Situation) { s.Policy.Self = types.NamespacedName{Namespace: "shop", Name: "p"} },
			reason: "spot-handler's own pod"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.workload.Slots = 1
			s := surging(tt.workload, tt.pod)
			if tt.change != nil {
				tt.change(&s)
			}
			d := Plan(now, s)[0]
			if d.Surge || d.NoSurge != tt.reason || d.Action == SurgeNow {
				t.Errorf("surge %v (%q), %s; want none, %q", d.Surge, d.NoSurge, d.Action, tt.reason)
			}
		})
	}
	t.Run("shared volume", func(t *testing.T) {
		s := surging(DeploymentState{Slots: 1}, webPod("p", claim))
		if d := Plan(now, s)[0]; d.Action != Hold {
			t.Errorf("%s before the claim is known, want hold", d.Action)
		}
		s.Shared[ClaimsOf(s.Pods[0])[0]] = true
		if d := Plan(now, s)[0]; d.Action != SurgeNow {
			t.Errorf("%s (%s), want surge", d.Action, d.NoSurge)
		}
	})
}

// What is changed on a surged pod must not change its identity for network policies: Cilium's
// default filter leaves out the keys that begin with pod-template-hash, and takes any other.
func TestSurgeKeepsTheIdentityOfAPod(t *testing.T) {
	pod := webPod("p")
	after := labelsOnceSurged(pod.Labels)
	for key, value := range after {
		if pod.Labels[key] != value && !strings.HasPrefix(key, "pod-template-hash") {
			t.Errorf("label %s=%s is new", key, value)
		}
	}
	if len(after) == len(pod.Labels) {
		t.Error("no label is added")
	}
	if errs := validation.IsQualifiedName(SurgedLabel); len(errs) > 0 {
		t.Error(errs)
	}
}
