package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var inGang = labelled(GangLabel, "g")

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }

// The pods of a gang leave together, at the latest when the first of them has to. What a pod asks
// for itself overrides its gang, and its gang its namespace. Who is in no gang, or in another,
// does not notice.
func TestDeparture(t *testing.T) {
	const latest = 80 * time.Second // of pods with 30 s of grace; those with 60 s have to go at 50 s
	slow := pod("b", inGang, withGrace(60))
	goNow, last, hold := annotated(WhenAnnotation, "now"), annotated(WhenAnnotation, "last"), annotated(WhenAnnotation, "hold")
	for name, tt := range map[string]struct {
		pod    *corev1.Pod
		other  *corev1.Pod
		change func(*Situation)
		action Action
		reason string
		at     time.Duration
	}{
		"of no gang":                     {pod("a"), slow, nil, Evict, "replacement is ready", latest},
		"of another gang":                {pod("a", labelled(GangLabel, "h")), slow, nil, Hold, withGang, latest},
		"of a gang of that name by else": {pod("a", labelled("ray.io/cluster", "g")), slow, nil, Hold, withGang, latest},
		"of another namespace's":         {pod("a", inGang, inNamespace("bank")), slow, nil, Hold, withGang, latest},
		"alone":                          {pod("a", inGang), pod("b"), nil, Hold, withGang, latest},
		"with an urgent one":             {pod("a", inGang), slow, nil, Hold, withGang, 50 * time.Second},
		"the urgent one has to go":       {pod("a", inGang), pod("b", inGang, withGrace(110)), nil, Evict, "a pod of its gang has to leave now", 0},
		"the urgent one stays for good":  {pod("a", inGang), pod("b", inGang, withGrace(60), tolerating(taint.Key)), nil, Hold, withGang, latest},
		"the urgent one is finished":     {pod("a", inGang), pod("b", inGang, withGrace(60), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), nil, Hold, withGang, latest},
		"with a wave of a budget": {pod("a", inGang), slow, func(s *Situation) {
			s.Starts = map[types.UID]time.Time{"uid-b": now.Add(30 * time.Second)}
		}, Hold, withGang, 30 * time.Second},
		"one asks to go now":              {pod("a", inGang), pod("b", inGang, goNow), nil, Evict, "a pod of its gang leaves now", latest},
		"one answers now":                 {pod("a", inGang), slow, func(s *Situation) { s.Answers = map[types.UID]When{"uid-b": WhenNow} }, Evict, "a pod of its gang leaves now", 50 * time.Second},
		"another answers now":             {pod("a", inGang), pod("b"), func(s *Situation) { s.Answers = map[types.UID]When{"uid-b": WhenNow} }, Hold, withGang, latest},
		"one is leaving":                  {pod("a", inGang), pod("b", inGang, terminating), nil, Evict, "a pod of its gang leaves now", latest},
		"of a Job":                        {pod("a", inGang, ownedBy("Job")), pod("b", inGang, goNow), nil, Evict, "a pod of its gang leaves now", latest},
		"not to be disrupted":             {pod("a", inGang, annotated(DoNotDisrupt, "true")), pod("b", inGang, goNow), nil, Evict, "a pod of its gang leaves now", latest},
		"tolerates every taint":           {pod("a", inGang, tolerating("")), pod("b", inGang, goNow), nil, Hold, everyTaint, latest},
		"itself last":                     {pod("a", inGang, last), pod("b", inGang, goNow, withGrace(60)), nil, Hold, WhenAnnotation + "=last", latest},
		"itself hold":                     {pod("a", inGang, hold), slow, nil, Evict, "replacement is ready", latest},
		"its namespace now":               {pod("a", inGang), slow, func(s *Situation) { s.Namespaces = map[string]Preferences{"shop": {When: WhenNow}} }, Hold, withGang, 50 * time.Second},
		"at once":                         {pod("a", inGang), slow, func(s *Situation) { s.Policy.Strategy = StrategyAtOnce }, Hold, withGang, 50 * time.Second},
		"on another node, urgent":         {pod("a", inGang), pod("b"), alsoElsewhere(Departure{At: now.Add(time.Minute)}), Hold, withGang, time.Minute},
		"on another node, later":          {pod("a", inGang), pod("b"), alsoElsewhere(Departure{At: now.Add(2 * time.Minute)}), Hold, withGang, latest},
		"on another node, now":            {pod("a", inGang), pod("b"), alsoElsewhere(Departure{Now: true}), Evict, "a pod of its gang leaves now", latest},
		"no deadline":                     {pod("a", inGang), slow, atRisk, Hold, "no deadline: " + withGang, 0},
		"no deadline, now":                {pod("a", inGang), pod("b", inGang, goNow), atRisk, Evict, "a pod of its gang leaves now", 0},
		"no deadline, one is leaving":     {pod("a", inGang), pod("b", inGang, terminating), atRisk, Hold, "no deadline: " + withGang, 0},
		"no deadline, now, of a Job":      {pod("a", inGang, ownedBy("Job")), pod("b", inGang, ownedBy("Job"), goNow), atRisk, Evict, "a pod of its gang leaves now", 0},
		"no deadline, asks now in a Job":  {pod("a", inGang, ownedBy("Job"), goNow), pod("b", inGang, ownedBy("Job")), atRisk, Evict, WhenAnnotation + "=now", 0},
		"no deadline, now, a Job's alone": {pod("a", ownedBy("Job"), goNow), pod("b", inGang, goNow), atRisk, Hold, "no deadline: Job pod: might finish by itself", 0},
		"no deadline, now, itself last":   {pod("a", inGang, last), pod("b", inGang, goNow), atRisk, Hold, "no deadline: " + WhenAnnotation + "=last", 0},
		"at risk, leaves elsewhere":       {pod("a", inGang), pod("b"), both(atRisk, alsoElsewhere(Departure{At: now, Now: true})), Hold, "no deadline: " + withGang, 0},
		"at risk, due elsewhere":          {pod("a", inGang), pod("b"), both(atRisk, alsoElsewhere(Departure{At: now})), Hold, "no deadline: " + withGang, 0},
		"at risk, asked elsewhere":        {pod("a", inGang, ownedBy("Job")), pod("b"), both(atRisk, alsoElsewhere(Departure{Now: true, Asked: true})), Evict, "a pod of its gang leaves now", 0},
		"elsewhere at risk and leaving":   {pod("a", inGang), pod("b"), alsoElsewhere(Situation{Pods: []*corev1.Pod{pod("c", inGang, terminating)}}.departures()[Gang{"shop", GangLabel, "g"}]), Hold, withGang, latest},
	} {
		t.Run(name, func(t *testing.T) {
			s := Situation{
				NodeState: NodeState{Taint: taint, Deadline: now.Add(2 * time.Minute), Capacity: ReadyCapacity},
				Policy:    policy, Pods: []*corev1.Pod{tt.pod, tt.other},
			}
			if tt.change != nil {
				tt.change(&s)
			}
			d := decided(s, tt.pod)
			if d.Action != tt.action || d.Reason != tt.reason {
				t.Errorf("%s (%s), want %s (%s)", d.Action, d.Reason, tt.action, tt.reason)
			}
			if want := now.Add(tt.at); !d.At.Equal(want) && !(s.Deadline.IsZero() && d.At.IsZero()) {
				t.Errorf("at the latest after %s, want %s", d.At.Sub(now), tt.at)
			}
			if d.At.After(d.Latest) {
				t.Errorf("at %s, past its eviction deadline", d.At)
			}
		})
	}
}

func atRisk(s *Situation) { s.Deadline = time.Time{} }

func both(a, b func(*Situation)) func(*Situation) {
	return func(s *Situation) {
		a(s)
		b(s)
	}
}

// alsoElsewhere has the gang g leave another node so.
func alsoElsewhere(departure Departure) func(*Situation) {
	return func(s *Situation) {
		all := newGangs()
		all.Report(now, "elsewhere", map[Gang]Departure{{"shop", GangLabel, "g"}: departure})
		all.Report(now, "here", s.departures())
		s.Gangs = all.Of("here")
	}
}

// A pod of a gang is not surged: one new pod is no use to the others.
func TestGangIsNotSurged(t *testing.T) {
	s := surging(DeploymentState{Slots: 1}, webPod("a", inGang))
	if d := decided(s, s.Pods[0]); d.Action != Hold || d.NoSurge != withGang {
		t.Errorf("%s, not surged as %q", d.Action, d.NoSurge)
	}
}
