package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/sim/memapi"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
)

// judge holds every change, and what is left in the end, to the invariants.
type judge struct {
	w      *World
	broken []string
	said   map[string]bool

	nodes    map[string]*nodeLife
	pods     map[types.UID]*podLife
	closed   map[string]time.Time // when a budget has last let nobody go
	messages []sentMessage
	repeats  map[string][]time.Time // failed requests by process and what they are
	requests int
	// placeholders are those that were ever made, with what for.
	placeholders map[string]bool
	hooks        map[string]*hookLife // by instance
	// terminated are the instances that we have asked EC2 to end.
	terminated map[string]bool

	stoodIn  map[string]time.Time // when each NodeClaim lost its stands-in annotation
	replaced map[string][]string  // the NodeClaims that were made for an instance, by its id
	// lastReplaced is when the last of these was made.
	lastReplaced time.Time
	dropped      time.Time // when a NodeClaim was last removed

	waiting int       // evictions that are waiting for a webhook
	crowded time.Time // when manyWait or more last were

	asked int // how often the status was asked for

	led      string    // the process that has the lease
	ledSince time.Time // and since when
}

func newJudge(w *World) *judge {
	return &judge{
		w:       w,
		said:    map[string]bool{},
		nodes:   map[string]*nodeLife{},
		pods:    map[types.UID]*podLife{},
		repeats: map[string][]time.Time{},
		closed:  map[string]time.Time{},
		hooks:   map[string]*hookLife{},

		placeholders: map[string]bool{},
		terminated:   map[string]bool{},
		replaced:     map[string][]string{},
		stoodIn:      map[string]time.Time{},
	}
}

// meet takes in the pods that there are at the beginning.
func (j *judge) meet() {
	for _, pod := range memapi.List[*corev1.Pod](j.w.Server, memapi.Pods) {
		j.pods[pod.UID] = &podLife{pod: pod}
		if pod.Spec.NodeName != "" {
			j.pods[pod.UID].bound = pod.CreationTimestamp.Time
		}
	}
}

// breaks notes that an invariant is broken, once for what it says.
func (j *judge) breaks(invariant, format string, args ...any) {
	text := invariant + ": " + fmt.Sprintf(format, args...)
	if j.said[text] {
		return
	}
	j.said[text] = true
	j.broken = append(j.broken, fmt.Sprintf("%.3f %s", j.w.since().Seconds(), text))
	j.w.note("BROKEN %s", text)
}

// Broken are the invariants that were broken so far, and how.
func (w *World) Broken() (list []string) {
	w.Do(func() { list = slices.Clone(w.judge.broken) })
	return list
}

// The invariants, as they are reported.
const (
	noReason    = "nobody is evicted without a reason"
	graceKept   = "every pod has the grace period that there is time for"
	notOurs     = "nothing is changed that is not ours"
	takenBack   = "all that is ours is taken back"
	oneEach     = "one replacement for each instance"
	notInVain   = "no replacement is kept in vain"
	noticeKept  = "no notice is lost"
	everEnds    = "every interruption ends"
	budgetsKept = "no budget is overridden"
	bounded     = "requests and memory are bounded"
	oneLeads    = "one process drains at a time"
	recordsTrue = "what the record says is so"
	hasRoom     = "every node has the replacement that there is room for"
	isOfUse     = "the pods can run on the replacement that is for them"
	paidFirst   = "what is paid for is used first"
	limitsKept  = "no limit of a pool is exceeded"
	everyTurn   = "every recommended node has its turn"
	homeFirst   = "no pod leaves before its new home is there"
	statusTrue  = "what status says is so"
)

func (j *judge) changed(c memapi.Change) {
	ours := j.w.ours(c.By)
	switch c.Kind {
	case memapi.Nodes:
		j.nodeChanged(c, ours)
	case memapi.Pods:
		switch pod, _ := cmp.Or(c.After, c.Before).(*corev1.Pod); {
		case !isPlaceholder(pod):
			j.podChanged(c, ours)
		case ours:
			j.placeholderChanged(c)
		}
	case memapi.Templates:
		if ours && !strings.HasPrefix(c.Key, placeholder.Namespace+"/") {
			j.breaks(notOurs, "%s changes PodTemplate %s", c.By, c.Key)
		}
	case memapi.NodeClaims:
		j.claimChanged(c, ours)
	case memapi.Leases:
		if ours && c.By != j.led {
			j.led, j.ledSince = c.By, time.Now()
		}
	case memapi.Events, memapi.ConfigMaps:
		if ours && c.Kind == memapi.ConfigMaps && c.Key != Namespace+"/spot-handler-offerings" {
			j.breaks(notOurs, "%s changes ConfigMap %s", c.By, c.Key)
		}
	case memapi.Budgets: // an eviction charges them
		j.budgetChanged(c)
	default:
		if ours {
			j.breaks(notOurs, "%s changes %s %s", c.By, c.Kind.Plural, c.Key)
		}
	}
}

// Settled reports whether nothing more is under way.
func (w *World) Settled() (settled bool) {
	for _, m := range w.Queue.Messages() {
		if m.State != sqsemu.Deleted {
			return false
		}
	}
	w.Do(func() { settled = w.judge.settled() })
	return settled
}

// settled reports whether everything has ended. The cheapest checks come first.
func (j *judge) settled() bool {
	w := j.w
	for _, l := range w.Scene.Losses {
		last := l.At + l.Lead + max(0, -l.Early)
		if said := l.At + l.Delay + time.Duration(l.Copies)*l.Again + agentReads; w.since() < max(last, said, l.Cancel) {
			return false // EC2 has yet to act
		}
	}
	for _, r := range w.Scene.Rehearsals {
		if w.since() < r.At+r.Deadline {
			return false
		}
	}
	for _, s := range w.Scene.ScaleIns {
		if w.since() < s.At {
			return false
		}
	}
	for _, f := range w.Scene.Faults {
		if f.For < longest && w.since() < f.to()+recovery {
			return false
		}
	}
	for id := range j.hooks {
		if w.instances[id].runs && j.hookOf(id, asgemu.TerminateAt) != nil {
			return false // the group waits
		}
	}
	for _, claim := range memapi.List[custom](w.Server, memapi.NodeClaims) {
		if claim.GetDeletionTimestamp() != nil || claim.GetLabels()[karpenter.ReplacesLabel] != "" && claim.GetLabels()[karpenter.SettledLabel] == "" {
			return false
		}
	}
	for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
		rec, has := recordOf(node)
		if !has && slices.ContainsFunc(node.Status.Conditions, nodes.OurCondition) || has && !j.stands(node, rec) {
			return false
		}
	}
	return len(j.leftPlaceholders()) == 0
}

// Bound breaks the round if there is more of something than is allowed.
func (w *World) Bound(what string, n, most int) {
	if n > most {
		w.Do(func() { w.judge.breaks(bounded, "%d %s, at most %d allowed", n, what, most) })
	}
}

// Standing is how many Nodes have a record.
func (w *World) Standing() (n int) {
	w.Do(func() {
		for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
			if node.Annotations[interruption.Annotation] != "" {
				n++
			}
		}
	})
	return n
}

// Finish holds what is left to the invariants.
func (w *World) Finish() {
	messages := w.Queue.Messages()
	w.Do(func() {
		j := w.judge
		j.finishNotices(messages)
		j.finishNodes()
		j.finishPods()
		j.finishClaims()
		for _, left := range j.leftPlaceholders() {
			j.breaks(takenBack, "%s is left", left)
		}
	})
}
