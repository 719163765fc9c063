package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/karpenter"
)

// said is one interruption as the status command prints it in JSON.
type said struct {
	Node        string
	Instance    string
	Kind        interruption.Kind
	Phase       interruption.Phase
	Over        bool
	Rehearsal   bool
	Deadline    time.Time
	SecondsLeft *float64
	Pods        struct {
		interruption.Pods
		Here                *int
		Terminating, Surged int
	}
	Replacement *interruption.Replacement
	WaitsFor    string
	Result      string
}

// saidOfAll is what it prints for a whole cluster, and saidOfOne for one node.
type (
	saidOfAll struct {
		Interruptions []said
		Held          *struct {
			Replacements int
			Oldest       []struct{ Node string }
		}
		Offerings []struct{ Type, Zone, Pool string }
		Unread    []string
	}
	saidOfOne struct {
		said
		OnNode []struct {
			Name         string
			Next         string
			GraceSeconds int64
			Refusal      string
			By           *time.Time
		}
		Unread []string
	}
)

// How long an operator waits between two looks at the status, and how many attempts a look gets if the cluster changes
// while it is read.
const (
	asksAtLeast = 4 * time.Second
	asksAtMost  = 45 * time.Second
	asksAgain   = 5
)

// NextAsk is how long an operator waits before they ask for the status again.
func (w *World) NextAsk() (wait time.Duration) {
	w.Do(func() {
		w.judge.asked++
		wait = w.draw().Between(asksAtLeast, asksAtMost, fmt.Sprint("asks ", w.judge.asked))
	})
	return wait
}

// Ask checks what the status command prints against the cluster. status runs that command and returns its JSON: for
// one node, or for all if node is empty. An answer is not judged if the cluster changed while it was read.
func (w *World) Ask(status func(node string) ([]byte, error)) {
	w.askFor(status, "", w.judge.judgeStatus)
	var node string
	w.Do(func() { node = w.judge.askedAbout() })
	if node != "" {
		w.askFor(status, node, w.judge.judgeStatusOf)
	}
}

