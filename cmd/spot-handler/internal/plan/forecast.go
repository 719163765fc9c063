package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// Forecast is what would happen. Its fields keep their names and meaning from version to version;
// new ones may be added. All times are seconds since the first notice.
type Forecast struct {
	Assumptions Assumptions `json:"assumptions"`
	// Settings says where the daemon's settings were found, by which pods are moved.
	Settings string `json:"settings,omitempty"`
	// Underway names the nodes that are interrupted already, which is played too. What becomes of
	// their pods is shown in sums of workloads and budgets only.
	Underway  []string   `json:"underway,omitempty"`
	Nodes     []Node     `json:"nodes"`
	Pods      []Pod      `json:"pods"`
	Workloads []Workload `json:"workloads"`
	Budgets   []Budget   `json:"budgets"`
	// Unread is what could not be read, and so is not in the forecast.
	Unread []string `json:"unread,omitempty"`
	// DryRun is what the API server says to all of it; nil if it was not asked.
	DryRun *Answers `json:"dryRun,omitempty"`
}

// Seconds since the first notice.
type Seconds float64

// Outcome is what becomes of a pod.
type Outcome string

// The outcomes. The first four are those that the record of an interruption counts.
const (
	Graceful  Outcome = "graceful"  // it has the whole grace period that it asks for
	Truncated Outcome = "truncated" // it has less
	Forced    Outcome = "forced"    // it is deleted past its disruption budget
	Left      Outcome = "left"      // it is not evicted, and ends with its node, or is deleted just before
	Stays     Outcome = "stays"     // nobody moves it: it tolerates the end, or the node is only at risk
)

// outcomes lists every outcome.
func outcomes() []Outcome { return []Outcome{Graceful, Truncated, Forced, Left, Stays} }

// Node is a node that is lost.
type Node struct {
	Name string            `json:"name"`
	Kind interruption.Kind `json:"kind"`
	// Notice is when EC2's notice arrives.
	Notice Seconds `json:"noticeSeconds"`
	// Deadline is when EC2 takes the node; nil if it only might.
	Deadline *Seconds `json:"deadlineSeconds,omitempty"`
	// Cordoned is when nothing new is scheduled to it.
	Cordoned Seconds `json:"cordonedSeconds"`
	// Empty is when the last pod that had to leave has left, and its volumes are detached; nil if
	// that does not happen in time.
	Empty *Seconds `json:"emptySeconds,omitempty"`
	// Ended is when the drain ends: at Empty, or shortly before the deadline. It is nil where there
	// is no deadline and pods stay.
	Ended *Seconds `json:"endedSeconds,omitempty"`
	// Slack is the time from Ended to Deadline.
	Slack *Seconds `json:"slackSeconds,omitempty"`
	// Replacement is what is asked for in the node's place; nil if nothing is.
	Replacement *Replacement `json:"replacement,omitempty"`
}

// Replacement is the capacity in the place of a node.
type Replacement struct {
	Backend string `json:"backend,omitempty"` // such as karpenter; spare where the pods fit on other nodes
	State   string `json:"state,omitempty"`   // Requested; Ready for spare; Failed or Unsupported if there is none
	Name    string `json:"name,omitempty"`
	Pool    string `json:"pool,omitempty"`
	// Why says why that pool, or why there is no replacement.
	Why string `json:"why,omitempty"`
	// InstanceType is set if there is no other choice.
	InstanceType string `json:"instanceType,omitempty"`
	// Pods and Daemons are how many it is made for.
	Pods    int `json:"pods,omitempty"`
	Daemons int `json:"daemons,omitempty"`
	// Requests are what it asks for, by resource, and Requirements what its node has to be.
	Requests     corev1.ResourceList `json:"requests,omitempty"`
	Requirements []string            `json:"requirements,omitempty"`
	// Ready is when it takes pods; nil if it never does.
	Ready *Seconds `json:"readySeconds,omitempty"`
	// NoPlace names the pods that it does not take, and why.
	NoPlace []string `json:"noPlace,omitempty"`
	// Others are the pools that it is not from.
	Others []OtherPool `json:"others,omitempty"`
}

