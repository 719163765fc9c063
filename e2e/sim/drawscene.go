package sim

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// DrawScene draws a scene.
func DrawScene(seed uint64) Scene {
	d := Draw(seed)
	s := Scene{Seed: seed}
	s.drawNodes(d)
	s.drawWorkloads(d)
	s.drawLosses(d)
	s.drawRehearsals(d)
	if !d.Chance(0.25, "quiet") {
		s.drawFaults(d)
	}
	s.Groups = Groups{
		Manage: d.Chance(0.25, "groups"), Rebalances: d.Chance(0.5, "groups rebalance"), Full: d.Chance(0.2, "spot group full"),
		Placeholders: d.Chance(0.3, "placeholders"),
	}
	if !s.Groups.Manage {
		s.Groups = Groups{}
	}
	s.Ahead = Pick(d, append(slices.Repeat([]time.Duration{0}, 7), 3*time.Second, 2*time.Second, -3*time.Second), "ahead")
	s.Flags = drawFlags(d, s.Groups)
	if !slices.Contains(s.Flags, "--provisioner=asg") { // mode drain calls nothing of AWS
		s.Intake = Pick(d, append(slices.Repeat([]string{IntakeQueue}, 18), IntakeIMDS, IntakeBoth), "intake")
	}
	s.drawHooks(d)
	if d.Chance(0.15, "webhook") {
		s.Webhook = d.Between(50*time.Millisecond, 450*time.Millisecond, "webhook takes")
	}
	s.Karpenter = Karpenter{
		Boot:         d.Between(15*time.Second, 70*time.Second, "boot"),
		NoCapacity:   Pick(d, []float64{0, 0, 0, 0.2, 1}, "no capacity"),
		NoSpot:       Pick(d, []float64{0, 0.3, 1}, "no spot"),
		NeverReady:   Pick(d, []float64{0, 0, 0, 0.3}, "never ready"),
		Provisions:   d.Chance(0.6, "provisions"),
		Consolidates: Pick(d, []time.Duration{0, 0, 20 * time.Second, time.Minute}, "consolidates"),
	}
	if d.Chance(0.15, "limit") {
		s.Karpenter.Limit = s.processorsOf(PoolFallback) + Pick(d, []int64{0, 2000, 4000, 12000}, "limit leaves")
	}
	if d.Chance(0.1, "reserved") {
		s.Karpenter.Reserved = 1 + d.Int(2, "how many reserved")
	}
	if d.Chance(0.2, "short of machines") {
		s.runShort(d)
	}
	return s
}

// runShort keeps new machines from coming in time: EC2 interrupts most when it's short of them, and metal takes minutes
// to boot. Several nodes are lost at once, and their pods have to make do with the room there is, which is plenty.
func (s *Scene) runShort(d Draw) {
	s.Karpenter.Limit, s.Karpenter.Reserved = 0, 0
	if d.Chance(0.6, "slow to boot") {
		s.Karpenter.Boot, s.Karpenter.NoCapacity = d.Between(2*time.Minute, 6*time.Minute, "boots slowly"), 0
	} else {
		s.Karpenter.NoCapacity, s.Karpenter.NoSpot = 1, 1
	}
	if d.Chance(0.5, "and nothing else fails") {
		s.Faults, s.Rates, s.Webhook = nil, Rates{}, 0
	}
	for i := range s.Nodes {
		if s.Nodes[i].Pool == PoolFallback {
			s.Nodes[i].CPU = 32000
		}
	}
	for i := range s.Losses {
		l := &s.Losses[i]
		overtakes := slices.ContainsFunc(s.Losses, func(of Loss) bool { return of.Node == l.Node && of.Kind == interruption.ScheduledEvent })
		if l.Kind == interruption.SpotInterruption && l.Cancel == 0 && l.Warned == 0 && !overtakes {
			l.At = 20*time.Second + time.Duration(i)*50*time.Millisecond
		}
	}
}

// scheduledLead is how long before its window a scheduled event drains a node.
const scheduledLead = 2 * time.Minute

func drawFlags(d Draw, groups Groups) []string {
	flags := []string{
		"--replacement-ttl=1m",
		"--drain-strategy=" + Pick(d, []string{"surge", "surge", "hold", "at-once"}, "strategy"),
		"--blocked-pods=" + Pick(d, []string{"leave", "leave", "delete"}, "blocked"),
		"--rebalance=" + Pick(d, []string{"replace", "replace", "fallback", "cordon", "ignore"}, "rebalance"),
		"--rebalance-ttl=4m",
		"--scheduled-lead=" + scheduledLead.String(),
		"--calm=" + Pick(d, []string{"0", "1m", "30m"}, "calm"),
	}
	if d.Chance(0.2, "needed") {
		flags = append(flags, "--replacement=when-needed")
	}
	switch {
	case d.Chance(0.1, "none"):
		flags = append(flags, "--provisioner=none")
	case groups.Placeholders:
		flags = append(flags, "--provisioner=placeholder", "--fallback-selector="+fallbackSelector)
	case groups.Manage:
		flags = append(flags, "--provisioner=asg")
	}
	return flags
}

