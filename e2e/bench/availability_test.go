package bench

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
)

// What the measured service is like: four full nodes of which one goes, so that the
// replacement pods have no room before a new node has booted.
const (
	bootTime      = 40 * time.Second
	readyTime     = 10 * time.Second
	stopTime      = 10 * time.Second
	noticeTime    = 120 * time.Second
	serviceNodes  = 4
	servicePods   = 28
	availableWait = 200 * time.Second // for all to be over
)

// way is how a node is emptied.
type way struct {
	name  string
	flags []string
	label string // in the picture
}

// ways are compared with the first, which is what `kubectl drain` does.
var ways = []way{
	{"evict at once, no signal", []string{"--drain-strategy=at-once", "--provisioner=none"}, "evict at once, as kubectl drain does"},
	{"signal, evict at once", []string{"--drain-strategy=at-once"}, "replacement requested first"},
	{"hold", []string{"--drain-strategy=hold"}, "hold for the new node"},
	{"surge", nil, "surge (default): replacement pods first"},
}

// BenchmarkAvailability interrupts one node of a service in each of the ways, side by
// side on one control plane with Karpenter, and adds up for how long how many of its pods
// were unavailable.
func BenchmarkAvailability(b *testing.B) {
	for name, budget := range map[string]intstr.IntOrString{
		"budget 25%": intstr.FromString("25%"), "budget 2": intstr.FromInt32(2),
	} {
		b.Run(strings.ReplaceAll(name, " ", "-"), func(b *testing.B) {
			for b.Loop() {
				measureAvailability(b, name, budget)
			}
		})
	}
}

func measureAvailability(b *testing.B, title string, budget intstr.IntOrString) {
	cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
	results := make([]outage, len(ways))
	var group sync.WaitGroup
	for i, w := range ways {
		group.Go(func() {
			s := service{
				B: b, cluster: cluster, name: fmt.Sprintf("way-%d", i), pods: servicePods, nodes: serviceNodes, ready: readyTime,
				budget: budget, grace: 30 * time.Second,
			}
			results[i] = s.lose(w.flags)
		})
	}
	group.Wait()
	if b.Failed() {
		return
	}
	if budget.Type == intstr.String {
		must(b, readyPods(results).write(readyPodsFile))
	}
	first := results[0].podSeconds
	for i, w := range ways {
		r := results[i]
		figure := row{what: fmt.Sprintf("unavailable, %s: %s", title, w.name), unit: "pod s", values: []float64{r.podSeconds}}
		switch w.name {
		case "hold":
			figure.limit, figure.ofLimit, figure.goal = []float64{first}, true, 0.22
			if budget.Type == intstr.Int {
				figure.goal = 0.5
			}
		case "surge":
			figure.none = true
		}
		report(figure)
		report(row{what: fmt.Sprintf("  fewest ready of %d; not graceful; nodes made", servicePods), text: fmt.Sprintf("%d; %d; %d", r.fewest, r.rough, r.claims)})
		report(row{what: "  node empty after", unit: "s", values: []float64{r.drained}})
	}
}

// BenchmarkWaves has a budget that lets one pod go at a time, and pods that take so long
// to become ready that the waves would not fit after the boot: with room for the first
// elsewhere all have to end gracefully. Seven pods a cycle of 20 s apart take longer than
// the two minutes of a spot notice, whoever moves them: they have three.
func BenchmarkWaves(b *testing.B) {
	for b.Loop() {
		cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
		for pods, notice := range map[int]time.Duration{5: noticeTime, 7: 3 * time.Minute} {
			s := service{
				B: b, cluster: cluster, name: fmt.Sprintf("waves-%d", pods), pods: pods, nodes: 1, spare: 1, notice: notice,
				ready: 20 * time.Second, budget: intstr.FromInt32(1), grace: 10 * time.Second,
			}
			r := s.lose([]string{"--drain-strategy=hold"})
			what := fmt.Sprintf("waves of 1, %d pods, ready after 20 s, %s, hold: pods not graceful", pods, notice)
			report(row{what: what, values: []float64{float64(r.rough)}, none: true})
			report(row{what: "  node empty after", unit: "s", values: []float64{r.drained}, goal: notice.Seconds()})
		}
	}
}

// BenchmarkRoom loses a node whose pods fit on another that is there: what a replacement costs
// then, and what it is worth.
func BenchmarkRoom(b *testing.B) {
	for b.Loop() {
		cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
		strategies, replacements := []string{"surge", "hold"}, []string{"always", "when-needed"}
		results := map[string]outage{}
		var mu sync.Mutex
		var group sync.WaitGroup
		for _, strategy := range strategies {
			for _, replacement := range replacements {
				group.Go(func() {
					s := service{
						B: b, cluster: cluster, name: "room-" + strategy + "-" + replacement, pods: servicePods, nodes: serviceNodes, spare: 1,
						ready: readyTime, budget: intstr.FromString("25%"), grace: 30 * time.Second,
					}
					r := s.lose([]string{"--drain-strategy=" + strategy, "--replacement=" + replacement})
					mu.Lock()
					defer mu.Unlock()
					results[strategy+", "+replacement] = r
				})
			}
		}
		group.Wait()
		for _, strategy := range strategies {
			for _, replacement := range replacements {
				what := strategy + ", " + replacement
				r := results[what]
				report(row{what: "with room elsewhere, unavailable: " + what, unit: "pod s", values: []float64{r.podSeconds}})
				report(row{what: fmt.Sprintf("  fewest ready of %d; not graceful; nodes made", servicePods), text: fmt.Sprintf("%d; %d; %d", r.fewest, r.rough, r.claims)})
				report(row{what: "  node empty after", unit: "s", values: []float64{r.drained}})
			}
		}
	}
}

// BenchmarkAvailabilityMass interrupts half of a pool at once.
func BenchmarkAvailabilityMass(b *testing.B) {
	const nodes, lost = 40, 20
	for b.Loop() {
		var first float64
		for _, w := range []way{ways[0], ways[3]} {
			b.Run(strings.ReplaceAll(w.name, " ", "-"), func(b *testing.B) {
				s := service{
					B: b, cluster: controlplane.ForTest(b, controlplane.Options{Karpenter: true}), name: "mass", pods: 7 * nodes, nodes: nodes,
					ready: readyTime, budget: intstr.FromString("25%"), grace: 30 * time.Second,
				}
				r := s.loseMany(lost, w.flags)
				figure := row{what: fmt.Sprintf("unavailable, %d of %d nodes at once: %s", lost, nodes, w.name), unit: "pod s", values: []float64{r.podSeconds}}
				if w.name == "surge" {
					figure.limit = []float64{first}
				}
				first = r.podSeconds
				report(figure)
				report(row{what: fmt.Sprintf("  fewest ready of %d; not graceful; nodes made", s.pods), text: fmt.Sprintf("%d; %d; %d", r.fewest, r.rough, r.claims)})
				report(row{what: "  nodes empty after", unit: "s", values: []float64{r.drained}, goal: noticeTime.Seconds()})
			})
		}
	}
}
