package nodes

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

const ownInstance = "i-0123456789abcdef0"

func spotNode(change ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/" + ownInstance},
	}
	for _, c := range change {
		c(node)
	}
	return node
}

// What a notice is judged by is read off the Node, all of it.
func TestCase(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	rec := interruption.Record{
		Kind: interruption.RebalanceRecommendation, Event: "e", Instance: ownInstance, Source: interruption.Queue,
		Phase: interruption.Waiting, Received: now, Noticed: now,
	}
	rules := func(_ *corev1.Node, recommended bool) (interruption.Rules, error) {
		if recommended {
			return interruption.Rules{Rebalance: interruption.RebalanceCordon}, nil
		}
		return interruption.Rules{}, nil
	}
	notice := interruption.Notice{Kind: interruption.ScheduledEvent, InstanceID: "i-of-the-notice"}
	for name, tt := range map[string]struct {
		node *corev1.Node
		want func(*interruption.Case)
	}{
		"nothing": {spotNode(), func(*interruption.Case) {}},
		"it knows no instance": {
			spotNode(func(n *corev1.Node) { n.Spec.ProviderID = "kind://a" }),
			func(c *interruption.Case) { c.Node.Instance = "i-of-the-notice" },
		},
		"a record": {
			spotNode(func(n *corev1.Node) { n.Annotations[interruption.Annotation] = rec.String() }),
			func(c *interruption.Case) {
				c.Record, c.Recorded, c.Rules.Rebalance = rec, true, interruption.RebalanceCordon
			},
		},
		"it is being cancelled": {
			spotNode(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" }),
			func(c *interruption.Case) { c.Cancelling = true },
		},
		"somebody has deleted it": {
			spotNode(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: now} }),
			func(c *interruption.Case) { c.Node.Deleting = true },
		},
		"an autoscaler removes it": {
			spotNode(func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: "ToBeDeletedByClusterAutoscaler"}}
			}),
			func(c *interruption.Case) { c.Node.ScalingDown = true },
		},
		"another taint": {
			spotNode(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "other"}} }),
			func(*interruption.Case) {},
		},
		"Ready, of a boot": {
			spotNode(func(n *corev1.Node) {
				n.Status.NodeInfo.BootID = "boot"
				n.Status.Conditions = []corev1.NodeCondition{{
					Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: now},
				}}
			}),
			func(c *interruption.Case) { c.Node.Boot, c.Node.Ready, c.Node.ReadySince = "boot", true, now },
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := interruption.Case{Notice: notice, Now: now, Node: interruption.Node{Instance: ownInstance}}
			tt.want(&want)
			sameText := cmp.Comparer(func(a, b interruption.Record) bool { return a.String() == b.String() })
			if diff := cmp.Diff(want, Case(tt.node, notice, rules, now), sameText); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// While the rebalance policy can't be read, the node is recorded as one that is to be replaced. The other rules hold.
func TestCaseWithoutAPolicy(t *testing.T) {
	c := Case(spotNode(), interruption.Notice{}, func(*corev1.Node, bool) (interruption.Rules, error) {
		return interruption.Rules{Rebalance: interruption.RebalanceIgnore, Unmanaged: "why"}, errors.New("API server is down")
	}, time.Now())
	if c.Rules.Rebalance != interruption.RebalanceReplace || c.Rules.Unmanaged != "why" {
		t.Errorf("rules %+v", c.Rules)
	}
}

// A record that can't be read, or that is about another instance, is refused.
func TestRecord(t *testing.T) {
	if _, err := Record(spotNode()); !errors.Is(err, ErrNoRecord) {
		t.Errorf("error %v without a record", err)
	}
	of := func(instance string) *corev1.Node {
		rec := interruption.Record{
			Kind: interruption.SpotInterruption, Event: "e", Instance: instance, Source: interruption.Queue,
			Phase: interruption.Noticed, Received: time.Now(), Noticed: time.Now(),
		}
		return spotNode(func(n *corev1.Node) { n.Annotations[interruption.Annotation] = rec.String() })
	}
	if rec, err := Record(of(ownInstance)); err != nil || rec.Instance != ownInstance {
		t.Errorf("record %v, error %v", rec, err)
	}
	if _, err := Record(of("i-0fedcba9876543210")); err == nil || errors.Is(err, ErrNoRecord) {
		t.Errorf("error %v of a record about another instance", err)
	}
	broken := spotNode(func(n *corev1.Node) { n.Annotations[interruption.Annotation] = "{" })
	if _, err := Record(broken); err == nil || errors.Is(err, ErrNoRecord) {
		t.Errorf("error %v of a record that can't be read", err)
	}
}

func TestOlder(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"9", "10", true}, {"10", "9", false}, {"10", "10", false}, {"10", "", false}, {"x", "10", false}, {"9", "x", false},
	} {
		if got := Older(tt.a, tt.b); got != tt.want {
			t.Errorf("%q is older than %q: %t", tt.a, tt.b, got)
		}
	}
}

// Of the annotations only ours are kept, however many there are.
func TestLeanAnnotations(t *testing.T) {
	node := spotNode(func(n *corev1.Node) {
		n.Annotations = map[string]string{"spot-handler/a": "1", "spot-handler/b": "2", "example.com/c": "3", "d": "4"}
	})
	if diff := cmp.Diff(map[string]string{"spot-handler/a": "1", "spot-handler/b": "2"}, lean(node).Annotations); diff != "" {
		t.Error(diff)
	}
	bare := spotNode(func(n *corev1.Node) { n.Annotations = map[string]string{"d": "4"} })
	if got := lean(bare).Annotations; got != nil {
		t.Errorf("annotations %v, want none", got)
	}
}