var zones = []string{"eu-west-1a", "eu-west-1b", "eu-west-1c"}

func (s *Scene) drawNodes(d Draw) {
	for i := range 4 + d.Int(6, "spot nodes") {
		name := fmt.Sprintf("spot-%d", i)
		s.Nodes = append(s.Nodes, Node{
			Name: name, Pool: PoolSpot, Zone: Pick(d, zones, name, "zone"), CPU: Pick(d, []int64{4000, 4000, 8000}, name, "cpu"),
			Cordoned: d.Chance(0.05, name, "cordoned"),
		})
	}
	for i := range 1 + d.Int(3, "fallback nodes") {
		name := fmt.Sprintf("calm-%d", i)
		s.Nodes = append(s.Nodes, Node{Name: name, Pool: PoolFallback, Zone: Pick(d, zones, name, "zone"), CPU: 4000})
	}
}

// processorsOf are those that a pool has at the beginning.
func (s *Scene) processorsOf(pool string) (sum int64) {
	for _, n := range s.Nodes {
		if n.Pool == pool {
			sum += n.CPU
		}
	}
	return sum
}

// zoneLabels are those by which pods select a zone: the usual one, the one that it had before, and that of AWS's
// driver for volumes.
var zoneLabels = []string{corev1.LabelTopologyZone, corev1.LabelFailureDomainBetaZone, ebsZone}

const ebsZone = "topology.ebs.csi.aws.com/zone"

var budgets = []string{"maxUnavailable=1", "maxUnavailable=25%", "minAvailable=50%", "maxUnavailable=0", "minAvailable=1"}

func (s *Scene) drawWorkloads(d Draw) {
	kinds := []string{"Deployment", "Deployment", "Deployment", "StatefulSet", "StatefulSet", "ReplicaSet", "Job", "Pod"}
	for i := range 2 + d.Int(6, "workloads") {
		name := fmt.Sprintf("app-%d", i)
		w := Workload{
			Name: name, Kind: Pick(d, kinds, name, "kind"), Replicas: 1 + d.Int(8, name, "replicas"),
			CPU:   Pick(d, []int64{100, 250, 500, 1000}, name, "cpu"),
			Grace: Pick(d, []int64{1, 10, 30, 30, 45, 60, 90, 300}, name, "grace"),
			Start: d.Between(time.Second, 25*time.Second, name, "start"),
		}
		w.Stop = Pick(d, []time.Duration{
			100 * time.Millisecond, time.Second, time.Duration(w.Grace) * time.Second / 2, time.Duration(w.Grace) * time.Second * 9 / 10, time.Hour,
		}, name, "stop")
		switch w.Kind {
		case "Deployment":
			w.MaxSurge = Pick(d, []string{"25%", "1", "100%", "0"}, name, "surge")
		case "StatefulSet":
			w.Replicas, w.Volume = 1+d.Int(3, name, "replicas"), d.Chance(0.5, name, "volume")
		case "Pod":
			w.Replicas = 1
		}
		if w.Kind != "Pod" && w.Kind != "Job" && d.Chance(0.7, name, "has a budget") {
			w.Budget = Pick(d, budgets, name, "budget")
			if w.Kind == "StatefulSet" && d.Chance(0.5, name, "one at a time") { // as most databases
				w.Budget, w.Replicas = "maxUnavailable=1", max(3, w.Replicas)
			}
			if w.Replicas > 3 && d.Chance(0.5, name, "some at a time") {
				w.Budget = Pick(d, []string{"maxUnavailable=2", "maxUnavailable=3"}, name, "how many at a time")
			}
		}
		if d.Chance(0.25, name, "is broken") {
			w.Broken = 1
			if d.Chance(0.4, name, "several are") {
				w.Broken += d.Int(max(1, w.Replicas/2), name, "broken")
			}
		}
		w.Annotations, w.Gang = drawAnnotations(d, name), d.Chance(0.05, name, "gang")
		if d.Chance(0.03, name, "takes long") { // it finishes a game or a call
			w.Grace, w.Stop = longGrace, time.Hour
		}
		w.Tolerates = d.Chance(0.05, name, "tolerates")
		if d.Chance(0.08, name, "has a zone") {
			w.Zone, w.ZoneBy = Pick(d, zones, name, "zone"), Pick(d, zoneLabels, name, "label of the zone")
		}
		if w.Kind == "Deployment" || w.Kind == "ReplicaSet" {
			w.drawMany(d)
		}
		s.Workloads = append(s.Workloads, w)
	}
	agent := Workload{Name: "agent", Kind: "DaemonSet", CPU: 50, Grace: 30, Stop: time.Second, Start: 2 * time.Second}
	s.Workloads = append(s.Workloads, agent)
}

