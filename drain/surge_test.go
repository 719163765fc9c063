package drain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var web = types.NamespacedName{Namespace: "shop", Name: "web"}

func surging(w Workload, pods ...*corev1.Pod) Situation {
	if w.Selector == nil {
		w.Selector = labels.SelectorFromSet(labels.Set{"app": "web"})
	}
	return Situation{
		Interruption: Interruption{Taint: taint, Deadline: now.Add(2 * time.Minute), Capacity: PendingCapacity},
		Policy:       Policy{Strategy: Surge, Margin: 10 * time.Second},
		Pods:         pods,
		Workloads:    map[types.NamespacedName]Workload{web: w},
		Shared:       map[types.NamespacedName]bool{},
	}
}

func webPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	return pod(name, append([]func(*corev1.Pod){of("web"), readyAfter(time.Second)}, change...)...)
}

func actions(plan []Decision) string {
	var list []string
	for _, d := range plan {
		list = append(list, fmt.Sprintf("%s %s", d.Pod.Name, d.Action))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func TestSurgesAsManyAsTheOwnerAllows(t *testing.T) {
	s := surging(Workload{Slots: 2}, webPod("a"), webPod("b"), webPod("c"))
	if got, want := actions(Plan(now, s)), "a surge, b surge, c hold"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSurgeEvictsWhatHasASuccessor(t *testing.T) {
	s := surging(Workload{Spare: 1}, webPod("a", isSurgedPod), webPod("b", isSurgedPod))
	if got, want := actions(Plan(now, s)), "a evict, b hold"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A successor that never becomes available does not keep the pod past its latest start.
func TestSurgeEndsAtTheLatestStart(t *testing.T) {
	s := surging(Workload{}, webPod("a", isSurgedPod, withGrace(30)))
	for at, want := range map[time.Duration]Action{79 * time.Second: Later, 80 * time.Second: Evict} {
		if d := Plan(now.Add(at), s)[0]; d.Action != want {
			t.Errorf("after %s: %s (%s), want %s", at, d.Action, d.Reason, want)
		}
	}
}

func TestSurgeOfADeploymentThatIsGone(t *testing.T) {
	s := surging(Workload{}, webPod("a", isSurgedPod))
	s.Workloads[web] = Workload{}
	if d := Plan(now, s)[0]; d.Action != Evict {
		t.Errorf("%s (%s), want the eviction: there will be no successor", d.Action, d.Reason)
	}
}

func TestSurgeWaitsForTheReplacementWithoutADeadline(t *testing.T) {
	s := surging(Workload{Slots: 1}, webPod("a"))
	s.Deadline = time.Time{}
	if d := Plan(now, s)[0]; d.Action != Later {
		t.Errorf("pending: %s, want hold", d.Action)
	}
	s.Capacity = ReadyCapacity
	if d := Plan(now, s)[0]; d.Action != SurgeNow {
		t.Errorf("ready: %s (%s), want surge", d.Action, d.Reason)
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
		workload Workload
		change   func(*Situation)
		reason   string
	}{
		"StatefulSet":     {pod: webPod("p", ownedBy("StatefulSet")), reason: "its controller is a StatefulSet"},
		"no controller":   {pod: webPod("p", func(p *corev1.Pod) { p.OwnerReferences = nil }), reason: "no controller would make a successor"},
		"bare ReplicaSet": {pod: webPod("p", func(p *corev1.Pod) { delete(p.Labels, hashLabel) }), reason: "its ReplicaSet is no Deployment's"},
		"other name":      {pod: webPod("p", func(p *corev1.Pod) { p.OwnerReferences[0].Name = "web" }), reason: "its ReplicaSet is no Deployment's"},
		"no Deployment": {pod: webPod("p"), change: func(s *Situation) { s.Workloads[web] = Workload{} },
			reason: "its ReplicaSet is no Deployment's"},
		"not selected": {pod: webPod("p"), workload: Workload{Selector: labels.SelectorFromSet(labels.Set{"app": "db"})},
			reason: "Deployment web does not select it"},
		"paused":         {pod: webPod("p"), workload: Workload{Refuses: "is paused"}, reason: "Deployment web is paused"},
		"not Ready":      {pod: webPod("p", func(p *corev1.Pod) { p.Status.Conditions = nil }), reason: "it is not Ready: nothing is kept up by it"},
		"do-not-disrupt": {pod: webPod("p", annotated(doNotDisrupt, "true")), reason: doNotDisrupt},
		"volume of its own": {pod: webPod("p", claim), change: func(s *Situation) { s.Shared[claimsOf(s.Pods[0])[0]] = false },
			reason: "its volume data cannot be shared"},
		"disk": {pod: webPod("p", volume(corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{}})),
			reason: "its volume cannot be shared"},
		"budget by hash": {pod: webPod("p"), change: func(s *Situation) {
			b := budget("web", 1)
			b.Spec.Selector.MatchLabels[hashLabel] = "abc12"
			s.Budgets = []*policyv1.PodDisruptionBudget{b}
		}, reason: "by its pod-template-hash it is covered by disruption budget web"},
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
		s := surging(Workload{Slots: 1}, webPod("p", claim))
		if d := Plan(now, s)[0]; d.Action != Later {
			t.Errorf("%s before the claim is known, want hold", d.Action)
		}
		s.Shared[claimsOf(s.Pods[0])[0]] = true
		if d := Plan(now, s)[0]; d.Action != SurgeNow {
			t.Errorf("%s (%s), want surge", d.Action, d.NoSurge)
		}
	})
}

func TestOwnPodGoesLast(t *testing.T) {
	s := surging(Workload{}, pod("own"), pod("other"))
	s.Policy.Strategy, s.Policy.Self, s.Capacity = Hold, types.NamespacedName{Namespace: "shop", Name: "own"}, ReadyCapacity
	if got, want := actions(Plan(now, s)), "other evict, own hold"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.Pods = s.Pods[:1]
	if got, want := actions(Plan(now, s)), "own evict"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestBlockedPods(t *testing.T) {
	passed := 81 * time.Second
	for name, tt := range map[string]struct {
		flag, namespace BlockedPolicy
		annotation      string
		want            Action
	}{
		"leave":                         {flag: Leave, want: Evict},
		"delete":                        {flag: Delete, want: Force},
		"namespace before flag":         {flag: Leave, namespace: Delete, want: Force},
		"pod before namespace":          {flag: Delete, namespace: Delete, annotation: "leave", want: Evict},
		"nonsense counts as not there":  {flag: Delete, annotation: "perhaps", want: Force},
		"pod before flag, on the other": {flag: Leave, annotation: "delete", want: Force},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("p", withGrace(30))
			if tt.annotation != "" {
				p.Annotations[BlockedAnnotation] = tt.annotation
			}
			s := surging(Workload{}, p)
			s.Policy.Strategy, s.Policy.Blocked = Hold, tt.flag
			s.Refused = map[types.UID]bool{p.UID: true}
			s.Blocked = map[string]BlockedPolicy{"shop": tt.namespace}
			if d := Plan(now, s)[0]; d.Action != Later {
				t.Errorf("before its latest start: %s, want hold", d.Action)
			}
			if d := Plan(now.Add(passed), s)[0]; d.Action != tt.want {
				t.Errorf("%s (%s), want %s", d.Action, d.Reason, tt.want)
			}
			s.Blocked = nil
			if d := Plan(now.Add(passed), s)[0]; tt.annotation == "" && d.Action != Evict {
				t.Errorf("before it is known what its namespace says: %s, want evict", d.Action)
			}
			s.Refused = nil
			if d := Plan(now.Add(passed), s)[0]; d.Action != Evict {
				t.Errorf("never refused: %s, want evict", d.Action)
			}
		})
	}
}

// Seven pods under a budget of one, each 20 s to become Ready: the first goes six cycles
// before the latest start of the last.
func TestWaves(t *testing.T) {
	s := surging(Workload{})
	s.Policy.Strategy = Hold
	s.Budgets = []*policyv1.PodDisruptionBudget{budget("web", 1)}
	s.Deadline = now.Add(10 * time.Minute)
	for i := range 7 {
		s.Pods = append(s.Pods, pod(fmt.Sprint("p", i), of("web"), readyAfter(20*time.Second)))
	}
	s.Starts = planWaves(podsInWaves(now, s), s.Budgets)
	plan := Plan(now, s)
	latest := s.Deadline.Add(-40 * time.Second) // margin and grace period
	for i, d := range plan {
		if want := latest.Add(-time.Duration(6-i) * (20*time.Second + settle)); !d.At.Equal(want) {
			t.Errorf("wave %d starts at %s, want %s", i+1, d.At.Sub(now), want.Sub(now))
		}
	}
	first := plan[0].At
	if got := Plan(first, s)[0]; got.Action != Evict {
		t.Errorf("when its wave has come: %s, want evict", got.Action)
	}
	if got := Plan(first, s)[1]; got.Action != Later {
		t.Errorf("the next wave: %s, want hold", got.Action)
	}
	s.Budgets[0].Status.DesiredHealthy = 10 // lets none go: waves are of no use
	if got := planWaves(podsInWaves(now, s), s.Budgets); len(got) != 0 {
		t.Errorf("waves under a budget that lets none go: %v", got)
	}
}

// Nodes that share a budget: the one that ends first is first in line.
func TestWavesOfSeveralNodes(t *testing.T) {
	budgets := []*policyv1.PodDisruptionBudget{budget("web", 1)}
	var pods []wavePod
	for i, in := range []time.Duration{3, 1, 2} {
		s := surging(Workload{}, pod(fmt.Sprint("node", i), of("web"), readyAfter(8*time.Second)))
		s.Policy.Strategy, s.Deadline = Hold, now.Add(in*time.Minute)
		pods = append(pods, podsInWaves(now, s)...)
	}
	starts := planWaves(pods, budgets)
	if a, b, c := starts["uid-node1"], starts["uid-node2"], starts["uid-node0"]; !a.Before(b) || !b.Before(c) {
		t.Errorf("starts %s, %s, %s; want the order of the deadlines", a.Sub(now), b.Sub(now), c.Sub(now))
	}
}

func deploymentOf(replicas int32, change func(*deployment)) *deployment {
	d := &deployment{}
	d.Spec.Replicas = &replicas
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	d.Spec.Strategy.Type = "RollingUpdate"
	d.Spec.Strategy.RollingUpdate = &struct {
		MaxSurge *intstr.IntOrString `json:"maxSurge"`
	}{MaxSurge: new(intstr.FromString("25%"))}
	d.Status.Replicas, d.Status.UpdatedReplicas = replicas, replicas
	if change != nil {
		change(d)
	}
	return d
}

func TestMaxSurge(t *testing.T) {
	for surge, want := range map[string]int{"25%": 3, "0%": 0, "2": 2, "0": 0, "much": 0} {
		d := deploymentOf(10, func(d *deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.Parse(surge) })
		if got := d.maxSurge(); got != want {
			t.Errorf("maxSurge %s of 10 is %d, want %d", surge, got, want)
		}
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(*deployment){
		"":                          nil,
		"has the strategy Recreate": func(d *deployment) { d.Spec.Strategy.Type = "Recreate" },
		"has maxSurge 0":            func(d *deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.FromInt32(0) },
		"is paused":                 func(d *deployment) { d.Spec.Paused = true },
		"is being rolled out":       func(d *deployment) { d.Status.UpdatedReplicas = 2 },
	} {
		if got := deploymentOf(10, change).refuses(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func members(pods []*corev1.Pod) (list []*member) {
	for _, p := range pods {
		list = append(list, memberOf(p))
	}
	return list
}

// The count of a Deployment's pods never has one pod twice, whatever the ReplicaSet has
// caught up with: what is asked for counts at once, and no more when it shows.
func TestTally(t *testing.T) {
	d := deploymentOf(4, func(d *deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.FromInt32(1) })
	l := newTally()
	pods := []*corev1.Pod{webPod("a"), webPod("b"), webPod("c"), webPod("d")}
	check := func(what string, slots, spare int) {
		t.Helper()
		if w, _ := l.count(now, d, members(pods)); w.Slots != slots || w.Spare != spare {
			t.Errorf("%s: %d slots, %d spare; want %d, %d", what, w.Slots, w.Spare, slots, spare)
		}
	}
	check("before", 1, 0)
	if !l.reserve(now, d, members(pods), pods[0], SurgeNow) {
		t.Fatal("a is not surged")
	}
	check("asked for", 0, 0)
	if l.reserve(now, d, members(pods), pods[1], SurgeNow) {
		t.Fatal("b surged beside a, over maxSurge")
	}
	pods[0] = webPod("a", isSurgedPod)
	check("surged", 0, 0)
	successor := webPod("e", func(p *corev1.Pod) { p.Status.Conditions = nil })
	pods = append(pods, successor)
	check("successor made", 0, 0)
	if l.reserve(now, d, members(pods), pods[0], Evict) {
		t.Fatal("a evicted before its successor is available")
	}
	pods[4] = webPod("e")
	check("successor ready", 0, 1)
	if !l.reserve(now, d, members(pods), pods[0], Evict) {
		t.Fatal("a is not evicted")
	}
	check("eviction asked for", 0, 0)
	l.settle(pods[0].UID)
	check("eviction refused", 0, 1)
	if !l.reserve(now, d, members(pods), pods[0], Evict) {
		t.Fatal("a is not evicted")
	}
	pods[0].DeletionTimestamp = &metav1.Time{Time: now}
	check("terminating", 1, 0)
	pods = pods[1:]
	check("gone", 1, 0)

	*d.Spec.Replicas = 2 // scaled down: the ReplicaSet has not followed yet
	check("scaled down", 1, 2)
	if w, _ := l.count(now, nil, members(pods)); w.Selector != nil {
		t.Error("a Deployment that is gone has a selector")
	}
}

func TestTallyWaitsUntilAReadyPodIsAvailable(t *testing.T) {
	d := deploymentOf(1, func(d *deployment) { d.Spec.MinReadySeconds = 30 })
	fresh := webPod("b")
	fresh.Status.Conditions[1].LastTransitionTime = metav1.NewTime(now.Add(-10 * time.Second))
	w, next := newTally().count(now, d, members([]*corev1.Pod{webPod("a", isSurgedPod), fresh}))
	if w.Spare != 0 || !next.Equal(now.Add(20*time.Second)) {
		t.Errorf("%d spare, next at %s; want 0, in 20 s", w.Spare, next.Sub(now))
	}
	w, _ = newTally().count(next, d, members([]*corev1.Pod{webPod("a", isSurgedPod), fresh}))
	if w.Spare != 1 {
		t.Errorf("%d spare when it is available, want 1", w.Spare)
	}
}
