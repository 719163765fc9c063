package placeholder

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// leftover is a placeholder that an earlier process has made for the node.
func leftover(node, of string, life time.Duration) *corev1.Pod {
	o := order{node: testNode(node), instance: of, expires: time.Now().Add(life)}
	p := New(Options{}).placeholder(o, &corev1.PodTemplate{}, &corev1.Pod{})
	p.Namespace, p.Annotations[podAnnotation] = Namespace, ""
	p.UID = types.UID(of + node)
	return p
}

func TestLeftovers(t *testing.T) {
	with := func(rec interruption.Record, change func(*interruption.Record)) *corev1.Node {
		n := testNode("node-2")
		if change != nil {
			change(&rec)
		}
		n.Annotations = map[string]string{interruption.Annotation: rec.String()}
		return n
	}
	for _, tt := range []struct {
		name   string
		node   func() *corev1.Node // of the leftover; nil is gone
		life   time.Duration
		reason string // "": it stays
	}{
		{"node gone", func() *corev1.Node { return nil }, time.Minute, "the node is gone"},
		{"not interrupted", func() *corev1.Node { return testNode("node-2") }, time.Minute, "the node is not interrupted any more"},
		{"another instance", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) { r.Instance = "i-new" })
		}, time.Minute, "the node is another instance"},
		{"drained", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) { r.Phase = interruption.Drained })
		}, time.Minute, "the drain is over"},
		{"failed", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) {
				r.Replacement = &interruption.Replacement{Backend: "placeholder", Name: "x", State: provisioner.StateFailed}
			})
		}, time.Minute, "the replacement has failed"},
		{"by another provisioner now", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) {
				r.Replacement = &interruption.Replacement{Backend: "asg", Name: "x", State: provisioner.StateReady}
			})
		}, time.Minute, "another provisioner makes the replacement"},
		{"asked after another provisioner", func() *corev1.Node {
			return with(spot(time.Minute), func(r *interruption.Record) {
				r.Replacement = &interruption.Replacement{Backend: "asg", State: provisioner.StateUnsupported}
			})
		}, time.Minute, ""},
		{"expired", func() *corev1.Node { return with(spot(time.Minute), nil) }, -time.Minute, "their time is over"},
		{"interrupted, record not written yet", func() *corev1.Node { return with(spot(time.Minute), nil) }, time.Minute, ""},
		{"record unreadable", func() *corev1.Node {
			n := testNode("node-2")
			n.Annotations = map[string]string{interruption.Annotation: "{"}
			return n
		}, time.Minute, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c := newCluster(t, spot(time.Minute), func(o *Options) {
					node, known := tt.node(), o.Node
					o.Node = func(name string) (*corev1.Node, bool) {
						if name == "node-2" {
							return node, node != nil
						}
						return known(name)
					}
				}, leftover("node-2", instance, tt.life))
				synctest.Wait()
				if tt.reason == "" {
					c.held("")
				} else {
					c.held()
				}
				if log := c.log.String(); !strings.Contains(log, tt.reason) || (tt.reason == "") != (log == "") {
					t.Errorf("the log says %q, want %q", log, tt.reason)
				}
			})
		})
	}
}