func (w *World) askFor(status func(node string) ([]byte, error), node string, judge func([]byte) error) {
	var version int64
	for range asksAgain {
		w.Do(func() { version = w.Version() })
		began, changed := time.Now(), false
		text, err := status(node)
		if errors.Is(err, context.Canceled) {
			return // the round is over
		}
		w.Do(func() {
			if changed = version != w.Version() || !time.Now().Equal(began); changed {
				return
			}
			if err == nil {
				err = judge(text)
			}
			if err != nil {
				w.judge.breaks(statusTrue, "status of node %q: %v", node, err)
			}
		})
		if !changed {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// askedAbout is the node to ask about by name: nodes with a record take turns.
func (j *judge) askedAbout() string {
	var list []string
	for _, node := range memapi.List[*corev1.Node](j.w.Server, memapi.Nodes) {
		if node.Annotations[interruption.Annotation] != "" {
			list = append(list, node.Name)
		}
	}
	if len(list) == 0 {
		return ""
	}
	return list[j.asked%len(list)]
}

// judgeStatus: every record is listed, and nothing else; and what is said of each is so.
func (j *judge) judgeStatus(text []byte) error {
	var s saidOfAll
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	listed := map[string]said{}
	for _, i := range s.Interruptions {
		if _, twice := listed[i.Node]; twice {
			j.breaks(statusTrue, "node %s is listed twice", i.Node)
		}
		listed[i.Node] = i
	}
	held := 0
	for _, node := range memapi.List[*corev1.Node](j.w.Server, memapi.Nodes) {
		i, has := listed[node.Name]
		delete(listed, node.Name)
		if node.Annotations[karpenter.StandsInAnnotation] != "" {
			held++
		}
		switch record := node.Annotations[interruption.Annotation]; {
		case record == "" && has:
			j.breaks(statusTrue, "node %s is listed as %s, but has no record", node.Name, i.Phase)
		case record != "" && !has:
			j.breaks(statusTrue, "node %s has a record, but isn't listed", node.Name)
		case has:
			j.judgeSaid(node, i)
		}
	}
	for name := range listed {
		j.breaks(statusTrue, "node %s is listed, but doesn't exist", name)
	}
	if said := s.Held; (said == nil) != (held == 0) || said != nil && (said.Replacements != held || len(said.Oldest) != held) {
		j.breaks(statusTrue, "%d replacements are held, and it says %+v", held, said)
	}
	for _, o := range s.Offerings {
		if !j.hasLost(o.Zone, o.Pool) {
			j.breaks(statusTrue, "%s in %s is listed as lost by pool %s, but EC2 has announced nothing for that pool and zone",
				o.Type, o.Zone, o.Pool)
		}
	}
	if len(s.Unread) > 0 {
		j.breaks(statusTrue, "it could not read everything: %v", s.Unread)
	}
	return nil
}

// hasLost reports whether EC2 has announced anything of a spot node in that zone, of that pool.
func (j *judge) hasLost(zone, pool string) bool {
	for name, life := range j.nodes {
		if i := j.w.instanceOf(name); i != nil && i.zone == zone && i.pool == pool && !life.announced.IsZero() {
			return true
		}
	}
	return false
}

// rounding is how far off the seconds can be that status prints: it rounds to a tenth.
const rounding = 51 * time.Millisecond

// judgeSaid holds what is said of a node to the node.
func (j *judge) judgeSaid(node *corev1.Node, s said) {
	rec, ok := recordOf(node)
	wrong := func(format string, args ...any) {
		j.breaks(statusTrue, "node %s, %s: %s", node.Name, summary(rec, ok), fmt.Sprintf(format, args...))
	}
	if !ok || rec.Instance != instanceID(node.Name) {
		if !strings.HasPrefix(s.WaitsFor, "nothing: ") {
			wrong("its record is not acted on, and it is said to wait for %q", s.WaitsFor)
		}
		return
	}
	if s.Kind != rec.Kind || s.Phase != rec.Phase || s.Over != rec.Phase.Over() || s.Rehearsal != rec.Rehearsed() ||
		s.Instance != rec.Instance || !s.Deadline.Equal(rec.Deadline) {
		wrong("%s is said to be %s %s, over %t, rehearsal %t, with the deadline %s",
			s.Instance, s.Kind, s.Phase, s.Over, s.Rehearsal, s.Deadline)
	}
	if a, b := s.Replacement, rec.Replacement; (a == nil) != (b == nil) || a != nil && (a.Name != b.Name || a.State != b.State) {
		wrong("its replacement is said to be %+v", a)
	}
	if left := s.SecondsLeft; (left != nil) != (!rec.Deadline.IsZero() && !s.Over) {
		wrong("secondsLeft is given: %t", left != nil)
	} else if left != nil {
		if off := time.Until(rec.Deadline) - time.Duration(*left*float64(time.Second)); off.Abs() > rounding {
			wrong("%v s are said to be left, which is off by %s", *left, off)
		}
	}
	if s.Over {
		j.judgeResult(node, s, wrong)
	} else if j.behind() == 0 {
		j.judgeHere(node, rec, s, wrong)
	}
	j.judgeWait(node, rec, s, wrong)
}

// mayHaveCome reports whether the pod may have come after the node was marked, and so may stay: it tolerates every
// taint, or it was created in that second or later, so its controller may have put it there.
func mayHaveCome(pod *corev1.Pod, rec interruption.Record) bool {
	return toleratesAll(pod) || !pod.CreationTimestamp.Time.Before(rec.Since().Truncate(time.Second))
}

// here counts the pods on the node that have to leave it, those of them that are terminating, and those that are
// surged. unsure counts pods that may have come later; they are in none of the other counts.
func (j *judge) here(node string, rec interruption.Record) (all, ending, surged, unsure int) {
	for _, pod := range j.w.podsOn(node) {
		switch {
		case !hasToMove(pod):
			continue
		case mayHaveCome(pod, rec):
			unsure++
			continue
		case pod.DeletionTimestamp != nil:
			ending++
		case isSurged(pod):
			surged++
		}
		all++
	}
	return all, ending, surged, unsure
}

// sure reports whether it is certain which pods have to leave. If the node's end isn't certain, some may stay.
func sure(rec interruption.Record) bool { return rec.Kind.Certain() && !rec.Deadline.IsZero() }

// judgeHere: as many pods are said to be there as are.
func (j *judge) judgeHere(node *corev1.Node, rec interruption.Record, s said, wrong func(string, ...any)) {
	if s.Pods.Here == nil {
		wrong("its pods are said not to be known")
		return
	}
	all, ending, surged, unsure := j.here(node.Name, rec)
	is := func(said, so int) bool { return said <= so+unsure && (said >= so || !sure(rec)) }
	if !is(*s.Pods.Here, all) || !is(s.Pods.Terminating, ending) || !is(s.Pods.Surged, surged) {
		wrong("it is said to have %d pods, %d ending, %d surged; it has %d, %d ending, %d surged, and %d "+
			"that may have come later",
			*s.Pods.Here, s.Pods.Terminating, s.Pods.Surged, all, ending, surged, unsure)
	}
}

// judgeResult: the result is one that these pods can have had.
func (j *judge) judgeResult(node *corev1.Node, s said, wrong func(string, ...any)) {
	var whole, cut, deletable, stay int
	for _, life := range j.pods {
		if life.pod.Spec.NodeName != node.Name || isDaemon(life.pod) {
			continue
		}
		switch {
		case life.asked.IsZero() && life.gone.IsZero():
			stay++
		case life.asked.IsZero() || life.whole:
			whole++
		default:
			cut++
		}
		if j.deletesBlocked(life.pod) {
			deletable++
		}
	}
	p := s.Pods.Pods
	if i := j.w.instanceOf(node.Name); j.w.Scene.Groups.Placeholders && (i == nil || i.pool == PoolFallback) {
		return // placeholders had to leave as well
	}
	if p.Graceful > whole+cut || p.Truncated > whole+cut || p.Forced > deletable || p.Graceful+p.Truncated+p.Forced > whole+cut+stay {
		wrong("its counts are said to be %+v; %d pods had their whole grace period, %d had less, %d are still there, "+
			"and %d may be deleted",
			p, whole, cut, stay, deletable)
	}
	if (s.Result == "no pod had to leave") != (p.Total == 0) {
		wrong("of %d pods the result is said to be %q", p.Total, s.Result)
	}
}

// judgeStatusOf: what is said of the pods of one node is so.
func (j *judge) judgeStatusOf(text []byte) error {
	var s saidOfOne
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, s.Node)
	if node == nil {
		return fmt.Errorf("there is no node %q", s.Node)
	}
	rec, has := recordOf(node)
	wrong := func(format string, args ...any) {
		j.breaks(statusTrue, "node %s alone, %s: %s", node.Name, summary(rec, has), fmt.Sprintf(format, args...))
	}
	if len(s.Unread) > 0 {
		wrong("it could not read everything: %v", s.Unread)
	}
	if !has || rec.Phase.Over() || j.behind() > 0 || rec.Instance != instanceID(node.Name) {
		return nil
	}
	here := map[string]*corev1.Pod{}
	for _, pod := range j.w.podsOn(node.Name) {
		if hasToMove(pod) {
			here[pod.Name] = pod
		}
	}
	for _, p := range s.OnNode {
		pod := here[p.Name]
		delete(here, p.Name)
		if pod == nil {
			wrong("pod %s is said to have to leave", p.Name)
			continue
		}
		if ends := pod.DeletionTimestamp != nil; (p.Next == "wait") != ends {
			wrong("the next step of pod %s is said to be %q; it is terminating: %t", p.Name, p.Next, ends)
		}
		if p.GraceSeconds != memapi.GraceOf(pod) {
			wrong("pod %s is said to have a grace period of %d s", p.Name, p.GraceSeconds)
		}
		if life := j.pods[pod.UID]; p.Refusal != "" && (life == nil || life.refused.IsZero()) {
			wrong("pod %s is said to be refused: %s", p.Name, p.Refusal)
		}
		if p.By != nil && !rec.Deadline.IsZero() && p.By.After(rec.Deadline) {
			wrong("pod %s is said to leave by %s, after the deadline", p.Name, p.By.Sub(j.w.began))
		}
	}
	for name, pod := range here {
		if sure(rec) && !mayHaveCome(pod, rec) {
			wrong("pod %s isn't said to have to leave", name)
		}
	}
	return nil
}
