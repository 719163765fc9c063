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

// said is what the command status prints of one interruption, as programs read it.
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

// saidOfAll is what it prints of a cluster, and saidOfOne of a node.
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

// How often an operator asks for the status, and how often again if the cluster has changed while it was read.
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

// Ask holds what the command status prints to what is so. status is that command: it returns what programs read of all
// interruptions, or of those of a node. What was read while the cluster changed is not judged.
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

// askedAbout is the node that the status of one is asked for: those with a record take turns.
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
			j.breaks(statusTrue, "node %s is listed as %s, and has no record", node.Name, i.Phase)
		case record != "" && !has:
			j.breaks(statusTrue, "node %s has a record, and isn't listed", node.Name)
		case has:
			j.judgeSaid(node, i)
		}
	}
	for name := range listed {
		j.breaks(statusTrue, "node %s is listed, and there is none", name)
	}
	if said := s.Held; (said == nil) != (held == 0) || said != nil && (said.Replacements != held || len(said.Oldest) != held) {
		j.breaks(statusTrue, "%d replacements are held, and it says %+v", held, said)
	}
	for _, o := range s.Offerings {
		if !j.hasLost(o.Zone, o.Pool) {
			j.breaks(statusTrue, "%s in %s is listed as lost by %s, and EC2 has said nothing of any there", o.Type, o.Zone, o.Pool)
		}
	}
	if len(s.Unread) > 0 {
		j.breaks(statusTrue, "it could not read all: %v", s.Unread)
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

// rounding is of the seconds that status prints.
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
		wrong("seconds left are said: %t", left != nil)
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

// mayHaveCome reports whether the pod may have come since the node was marked, and stay: one that tolerates everything,
// or one made since, or in the same second, which its controller may have put there.
func mayHaveCome(pod *corev1.Pod, rec interruption.Record) bool {
	return toleratesAll(pod) || !pod.CreationTimestamp.Time.Before(rec.Since().Truncate(time.Second))
}

// here are the pods that have to leave the node and are there, those of them that are ending, and those that run only
// until another pod has taken their place. Of others it is unsure.
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

// sure reports whether it is sure which pods have to leave: where the end of the node isn't, some may stay.
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
		wrong("%d of its pods are said to be there, %d ending, %d surged; %d are, %d, %d, and %d unsure",
			*s.Pods.Here, s.Pods.Terminating, s.Pods.Surged, all, ending, surged, unsure)
	}
}

// judgeResult: what is said to have become of the pods can have become of them.
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
	if placeholders := j.w.Scene.Groups.Placeholders && j.sceneNode(node.Name).Pool == PoolFallback; placeholders {
		return // which had to leave as well
	}
	if p.Graceful > whole+cut || p.Truncated > whole+cut || p.Forced > deletable || p.Graceful+p.Truncated+p.Forced > whole+cut+stay {
		wrong("%+v are said to have left, of %d that had all their grace, %d that had less, %d that are there, and %d that may be deleted",
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
		return fmt.Errorf("node %s: there is none", s.Node)
	}
	rec, has := recordOf(node)
	wrong := func(format string, args ...any) {
		j.breaks(statusTrue, "node %s alone, %s: %s", node.Name, summary(rec, has), fmt.Sprintf(format, args...))
	}
	if len(s.Unread) > 0 {
		wrong("it could not read all: %v", s.Unread)
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
			wrong("pod %s is said to %s, and it ends: %t", p.Name, p.Next, ends)
		}
		if p.GraceSeconds != memapi.GraceOf(pod) {
			wrong("pod %s is said to have %d s", p.Name, p.GraceSeconds)
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
