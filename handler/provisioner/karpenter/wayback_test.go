package karpenter

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

func TestStay(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	one := field{of: []offerings.Offering{{Type: "a", Zone: "1"}}}
	two := field{of: []offerings.Offering{{Type: "a", Zone: "1"}, {Type: "b", Zone: "1"}}}
	lost := func(ages ...time.Duration) map[offerings.Offering]time.Time {
		last := map[offerings.Offering]time.Time{}
		for i, age := range ages {
			last[two.of[i]] = ago(age)
		}
		return last
	}
	for name, tt := range map[string]struct {
		w   wayBack
		in  time.Duration // from now on; not after now: it may go back
		why string
	}{
		"just made":                       {wayBack{since: ago(time.Minute)}, 29 * time.Minute, "interrupted within 30m"},
		"calm":                            {wayBack{since: ago(30 * time.Minute), field: one}, 0, ""},
		"another offering is calm":        {wayBack{since: ago(time.Hour), field: two, last: lost(time.Minute)}, 0, ""},
		"no offering is":                  {wayBack{since: ago(time.Hour), field: two, last: lost(time.Minute, 10*time.Minute)}, 20 * time.Minute, "every instance type and zone"},
		"none that is known is":           {wayBack{since: ago(time.Hour), field: field{of: one.of, open: true}, last: lost(time.Minute)}, 0, ""},
		"what was lost is calm again":     {wayBack{since: ago(time.Hour), field: one, last: lost(31 * time.Minute)}, 0, ""},
		"just tried":                      {wayBack{since: ago(40 * time.Minute), tried: ago(time.Minute), field: one, cause: "full"}, 29 * time.Minute, "came to nothing: full"},
		"tried when it was old":           {wayBack{since: ago(5 * time.Hour), tried: ago(time.Hour), field: one}, time.Hour, "came to nothing"},
		"tried when it was very old":      {wayBack{since: ago(20 * time.Hour), tried: ago(time.Hour), field: one}, longestPutOff - time.Hour, "came to nothing"},
		"tried, and nothing is calm":      {wayBack{since: ago(time.Hour), tried: ago(25 * time.Minute), field: one, last: lost(time.Minute)}, 29 * time.Minute, "every"},
		"tried for a short calm, however": {wayBack{since: ago(5 * time.Minute), tried: ago(time.Minute), calm: time.Minute, field: one}, shortestPutOff - time.Minute, "came to nothing"},
	} {
		if tt.w.calm == 0 {
			tt.w.calm = DefaultCalm
		}
		until, why := tt.w.stay(now)
		in := max(0, until.Sub(now))
		if in != tt.in || in > 0 && !strings.Contains(why, tt.why) {
			t.Errorf("%s: stays for %s (%s), want %s (%s)", name, in, why, tt.in, tt.why)
		}
	}
}

