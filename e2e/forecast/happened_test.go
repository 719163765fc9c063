package forecast

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// life is what was seen of a pod.
type life struct {
	first, last *corev1.Pod
	deleted     time.Time // when it was told to end
	grace       *int64    // with how many seconds; the kubelet's last word is none
	gone        time.Time
}

// lives follows all pods from when they are first seen.
type lives struct {
	mu  sync.Mutex
	pod map[types.UID]*life
}

func watchLives(t *testing.T, ctx context.Context, cluster *controlplane.Cluster) *lives {
	t.Helper()
	l := &lives{pod: map[types.UID]*life{}}
	see := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		one := l.pod[pod.UID]
		if one == nil {
			one = &life{first: pod}
			l.pod[pod.UID] = one
		}
		one.last = pod
		if pod.DeletionTimestamp != nil && one.deleted.IsZero() {
			one.deleted, one.grace = time.Now(), pod.DeletionGracePeriodSeconds
		}
	}
	factory := informers.NewSharedInformerFactory(cluster.Client, 0)
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, obj any) { see(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			see(obj)
			l.mu.Lock()
			defer l.mu.Unlock()
			if pod, ok := obj.(*corev1.Pod); ok {
				l.pod[pod.UID].gone = time.Now()
				if l.pod[pod.UID].deleted.IsZero() {
					l.pod[pod.UID].deleted = time.Now()
				}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return l
}

// of is the life of the pod of that name that was on the node before a time.
func (l *lives) of(namespace, name, node string, before time.Time) *life {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.pod {
		if one.first.Namespace == namespace && one.first.Name == name && one.last.Spec.NodeName == node && !one.first.CreationTimestamp.After(before) {
			return one
		}
	}
	return nil
}

// outcome is what becomes of a pod, as plan names it.
type outcome string

const (
	graceful  outcome = "graceful"
	truncated outcome = "truncated"
	forced    outcome = "forced"
	left      outcome = "left"
	stays     outcome = "stays"
)

var outcomes = []outcome{graceful, truncated, forced, left, stays}

// forecast is what plan prints for programs, as far as it is compared here. Times are seconds since
// the notice.
type forecast struct {
	Nodes []struct {
		Name  string
		Ended *float64 `json:"endedSeconds"`
	}
	Pods []forecastPod
}

type forecastPod struct {
	Namespace, Name, Workload, Node, WaitsFor, NoSurge, Reason string

	Leaves  *float64 `json:"leavesSeconds"`
	Gone    *float64 `json:"goneSeconds"`
	Outcome outcome
}

// seenLate is how much later than the drain we can see a pod end.
const seenLate = 2 * time.Second

// outcomeBy is what became of the pod until its node's drain ended, as the drain counts it. One that
// has drained the node has seen every pod end, and sooner than we have on a busy machine.
func (one *life) outcomeBy(end time.Time, drained bool) outcome {
	reason := ""
	for _, c := range one.last.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			reason = c.Reason
		}
	}
	own, had := one.first.Spec.TerminationGracePeriodSeconds, one.grace
	switch {
	case one.deleted.IsZero() || one.deleted.After(end) && !(drained && one.deleted.Before(end.Add(seenLate))):
		return left
	case reason == "DeletionBySpotHandler":
		return forced
	case own != nil && had != nil && *had < *own, !drained && (one.gone.IsZero() || one.gone.After(end.Add(seenLate))):
		return truncated
	}
	return graceful
}

// miss is a pod that has not ended as forecast.
type miss struct {
	forecastPod
	actual outcome
	life   *life
	since  time.Time
}

func (m miss) String() string {
	text := fmt.Sprintf("%s/%s (%s) on %s: forecast %s %s..%s (%s; %s; not surged: %s)", m.Namespace, m.Name, m.Workload, m.Node, m.Outcome, say(m.Leaves), say(m.Gone), m.WaitsFor, m.Reason, m.NoSurge)
	if m.life == nil {
		return text + "; it was never seen"
	}
	at := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return fmt.Sprintf("%.1f", t.Sub(m.since).Seconds())
	}
	return fmt.Sprintf("%s; it was %s %s..%s, grace %d", text, m.actual, at(m.life.deleted), at(m.life.gone), *m.life.first.Spec.TerminationGracePeriodSeconds)
}

func say(s *float64) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f", *s)
}

// account compares forecasts with what happened.
type account struct {
	clusters, nodes, pods int
	outcomes              map[outcome]int
	misses                []miss
	ends                  []end
	late                  []float64 // by how many seconds a pod left later than forecast
	leave, onTime         int       // pods that are to leave, and those that left when they were to
}

func newAccount() *account { return &account{outcomes: map[outcome]int{}} }

// end is when a node's drain ended.
type end struct {
	node             string
	forecast, actual float64
	pods             []string // that ended at another time than forecast
}

// off is how far the forecast is off, of what happened.
func (e end) off() float64 { return max(e.forecast-e.actual, e.actual-e.forecast) / max(e.actual, 0.1) }

// isNear: it is as forecast. A drain can take less than a second.
func (e end) isNear() bool {
	return e.off() <= near || max(e.forecast-e.actual, e.actual-e.forecast) <= 1
}

