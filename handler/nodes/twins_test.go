package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

func TestHolder(t *testing.T) {
	node := func(name string, age time.Duration, ready corev1.ConditionStatus) *corev1.Node {
		n := &corev1.Node{}
		n.Name, n.CreationTimestamp = name, metav1.NewTime(time.Unix(1_000_000, 0).Add(-age))
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		n.Spec.ProviderID = "aws:///eu-west-1a/i-0123456789abcdef0"
		return n
	}
	labelled := func(name string, age time.Duration, ready corev1.ConditionStatus) *corev1.Node {
		n := node(name, age, ready)
		n.Spec.ProviderID = "elsewhere:///" + name
		n.Labels = map[string]string{interruption.InstanceIDLabel: "i-0123456789abcdef0"}
		return n
	}
	const yes, no, lost = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown
	for _, tt := range []struct {
		name  string
		found []*corev1.Node
		want  string
	}{
		{"none", nil, ""},
		{"one", []*corev1.Node{node("a", time.Hour, no)}, "a"},
		{"registered again under another name", []*corev1.Node{node("old", time.Hour, lost), node("new", time.Second, yes)}, "new"},
		{"registering again", []*corev1.Node{node("old", time.Hour, lost), node("new", time.Second, no)}, "new"},
		{"somebody claims to be it", []*corev1.Node{node("forged", time.Second, yes), node("real", time.Hour, yes)}, "real"},
		{"while it is not Ready, too", []*corev1.Node{node("forged", time.Second, no), node("real", time.Hour, yes)}, "real"},
		{"an older Node takes its label", []*corev1.Node{labelled("forged", time.Hour, yes), node("real", time.Minute, yes)}, "real"},
		{"while it is not Ready, too", []*corev1.Node{labelled("forged", time.Hour, yes), node("real", time.Minute, lost)}, "real"},
		{"known by labels alone", []*corev1.Node{labelled("forged", time.Second, yes), labelled("real", time.Hour, yes)}, "real"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if n := holder(tt.found); n != nil {
				got = n.Name
			}
			if got != tt.want {
				t.Errorf("%q is the instance, want %q", got, tt.want)
			}
		})
	}
}

// A kubelet says by itself which instance it is. A providerID that names one overrides a label.
func FuzzInstanceID(f *testing.F) {
	f.Add("aws:///eu-west-1a/i-0123456789abcdef0", "i-0aaaaaaaaaaaaaaaa")
	f.Add("kwok://node", "i-0aaaaaaaaaaaaaaaa")
	f.Add("", "x\n")
	f.Add("i-0123456789abcdef0/", "")
	f.Fuzz(func(t *testing.T, provider, label string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{interruption.InstanceIDLabel: label}}, Spec: corev1.NodeSpec{ProviderID: provider}}
		segment := provider[strings.LastIndexByte(provider, '/')+1:]
		if got := InstanceID(node); IsInstanceID(segment) && got != segment {
			t.Errorf("%q, and its providerID is %q", got, provider)
		}
	})
}

// A Node that names another's instance by its label is not that instance for anybody who asks.
func TestLabelTakesOverNoInstance(t *testing.T) {
	x := New(nil, "", zerolog.Nop())
	node := func(name, provider, label string, age time.Duration) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{interruption.InstanceIDLabel: label}}, Spec: corev1.NodeSpec{ProviderID: provider}}
		n.CreationTimestamp = metav1.NewTime(time.Unix(1_000_000, 0).Add(-age))
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := x.nodes.Add(n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	forged := node("forged", "elsewhere:///forged", "i-0123456789abcdef0", time.Hour)
	victim := node("victim", "aws:///eu-west-1a/i-0123456789abcdef0", "", time.Minute)
	if n, ok := x.Find(interruption.Notice{InstanceID: "i-0123456789abcdef0"}); !ok || n.Name != "victim" {
		t.Errorf("found %v, %t", n, ok)
	}
	if err := x.Holds(victim); err != nil {
		t.Error(err)
	}
	if x.Holds(forged) == nil {
		t.Error("the forged Node holds the instance")
	}
	if joined := x.Joined(time.Unix(0, 0)); len(joined) != 1 || joined[0].Name != "victim" {
		t.Errorf("joined: %v", joined)
	}
}