// spotPool is the source pool as one that gives spot instances, of these types.
func spotPool(types ...string) *unstructured.Unstructured {
	u := sourcePool()
	values := []any{}
	for _, t := range types {
		values = append(values, t)
	}
	set([]any{
		map[string]any{"key": capacityTypeLabel, "operator": "In", "values": []any{spot}},
		map[string]any{"key": corev1.LabelInstanceTypeStable, "operator": "In", "values": values},
		map[string]any{"key": corev1.LabelTopologyZone, "operator": "In", "values": []any{"eu-west-1a", "eu-west-1b"}},
	}, "spec", "template", "spec", "requirements")(u)
	set(map[string]any{"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}, "spec", "template", "spec", "nodeClassRef")(u)
	set([]any{map[string]any{"type": "Ready", "status": "True"}}, "status", "conditions")(u)
	return u
}

// Whatever its pool's consolidation does, a replacement is recommended after calm, and brought back to the
// pool that it stands in for, without what was lost meanwhile.
func TestWayBack(t *testing.T) {
	for name, change := range map[string]func(*unstructured.Unstructured){
		"consolidated at once": func(*unstructured.Unstructured) {},
		"never consolidated":   lasting,
		"only if empty":        set("WhenEmpty", "spec", "disruption", "consolidationPolicy"),
	} {
		bubble(t, name, func(t *testing.T) {
			r := newReturning(t, spotPool("m5.large", "m6i.large"), fallbackPool(t, change))
			time.Sleep(heldCheck)
			if a := r.claim(claimName).GetAnnotations(); a[doNotDisrupt] != "true" || a[StandsInAnnotation] != "spot" {
				t.Errorf("annotations %v, want it held", a)
			}
			r.wantShown("interrupted within 30m", DefaultCalm-heldCheck)
			time.Sleep(DefaultCalm - 2*heldCheck)
			if len(r.notices) > 0 {
				t.Fatalf("recommended before calm: %+v", r.notices)
			}
			r.lose() // m5.large in eu-west-1b
			time.Sleep(2 * heldCheck)
			rec := r.recommended()
			if !rec.Returns() || rec.Instance != standInInstance || !rec.Deadline.IsZero() || len(r.notices) != 1 {
				t.Errorf("%d notices, the last %+v", len(r.notices), rec)
			}
			got := r.order(rec, need())
			if got.Name != wayBackClaim || got.Pool != "spot" || got.State != provisioner.StateRequested {
				t.Fatalf("%+v, want a claim of pool spot", got)
			}
			made := decodeClaim(r.claim(wayBackClaim))
			if !made.isOurs(standInInstance) || made.Annotations[StandsInAnnotation] != "" || made.Annotations[nodeAnnotation] != replacementNode {
				t.Errorf("labels %v, annotations %v", made.Labels, made.Annotations)
			}
			types, capacity := constraintOn(corev1.LabelInstanceTypeStable, made.Spec.Requirements), constraintOn(capacityTypeLabel, made.Spec.Requirements)
			zones := constraintOn(corev1.LabelTopologyZone, made.Spec.Requirements)
			if types.Allows("m5.large") && zones.Allows("eu-west-1b") || !types.Allows("m6i.large") || capacity.Allows(onDemand) || !capacity.Allows(spot) {
				t.Errorf("requirements %+v", made.Spec.Requirements)
			}
		})
	}
}

// While the node has a record, it is not recommended again; and when it is put off, that is less and less
// often. Each time it says why.
func TestWayBackIsPutOff(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newReturning(t, spotPool("m5.large", "m6i.large"), fallbackPool(t))
		began := time.Now()
		time.Sleep(DefaultCalm + heldCheck)
		var at []time.Duration
		for range 4 {
			rec := r.recommended()
			at = append(at, time.Since(began).Round(time.Minute))
			before := len(r.notices)
			time.Sleep(5 * heldCheck)
			if len(r.notices) != before {
				t.Fatalf("%d notices while it is under way", len(r.notices))
			}
			r.b.keeper.held.note(r.node.Name, "no capacity")
			rest, _ := rec.DropRecommendation(time.Now())
			r.node = r.node.DeepCopy()
			r.node.Annotations = map[string]string{interruption.PastAnnotation: interruption.PastOf(rest).And(rest.Past).String()}
			time.Sleep(heldCheck)
			r.wantShown("came to nothing: no capacity", max(DefaultCalm, time.Since(began)/2))
			for len(r.notices) == before {
				time.Sleep(heldCheck)
			}
		}
		for i := 1; i < len(at); i++ {
			if at[i]-at[i-1] < DefaultCalm || i > 1 && at[i]-at[i-1] < at[i-1]-at[i-2] || at[3] < 2*time.Hour {
				t.Errorf("tried after %v, want it less and less often", at)
			}
		}
	})
}

// A node that is not managed is Karpenter's after calm; one that cannot be recommended now is tried again.
func TestNodeCannotBeRecommended(t *testing.T) {
	for verdict, given := range map[interruption.Verdict]bool{interruption.Unmanaged: true, interruption.Unknown: false} {
		bubble(t, string(verdict), func(t *testing.T) {
			r := newReturning(t, spotPool("m5.large", "m6i.large"), fallbackPool(t))
			r.verdict = verdict
			time.Sleep(DefaultCalm + 3*heldCheck)
			held := r.claim(claimName).GetAnnotations()[doNotDisrupt] != ""
			if held == given || (len(r.notices) == 1) != given {
				t.Errorf("held: %t after %d notices", held, len(r.notices))
			}
		})
	}
}