func (a *account) compare(t *testing.T, cluster *controlplane.Cluster, f forecast, l *lives) {
	t.Helper()
	a.clusters++
	ended := map[string]time.Time{}
	received := map[string]time.Time{}
	drained := map[string]bool{}
	ends := map[string]*end{}
	for _, n := range f.Nodes {
		a.nodes++
		node, err := cluster.WaitNode(t.Context(), n.Name, func(*corev1.Node) bool { return true })
		if err != nil || node == nil {
			t.Fatalf("node %s: %v", n.Name, err)
		}
		rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
		if err != nil || rec.Ended.IsZero() || n.Ended == nil {
			t.Fatalf("node %s has not ended, or not as forecast %s: %v %s", n.Name, say(n.Ended), err, rec)
		}
		received[n.Name], ended[n.Name] = rec.Received, rec.Ended
		drained[n.Name] = rec.Phase != interruption.DeadlineReached
		ends[n.Name] = &end{node: n.Name, forecast: float64(*n.Ended), actual: rec.Ended.Sub(rec.Received).Seconds()}
	}
	for _, p := range f.Pods {
		one := l.of(p.Namespace, p.Name, p.Node, received[p.Node])
		m := miss{forecastPod: p, life: one, since: received[p.Node]}
		if one != nil {
			m.actual = one.outcomeBy(ended[p.Node], drained[p.Node])
			if p.Outcome == stays && m.actual == left {
				m.actual = stays
			}
		}
		a.pods++
		a.outcomes[p.Outcome]++
		if m.actual != p.Outcome {
			a.misses = append(a.misses, m)
		}
		if p.Leaves == nil {
			continue
		}
		a.leave++
		if one == nil || one.deleted.IsZero() {
			ends[p.Node].pods = append(ends[p.Node].pods, m.String())
			continue
		}
		left := one.deleted.Sub(m.since).Seconds()
		late := left - float64(*p.Leaves)
		a.late = append(a.late, late)
		if max(late, -late) <= max(nearTime, near*left) {
			a.onTime++
		} else {
			ends[p.Node].pods = append(ends[p.Node].pods, m.String())
		}
	}
	for _, n := range f.Nodes {
		a.ends = append(a.ends, *ends[n.Name])
	}
}

// table is the account for people.
func (a *account) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "clusters %d, nodes %d, pods %d, as forecast, by name, %d (%.2f%%), and %d swapped with others of their workload\n",
		a.clusters, a.nodes, a.pods, a.pods-len(a.misses), 100*a.right(), a.swapped())
	fmt.Fprintf(&b, "left within %.0f%% of the forecast, or %.0f s, by name: %d of %d (%.2f%%)\n", 100*near, nearTime, a.onTime, a.leave, 100*a.timely())
	for _, o := range outcomes {
		wrong := 0
		for _, m := range a.misses {
			if m.Outcome == o {
				wrong++
			}
		}
		fmt.Fprintf(&b, "  forecast %-10s %4d, wrong %d\n", o, a.outcomes[o], wrong)
	}
	for _, m := range a.misses {
		fmt.Fprintf(&b, "  MISS %s\n", m)
	}
	slices.SortFunc(a.ends, func(x, y end) int { return -cmp.Compare(x.off(), y.off()) })
	fmt.Fprintf(&b, "end of the drain within 15%%, or a second: %d of %d nodes; the worst:\n", a.nearEnds(), len(a.ends))
	for i, e := range a.ends {
		if i >= 8 && len(e.pods) == 0 {
			continue
		}
		fmt.Fprintf(&b, "  %s forecast %.1f s, was %.1f s: %.0f%%\n", e.node, e.forecast, e.actual, 100*e.off())
		if len(e.pods) > 0 {
			fmt.Fprintf(&b, "    %s\n", strings.Join(e.pods, "\n    "))
		}
	}
	slices.Sort(a.late)
	if n := len(a.late); n > 0 {
		fmt.Fprintf(&b, "pods left later than forecast by: 5%% %.1f s, half %.1f s, 95%% %.1f s\n", a.late[n/20], a.late[n/2], a.late[n*19/20])
	}
	return b.String()
}

// near is how far a time can be off, and be as forecast; a pod's may be off by nearTime seconds, too.
const (
	near     = 0.15
	nearTime = 3.0
)

// nearEnds is how many drains ended as forecast.
func (a *account) nearEnds() (n int) {
	for _, e := range a.ends {
		if e.isNear() {
			n++
		}
	}
	return n
}

// right is the part of the pods that have ended as forecast, by name.
func (a *account) right() float64 { return 1 - float64(len(a.misses))/float64(max(1, a.pods)) }

// timely is the part of the pods that are to leave, and left when they were to, by name.
func (a *account) timely() float64 { return float64(a.onTime) / float64(max(1, a.leave)) }

// swapped is how many of the misses are only about which of a workload's pods it was.
func (a *account) swapped() int {
	type of struct {
		workload string
		outcome  outcome
	}
	missing := map[of]int{}
	for _, m := range a.misses {
		if m.Workload != "" {
			missing[of{m.Namespace + "/" + m.Workload, m.Outcome}]++
		}
	}
	n := 0
	for _, m := range a.misses {
		if key := (of{m.Namespace + "/" + m.Workload, m.actual}); missing[key] > 0 {
			missing[key]--
			n++
		}
	}
	return n
}