// longGrace is a grace period for which notices are too short, in seconds.
const longGrace = 15 * 60

// drawMany gives some workloads many small pods, of which more than a few may go at a time.
func (w *Workload) drawMany(d Draw) {
	if !d.Chance(0.05, w.Name, "many") {
		return
	}
	w.Replicas, w.CPU, w.Broken = 40+d.Int(80, w.Name, "how many"), 50, 0
	if w.Budget != "" {
		w.Budget = Pick(d, []string{"maxUnavailable=60%", "maxUnavailable=25%", "minAvailable=1"}, w.Name, "budget of many")
	}
}

func drawAnnotations(d Draw, name string) map[string]string {
	notes := map[string]string{}
	if d.Chance(0.1, name, "when") {
		notes["spot-handler/when"] = Pick(d, []string{"now", "hold", "last"}, name, "which")
	}
	if d.Chance(0.1, name, "disrupt") {
		notes["karpenter.sh/do-not-disrupt"] = "true"
	}
	if d.Chance(0.1, name, "blocked") {
		notes["spot-handler/blocked-pods"] = Pick(d, []string{"delete", "leave"}, name, "how blocked")
	}
	return notes
}

func (s *Scene) drawLosses(d Draw) {
	var spot []string
	for _, n := range s.Nodes {
		if n.Pool == PoolSpot {
			spot = append(spot, n.Name)
		}
	}
	burst, unsure := d.Chance(0.5, "burst"), d.Chance(0.08, "only recommends")
	n := min(len(spot), 1+d.Int(6, "losses"))
	for i, at := range d.of([]string{"which are lost"}).Perm(len(spot))[:n] {
		name := spot[at]
		loss := Loss{
			Node: name, Kind: interruption.SpotInterruption, Lead: interruption.SpotNotice, Copies: 1, Takes: true,
			At:    20*time.Second + d.Between(0, 40*time.Second, name, "at"),
			Delay: d.Between(100*time.Millisecond, 3*time.Second, name, "delay"),
			Early: -d.Between(0, 30*time.Second, name, "after"),
		}
		if burst {
			loss.At = 20*time.Second + time.Duration(i)*50*time.Millisecond
		}
		switch p := d.Float(name, "how"); {
		case p < 0.05: // the message is late
			loss.Delay = d.Between(30*time.Second, 140*time.Second, name, "late")
		case p < 0.10: // EC2 takes the instance early
			loss.Early = d.Between(0, 60*time.Second, name, "early")
		case p < 0.15: // or never
			loss.Takes = false
		case p < 0.20: // it says nothing
			loss.Copies = 0
		case p < 0.40: // or says it again
			loss.Copies, loss.Again = 2, d.Between(100*time.Millisecond, 40*time.Second, name, "again")
			loss.Renews = d.Chance(0.3, name, "renews")
		case p < 0.46:
			if d.Chance(0.4, name, "says it again") {
				loss.Copies, loss.Renews = 2, true
				loss.Again = d.Between(time.Second, 70*time.Second, name, "again")
			}
			loss.Cancel = loss.At + d.Between(time.Second, 60*time.Second, name, "cancel")
			if loss.Copies == 2 && d.Chance(0.5, name, "crosses") { // in the moment in which it is cancelled
				loss.Again = max(time.Second, loss.Cancel-loss.At-loss.Delay+d.Between(-2*time.Second, 8*time.Second, name, "crosses after"))
			}
			loss.Takes = d.Chance(0.3, name, "takes all the same")
		}
		switch p := d.Float(name, "kind"); {
		case p < 0.15:
			loss.Warned = d.Between(time.Second, 90*time.Second, name, "warned")
			loss.At += loss.Warned
		case p < 0.25 || unsure:
			loss.Kind, loss.Lead, loss.Takes, loss.Cancel = interruption.RebalanceRecommendation, 0, false, 0
			loss.Copies = max(1, loss.Copies)
		}
		if loss.Kind == interruption.SpotInterruption && d.Chance(0.08, name, "retires") {
			loss = drawRetirement(d, loss)
		}
		if loss.Kind == interruption.SpotInterruption && d.Chance(0.07, name, "hibernates") {
			loss.Hibernates, loss.Lead, loss.Renews, loss.Takes, loss.Cancel = true, 0, false, true, 0
			loss.Early = -d.Between(10*time.Second, 4*time.Minute, name, "writes its memory")
		}
		s.Losses = append(s.Losses, loss)
		if loss.Kind == interruption.ScheduledEvent && loss.Withdrawn == 0 && d.Chance(0.4, name, "is interrupted first") {
			s.Losses = append(s.Losses, s.drawOvertaken(d))
		}
	}
}