// OtherPool is a pool that a replacement is not from.
type OtherPool struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Pod is a pod of a lost node. Pods that DaemonSets and kubelets made are not listed.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Workload is what made it, such as deployment/web; empty if nothing did.
	Workload string  `json:"workload,omitempty"`
	Node     string  `json:"node"`
	Grace    Seconds `json:"graceSeconds"` // that it asks for
	// EvictBy is when its eviction has to begin at the latest; nil without a deadline.
	EvictBy *Seconds `json:"evictBySeconds,omitempty"`
	// Leaves is when its eviction begins, or its deletion; nil if it never does.
	Leaves *Seconds `json:"leavesSeconds,omitempty"`
	// Gone is when it has ended; nil if it goes on.
	Gone *Seconds `json:"goneSeconds,omitempty"`
	// WaitsFor is what it waited for longest before it left.
	WaitsFor string `json:"waitsFor,omitempty"`
	// Surge: its replacement pod is made before it leaves. NoSurge says why not.
	Surge   bool    `json:"surge"`
	NoSurge string  `json:"noSurge,omitempty"`
	Outcome Outcome `json:"outcome"`
	// Reason says why it does not end gracefully, or why it stays: a refusal in the API server's
	// words, the grace period that does not fit.
	Reason string `json:"reason,omitempty"`
}

// Workload is how a workload with pods on lost nodes fares.
type Workload struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"` // such as deployment/web
	Replicas  int    `json:"replicas"`
	Ready     int    `json:"ready"` // at the first notice
	// FewestReady is the fewest pods that are ready at the same time, At when that is first so.
	FewestReady int     `json:"fewestReady"`
	At          Seconds `json:"atSeconds"`
	// Unplaced is how many replacement pods have no node in the end.
	Unplaced int `json:"unplaced"`
	// UnavailablePodSeconds adds up, over all pods fewer than at first, for how long they are missing.
	UnavailablePodSeconds float64 `json:"unavailablePodSeconds"`
}

// Budget is how a disruption budget fares that covers pods of lost nodes.
type Budget struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Covers    int    `json:"covers"`  // pods of lost nodes
	Desired   int    `json:"desired"` // healthy pods that it asks for
	Healthy   int    `json:"healthy"` // at the first notice
	// FewestHealthy is the fewest pods that are healthy at the same time, At when that is first so.
	FewestHealthy int     `json:"fewestHealthy"`
	At            Seconds `json:"atSeconds"`
	// UnavailablePodSeconds adds up for how long how many healthy pods are missing to Desired.
	UnavailablePodSeconds float64 `json:"unavailablePodSeconds"`
	Refused               int     `json:"refused"` // pods whose eviction it has refused at first
}

// after is how long the world is watched once the last node is gone: until lost pods are replaced.
const after = 10 * time.Minute

// play makes the forecast. It takes the shorter the fewer pods are on the lost nodes; nodes that are
// not lost cost little.
func (w *world) play() Forecast {
	last := w.in.At
	for _, l := range w.lost {
		last = slices.MaxFunc([]time.Time{last, l.Noticed, l.Deadline}, time.Time.Compare)
	}
	w.announce()
	w.at(w.now, podsFirst, w.schedule)
	w.run(last.Add(after))
	return w.result()
}

func (w *world) result() Forecast {
	f := Forecast{
		Assumptions: w.in.Assumptions,
		Settings:    w.in.Settings,
		Unread:      w.in.Unread,
		Nodes:       []Node{},
		Pods:        []Pod{},
		Workloads:   []Workload{},
		Budgets:     []Budget{},
	}
	f.Assumptions.ReadyOf = map[string]Assumption{}
	for _, l := range w.lost {
		if l.Underway {
			f.Underway = append(f.Underway, l.Name())
			continue
		}
		n := l.report
		n.Cordoned = n.Notice
		if !l.Deadline.IsZero() {
			n.Deadline = w.offsetOf(l.Deadline)
			if n.Ended != nil {
				n.Slack = new(*n.Deadline - *n.Ended)
			}
		}
		if n.Replacement = l.Replacement; n.Replacement != nil {
			n.Replacement.Ready = w.offsetOf(l.ready)
		}
		f.Nodes = append(f.Nodes, n)
	}
	for _, s := range w.fates {
		if s.Outcome == Graceful && s.Leaves == nil && s.Gone == nil { // nothing ever makes it leave
			s.Outcome, s.Reason = Stays, s.waitsFor
		}
		s.waits(w, "")
		f.Pods = append(f.Pods, s.Pod)
	}
	slices.SortFunc(f.Pods, func(a, b Pod) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, p := range w.waiting {
		if p.fresh {
			p.workload.report.Unplaced++
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.workloads)) {
		of := w.workloads[key]
		if !asked(of.users) {
			continue
		}
		of.account(w)
		f.Workloads = append(f.Workloads, of.report)
		if known, ok := w.in.Assumptions.ReadyOf[key]; ok {
			f.Assumptions.ReadyOf[key] = known
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(w.budgets)) {
		for _, b := range w.budgets[namespace] {
			if b.report.Covers > 0 && asked(b.users) {
				b.account(w)
				f.Budgets = append(f.Budgets, b.report)
			}
		}
	}
	return f
}

// asked reports whether the forecast is about any of the nodes.
func asked(nodes map[*lostNode]bool) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(nodes)), func(l *lostNode) bool { return !l.Underway })
}