// Each time something is in the way, the node stays where it is, and nothing is made.
func TestNoWayBack(t *testing.T) {
	for name, tt := range map[string]struct {
		before func(*testing.T, *returning) // calm has passed
		need   func(*provisioner.Need)
		why    string
	}{
		"all offerings are lost": {
			before: func(_ *testing.T, r *returning) {
				for _, of := range [][2]string{{"m5.large", "eu-west-1a"}, {"m6i.large", "eu-west-1a"}, {"m5.large", "eu-west-1b"}, {"m6i.large", "eu-west-1b"}} {
					node := anotherInstance(offered())
					node.Name += of[0] + of[1]
					node.Labels[corev1.LabelInstanceTypeStable], node.Labels[corev1.LabelTopologyZone] = of[0], of[1]
					r.taken.Note(node, record())
				}
			},
			why: "lost nothing within 30m",
		},
		"the pool is full": {
			before: func(t *testing.T, r *returning) { r.changePool(set(map[string]any{"cpu": "0"}, "spec", "limits")) },
			why:    "limit 0",
		},
		"the pool is gone": {
			before: func(t *testing.T, r *returning) {
				if err := r.Tracker().Delete(nodePoolResource, "", "spot"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(poolTTL)
			},
			why: "is gone",
		},
		"the pool is not ready": {
			before: func(t *testing.T, r *returning) {
				r.changePool(set([]any{map[string]any{"type": "Ready", "status": "False"}}, "status", "conditions"))
			},
			why: "is not Ready",
		},
		"Karpenter ends the node": {
			before: func(t *testing.T, r *returning) {
				r.node = r.node.DeepCopy()
				r.node.Spec.Taints = []corev1.Taint{{Key: disruptedTaint, Effect: corev1.TaintEffectNoSchedule}}
			},
			why: "it has tainted it",
		},
		"a pod needs on demand": {
			need: func(n *provisioner.Need) {
				n.Moving[1].Spec.NodeSelector = map[string]string{capacityTypeLabel: onDemand}
			},
			why: "does not take all pods",
		},
		"it stands in for nothing": {
			before: func(t *testing.T, r *returning) {
				r.patchClaim(claimName, func(u *unstructured.Unstructured) {
					a := u.GetAnnotations()
					delete(a, StandsInAnnotation)
					u.SetAnnotations(a)
				})
			},
			why: "stands in for no spot node",
		},
	} {
		bubble(t, name, func(t *testing.T) {
			r := newReturning(t, spotPool("m5.large", "m6i.large"), fallbackPool(t))
			time.Sleep(DefaultCalm + heldCheck)
			rec := r.recommended()
			if tt.before != nil {
				tt.before(t, r)
			}
			n := need()
			if tt.need != nil {
				tt.need(&n)
			}
			got := r.order(rec, n)
			if provisioner.Pending(got.State) || got.Name != "" || !strings.Contains(got.Reason, tt.why) || r.claim(wayBackClaim) != nil {
				t.Errorf("%+v, want nothing: %s", got, tt.why)
			}
			if cause := r.b.keeper.held.causeOf(replacementNode); cause != got.Reason {
				t.Errorf("remembered as %q, want %q", cause, got.Reason)
			}
			if n := r.limitRefusals(); n != 0 {
				t.Errorf("%v refusals counted: a source pool is no fallback pool", n)
			}
		})
	}
}

func (r *returning) changePool(change func(*unstructured.Unstructured)) {
	r.t.Helper()
	u, err := r.Tracker().Get(nodePoolResource, "", "spot")
	if err != nil {
		r.t.Fatal(err)
	}
	changed := u.(*unstructured.Unstructured).DeepCopy()
	change(changed)
	if err := r.Tracker().Update(nodePoolResource, changed, ""); err != nil {
		r.t.Fatal(err)
	}
	time.Sleep(poolTTL)
}

// A pool that has just launched no spot instance is left alone for a while, also by the other nodes.
func TestWayBackInVain(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		r := newReturning(t, spotPool("m5.large", "m6i.large"), fallbackPool(t))
		time.Sleep(DefaultCalm + heldCheck)
		rec := r.recommended()
		got := r.order(rec, need())
		rec.Replacement = &got
		time.Sleep(launchTimeout + time.Second)
		got = r.order(rec, need())
		if got.State != provisioner.StateFailed || r.claim(wayBackClaim) != nil {
			t.Fatalf("%+v, want it given up", got)
		}
		r.node = r.node.DeepCopy()
		r.node.Annotations = nil // it is another one of the pool
		time.Sleep(5 * heldCheck)
		if len(r.notices) != 1 {
			t.Errorf("%d notices", len(r.notices))
		}
		r.wantShown("has just launched no spot instance", 5*time.Minute)
		time.Sleep(7 * heldCheck)
		if len(r.notices) != 2 {
			t.Errorf("%d notices, want another one", len(r.notices))
		}
	})
}