// drawRetirement makes a loss one that EC2 has scheduled, minutes ahead here.
func drawRetirement(d Draw, l Loss) Loss {
	l.Kind, l.Lead, l.Renews = interruption.ScheduledEvent, d.Between(3*time.Minute, 8*time.Minute, l.Node, "window"), false
	l.Delay, l.Early = min(l.Delay, 3*time.Second), min(l.Early, 0)
	if d.Chance(0.3, l.Node, "withdrawn") {
		l.Withdrawn, l.Takes, l.Cancel = l.At+d.Between(10*time.Second, l.Lead, l.Node, "when withdrawn"), false, 0
	}
	return l
}

// drawOvertaken has EC2 leave the instance of the last loss, a scheduled event, running past the beginning of the
// event's window, and interrupt it before it acts on the event.
func (s *Scene) drawOvertaken(d Draw) Loss {
	scheduled := &s.Losses[len(s.Losses)-1]
	scheduled.Takes, scheduled.Cancel, scheduled.Reboots = false, 0, d.Chance(0.5, scheduled.Node, "reboots")
	return Loss{
		Node: scheduled.Node, Kind: interruption.SpotInterruption, Lead: interruption.SpotNotice, Copies: 1, Takes: true,
		At:    scheduled.At + scheduled.Lead + d.Between(-time.Minute, 2*time.Minute, scheduled.Node, "interrupted"),
		Delay: d.Between(100*time.Millisecond, 3*time.Second, scheduled.Node, "delay of that"),
	}
}

// longest is longer than a round.
const longest = time.Hour

var webhooksTake = []time.Duration{
	300 * time.Millisecond, 5 * time.Second, 10005 * time.Millisecond, 12 * time.Second, 30 * time.Second,
}

func (s *Scene) drawFaults(d Draw) {
	for i := range d.Int(4, "faults") {
		name := fmt.Sprintf("fault-%d", i)
		f := Fault{
			What: Pick(d, []string{
				FaultDown, FaultSilent, FaultKill, FaultKill, FaultStop, FaultBreak, FaultExpire, FaultQueue,
				FaultSlow, FaultTouches, FaultAdmit, FaultAdmit, FaultMarks, FaultDenies, FaultLease,
			}, name, "what"),
			Replica: d.Int(2, name, "replica"),
			From:    d.Between(0, 150*time.Second, name, "from"),
			For:     d.Between(500*time.Millisecond, 25*time.Second, name, "for"),
		}
		with := 0.3 // things fail more often just after machines are lost
		if f.What == FaultMarks || f.What == FaultAdmit {
			with = 0.7 // the webhook's own pods may have run there
		}
		if d.Chance(with, name, "comes with a loss") {
			l := s.Losses[d.Int(len(s.Losses), name, "which loss")]
			f.From = max(0, l.At-d.Between(0, 5*time.Second, name, "before it"))
		}
		switch f.What {
		case FaultSlow:
			f.Takes = d.Between(200*time.Millisecond, 4*time.Second, name, "takes")
		case FaultMarks:
			f.For *= 4
			f.Takes = Pick(d, []time.Duration{time.Second, 9 * time.Second, time.Minute}, name, "takes")
			f.Some = d.Chance(0.5, name, "some")
		case FaultDenies:
			f.From, f.For = 0, longest
		case FaultAdmit:
			f.For *= 4
			f.Takes = Pick(d, webhooksTake, name, "takes")
			f.Fails = f.Takes > 6*time.Second && d.Chance(0.6, name, "fails")
			if d.Chance(0.25, name, "stays") { // its own pods were on the nodes that are lost
				f.From, f.For = 0, longest
			}
		}
		s.Faults = append(s.Faults, f)
	}
	if d.Chance(0.18, "an older API server") {
		s.Faults = append(s.Faults, Fault{
			What: FaultOlder, Replica: -1,
			From:   d.Between(15*time.Second, 150*time.Second, "older", "from"),
			For:    d.Between(500*time.Millisecond, 25*time.Second, "older", "for"),
			Behind: d.Between(2*time.Second, 30*time.Second, "older", "behind"),
			Plural: Pick(d, []string{"", "", "nodes", "pods"}, "older", "kind"),
		})
	}
	rate := func(name string) float64 { return Pick(d, []float64{0, 0, 0.01, 0.05}, name) }
	s.Rates = Rates{
		Error: rate("errors"), Slow: rate("slow"), Lost: rate("lost"), Conflict: rate("conflicts"), Cut: rate("cut"),
		Lag: Pick(d, []time.Duration{0, 0, 20 * time.Millisecond, time.Second, 3 * time.Second}, "lag"),
	}
}
