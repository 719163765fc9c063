package reality

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"spot-handler/e2e/sim"
	"spot-handler/handler/interruption"
)

// begins is when a scene is joined: until then nothing happens in it.
const begins = 18 * time.Second

// draw draws scenes, leaves out what cannot be compared, see package sim, and makes one of them: they share a cluster
// and the flags of the first. With Karpenter it makes the nodes; otherwise nothing does.
func draw(seed uint64, n int, karpenter bool) sim.Scene {
	s := sim.Scene{Seed: seed}
	for i := range n {
		one := sim.DrawScene(seed + uint64(i))
		own := func(name string) string { return string(rune('a'+i)) + "-" + name }
		for _, node := range one.Nodes {
			node.Name = own(node.Name)
			s.Nodes = append(s.Nodes, node)
		}
		for _, w := range one.Workloads {
			if w.Kind == "DaemonSet" && i > 0 {
				continue
			}
			w.Name, w.Volume, w.Zone, w.Tolerates = own(w.Name), false, "", false
			w.Replicas, w.Grace = min(w.Replicas, 8), min(w.Grace, 300)
			if w.Kind == "StatefulSet" { // its pods start one after the other
				w.Start = min(w.Start, 10*time.Second)
			}
			s.Workloads = append(s.Workloads, w)
		}
		for nth, l := range one.Losses {
			if nth > 0 && one.Losses[nth-1].Node == l.Node { // EC2 has scheduled something before, which is not played
				continue
			}
			if l.Hibernates {
				l.Hibernates, l.Lead = false, interruption.SpotNotice
			}
			l.Node = own(l.Node)
			l.At = begins + 2*time.Second + (l.At-l.Warned-20*time.Second)/2
			l.Warned, l.Withdrawn = min(l.Warned, 20*time.Second), 0
			l.At += l.Warned
			if l.Kind == interruption.ScheduledEvent || !karpenter { // nothing else is done about the others
				l.Kind, l.Lead, l.Takes = interruption.SpotInterruption, interruption.SpotNotice, true
			}
			if karpenter { // it needs to read of EC2's ending them, and kwok's provider does not
				l.Early = min(l.Early, 0)
			}
			if l.Cancel > 0 {
				l.Cancel = l.At + 5*time.Second
			}
			s.Losses = append(s.Losses, l)
		}
		if i > 0 {
			continue
		}
		s.Flags = slices.DeleteFunc(one.Flags, func(flag string) bool {
			return strings.HasPrefix(flag, "--provisioner=") || strings.HasPrefix(flag, "--fallback-selector=")
		})
		if !karpenter {
			s.Flags = append(s.Flags, "--provisioner=none", "--release-node=false")
			continue
		}
		s.Karpenter = sim.Karpenter{Boot: min(one.Karpenter.Boot.Round(time.Second), 45*time.Second), Provisions: true, Steady: true}
	}
	return s
}

// ends is how long a scene is looked at: until a moment after the last deadline.
func ends(s sim.Scene) (at time.Duration) {
	for _, l := range s.Losses {
		at = max(at, l.At+interruption.SpotNotice+5*time.Second)
	}
	return at
}

func workloadOf(s sim.Scene, name string) *sim.Workload {
	for i := range s.Workloads {
		if s.Workloads[i].Name == name {
			return &s.Workloads[i]
		}
	}
	panic(fmt.Sprintf("no workload %q", name))
}