// The next leader says why the last attempt came to nothing as the one before has shown it, and takes nothing
// else for that.
func TestNextLeaderKnowsWhyNoWayBack(t *testing.T) {
	tried := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for shown, want := range map[string]string{
		cameToNothing(tried) + ": NodePool spot is gone":                      "NodePool spot is gone",
		cameToNothing(tried):                                                  "",
		cameToNothing(tried.Add(-time.Hour)) + ": NodePool spot is gone":      "", // an attempt before
		"its spot node was interrupted within 30m0s":                          "",
		strings.Repeat("x", maxHeld) + cameToNothing(tried) + ": a kubelet's": "",
	} {
		text, err := json.Marshal(Held{Why: shown})
		if err != nil {
			t.Fatal(err)
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{HeldAnnotation: string(text)}}}
		if got := shownCause(node, tried); got != want {
			t.Errorf("of %.80q: %q, want %q", shown, got, want)
		}
	}
	bubble(t, "shown", func(t *testing.T) {
		r := newReturning(t, spotPool("m5.large", "m6i.large"), fallbackPool(t))
		time.Sleep(DefaultCalm + heldCheck)
		synctest.Wait()
		off := time.Now().UTC()
		r.node = r.node.DeepCopy()
		delete(r.node.Annotations, interruption.Annotation)
		why, _ := json.Marshal(Held{Why: cameToNothing(off) + ": NodePool spot is full", Until: off})
		metav1.SetMetaDataAnnotation(&r.node.ObjectMeta, HeldAnnotation, string(why))
		past, _ := json.Marshal(interruption.Past{{Kind: interruption.RebalanceRecommendation, Source: interruption.Return, Noticed: off, Received: off, Off: off}})
		metav1.SetMetaDataAnnotation(&r.node.ObjectMeta, interruption.PastAnnotation, string(past))
		r.nodes.put(r.node)
		time.Sleep(5 * heldCheck)
		r.wantShown("came to nothing: NodePool spot is full", 25*time.Minute)
	})
}

// A notice for the new node, or its end, takes the way back away, whether it is Ready or not.
func TestNewNodeIsLost(t *testing.T) {
	for _, state := range []string{provisioner.StateLaunched, provisioner.StateReady} {
		for name, gone := range map[string]bool{"interrupted": false, "deleted": true} {
			if gone && state == provisioner.StateLaunched {
				continue // as with every replacement
			}
			bubble(t, state+" "+name, func(t *testing.T) {
				r := newReturning(t, spotPool("m5.large", "m6i.large"), fallbackPool(t))
				time.Sleep(DefaultCalm + heldCheck)
				rec := r.recommended()
				got := r.order(rec, need())
				rec.Replacement = &got
				got.State = state
				fresh := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "fresh"}}
				before := r.b.opts.Node
				r.b.opts.Node = func(name string) (*corev1.Node, bool) {
					if name == fresh.Name {
						return fresh, true
					}
					return before(name)
				}
				r.patchClaim(wayBackClaim, func(u *unstructured.Unstructured) {
					set("fresh", "status", "nodeName")(u)
					set([]any{map[string]any{"type": "Launched", "status": "True"}, map[string]any{"type": "Initialized", "status": "True"}}, "status", "conditions")(u)
				})
				if was := r.order(rec, need()); was.State != provisioner.StateReady {
					t.Fatalf("%+v, want it Ready", was)
				}
				if gone {
					r.patchClaim(wayBackClaim, func(u *unstructured.Unstructured) { u.SetDeletionTimestamp(new(metav1.Now())) })
				} else {
					fresh = withRecord(fresh.DeepCopy(), record())
				}
				if got := r.order(rec, need()); got.State != provisioner.StateFailed || got.Name != wayBackClaim {
					t.Errorf("%+v, want it failed", got)
				}
			})
		}
	}
}
