package stories

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
)

// Five hundred pods are notified at once. They answer promptly, with a word or without, slowly, never,
// with nonsense and with a megabyte. All get it within the same seconds, and none leaves early or
// late for it: they are evicted when those are that do not ask. Those cost nothing but that.
func TestFiveHundredWorkloadsHearAtOnce(t *testing.T) {
	s := newLargeStory(t, controlplane.Options{Audit: true})
	const perNode, notice, grace = 14, 70 * time.Second, 30 * time.Second
	nodes := s.bare("node", 6, 16)
	all := s.servers()
	group, on := map[types.UID]string{}, map[types.UID]string{}
	var asking, others []string
	// Of one node's pods those with the first names are evicted first: those that do not ask are
	// in the middle.
	for name, annotations := range map[string]map[string]string{
		"a": all.asks("last"), "b": all.asks("slow"), "c": all.asks("never"),
		"m": {},
		"x": all.asks("nonsense"), "y": all.asks("megabyte"), "z": all.asks("silent"),
	} {
		annotations["spot-handler/when"] = "last"
		pods, err := s.cluster.CreateCrowd(s.ctx, controlplane.Crowd{Name: name, PerNode: perNode, Annotations: annotations}, nodes)
		s.must(err)
		for _, p := range pods {
			group[p.UID], on[p.UID] = name, p.Spec.NodeName
			if name == "m" {
				others = append(others, p.Name)
			} else {
				asking = append(asking, p.Name)
			}
		}
	}
	d, queue := s.drill(noticing...)

	latest := map[string]time.Time{}
	for _, n := range nodes {
		latest[n.Name] = interrupt(queue, n.Name, notice).Add(-10*time.Second - grace)
	}
	s.eventually("notice of every pod", func() bool { return len(all.firsts()) == len(asking) })
	firsts := all.firsts()
	spread := firsts[len(firsts)-1].Sub(firsts[0])
	if spread > 15*time.Second { // eight at a time would take 21 s for those alone that never answer
		t.Errorf("the last pod heard %s after the first", spread)
	}
	s.eventually("end of all drains", func() bool { return len(d.Lines("drained"))+len(d.Lines("deadline reached")) == len(nodes) })

	late := map[bool][]time.Duration{} // by whether they ask
	for _, r := range s.evicted() {
		uid := types.UID(r.RequestObject.DeleteOptions.Preconditions.UID)
		by := r.RequestReceivedTimestamp.Sub(latest[on[uid]])
		if by < 0 {
			t.Errorf("a pod of group %s was evicted %s early", group[uid], -by)
		}
		late[group[uid] != "m"] = append(late[group[uid] != "m"], by)
	}
	if len(late[true]) == 0 || len(late[false]) == 0 {
		t.Fatalf("%d and %d evicted, want some of both", len(late[true]), len(late[false]))
	}
	with, without := mean(late[true]), mean(late[false])
	t.Logf("%d pods heard within %s; evicted %s after the latest safe start on average, the others %s", len(asking), spread, with, without)
	if with-without > time.Second {
		t.Errorf("pods that ask were evicted %s later than others", with-without)
	}

	asked := map[string]int{} // of the API server, by pod
	for _, r := range s.requests(func(r request) bool { return r.ObjectRef.Resource == "pods" && r.ObjectRef.Name != "" }) {
		asked[r.ObjectRef.Name+" "+r.Verb]++
	}
	for _, name := range others {
		if asked[name+" patch"] > 0 || asked[name+" get"] > 0 {
			t.Errorf("pod %s, which did not ask, cost %d patches and %d reads", name, asked[name+" patch"], asked[name+" get"])
		}
	}
	for _, name := range asking {
		if asked[name+" patch"] > 1 || asked[name+" get"] > 0 {
			t.Errorf("pod %s cost %d patches and %d reads, want one patch", name, asked[name+" patch"], asked[name+" get"])
		}
	}
	for pod, posts := range all.posts() {
		if strings.HasPrefix(pod, "m-") || posts > 2 {
			t.Errorf("pod %s got %d POSTs, want two at most, and none if it did not ask", pod, posts)
		}
	}
	counted := 0.0
	for _, result := range []string{"delivered", "answered", "unusable", "refused", "failed"} {
		counted += s.metric(d, fmt.Sprintf(`spot_handler_workload_notices_total{result=%q}`, result))
	}
	if counted != float64(len(asking)) {
		t.Errorf("%v notices counted, want one for each of %d pods", counted, len(asking))
	}
}

// firsts are the times at which each pod heard first, in their order.
func (a *servers) firsts() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := map[string]time.Time{}
	for _, h := range a.heard {
		if _, again := at[h.Subject]; !again {
			at[h.Subject] = h.at
		}
	}
	times := make([]time.Time, 0, len(at))
	for _, t := range at {
		times = append(times, t)
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// posts are how many each pod got.
func (a *servers) posts() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[string]int{}
	for _, h := range a.heard {
		_, name, _ := strings.Cut(h.Subject, "/")
		n[name]++
	}
	return n
}

func mean(of []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range of {
		sum += d
	}
	return sum / time.Duration(len(of))
}
