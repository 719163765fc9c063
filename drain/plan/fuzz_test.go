package plan

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whoever writes a pod writes what it likes into all that a plan reads of it. That moves nobody
// else's pod, and has the pod itself leave no later than at its eviction deadline. What is kept of
// the pod in memory says the same, and its note is read again as it was written.
func FuzzPodTexts(f *testing.F) {
	f.Add("0", "", "0", "0", "0", "", "0", "0", int64(-92))
	f.Add("now", "delete", "8080/x", `{"replicaSet":"web-abc12","uid":"set"}`, "4h", "g", "abc12", "web-abc12", int64(30))
	f.Add("last", "", "off", "{", "true", "", "-", "-", int64(-1))
	f.Add("\x1b]0;x\a", "{{", "files", `{"at":"9999-99-99"}`, "-1ns", "a,b=c", "\u202e", "db; touch x", int64(1)<<62)
	f.Fuzz(func(t *testing.T, when, blocked, notice, note, stays, gang, hash, owner string, seconds int64) {
		yes := true
		theirs := pod("theirs", inNamespace("tenant"), withGrace(seconds), labelled(GangLabel, gang, HashLabel, hash, SurgedLabel, hash))
		for key, text := range map[string]string{
			WhenAnnotation: when, BlockedAnnotation: blocked, NoticeAnnotation: notice, SurgedAnnotation: note, DoNotDisrupt: stays, SafeToEvict: stays,
		} {
			theirs.Annotations[key] = text
		}
		theirs.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: owner, Controller: &yes}}
		ours := webPod("ours", labelled(GangLabel, gang))
		alone := surging(DeploymentState{Slots: 1}, ours)
		beside := alone
		beside.Pods = []*corev1.Pod{theirs, ours}

		want := Plan(now, alone)[0]
		var other Decision
		for _, d := range Plan(now, beside) {
			if d.Pod == theirs {
				other = d
				continue
			}
			if !reflect.DeepEqual(want, d) {
				t.Errorf("%+v, and %+v with a pod of another namespace beside it", want, d)
			}
		}
		if end := other.Latest; !end.IsZero() && other.At.After(end) {
			t.Errorf("it starts at %s, and its eviction deadline is %s", other.At, end)
		}
		at := now.Add(2*time.Minute - time.Second)
		for _, d := range Plan(at, beside) {
			// One that is given back is evicted after that.
			if d.Pod == theirs && d.Action != Evict && d.Action != Return && d.Action != End {
				t.Errorf("a second before its end its action is %s: %s", d.Action, d.Reason)
			}
		}
		beside.Pods = []*corev1.Pod{Lean(theirs), ours}
		for _, d := range Plan(now, beside) {
			if d.Pod != ours && (d.Action != other.Action || d.Reason != other.Reason || !d.At.Equal(other.At)) {
				t.Errorf("of what is kept of it: %s (%s) at %s, want %s (%s) at %s", d.Action, d.Reason, d.At, other.Action, other.Reason, other.At)
			}
		}
		if g := gangOf(theirs); g != (Gang{}) && g.Namespace != theirs.Namespace {
			t.Errorf("its gang is %+v", g)
		}
		if of := DeploymentOf(theirs); of.Name != "" && (of.Namespace != theirs.Namespace || of.Name+"-"+theirs.Labels[HashLabel] != owner && surgeNoteOf(theirs).ReplicaSet != of.Name+"-"+hash) {
			t.Errorf("its Deployment is %s", of)
		}
	})
}
