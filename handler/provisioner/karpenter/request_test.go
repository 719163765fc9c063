package karpenter

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

func TestReplacementFromNoticeToRelease(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		synctest.Wait()
		if n := len(c.Actions()); n != 1 || c.Actions()[0].GetVerb() != "list" {
			t.Fatalf("%d calls before the first interruption, want one, for what an earlier process has left", n)
		}

		r := c.request(&rec)
		if want := (interruption.Replacement{Backend: provisioner.Karpenter, Name: claimName, Pool: "fallback", State: provisioner.StateRequested}); r != want {
			t.Fatalf("replacement %+v, want %+v", r, want)
		}
		c.wantCalls("get nodeclaims", "create nodeclaims")
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		c.forgetNotified()

		time.Sleep(3 * time.Second)
		c.condition("Launched", "True", "")
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateLaunched, "")
		c.condition("Registered", "True", "")
		c.wantNotified(false)
		time.Sleep(37 * time.Second)
		c.condition("Initialized", "True", "")
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateReady, "")

		// What happens to it later is no matter of this interruption.
		c.remove()
		wantState(t, c.request(&rec), provisioner.StateReady, "")
		c.wantCalls()

		if err := c.p.Terminate(t.Context(), interruptedNode(), rec); err != nil {
			t.Fatal(err)
		}
		c.wantCalls("patch nodeclaims", "delete nodeclaims")
		if err := c.p.Terminate(t.Context(), interruptedNode(), rec); err != nil {
			t.Errorf("second Release: %v", err)
		}

		for _, result := range []string{"requested", "launched", "ready"} {
			c.wantCount(result, 1)
		}
		families, err := c.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "spot_handler_replacement_ready_seconds" {
				if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 1 || h.GetSampleSum() != 40 {
					t.Errorf("%s: %d samples of %v s, want 1 of 40", f.GetName(), h.GetSampleCount(), h.GetSampleSum())
				}
			}
		}
	})
}

func TestRecordGuardsAgainstASecondRequest(t *testing.T) {
	bubble(t, "answer not yet recorded", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.ClearActions()
		rec.Replacement = nil
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		if slices.Contains(c.calls(), "create nodeclaims") {
			t.Error("asked again")
		}
	})
	bubble(t, "made by a process that died", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		other := built(t, newOrder(t))
		if _, err := c.Resource(nodeClaimResource).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		c.condition("Launched", "True", "")
		wantState(t, c.request(&rec), provisioner.StateLaunched, "")
	})
	bubble(t, "of an earlier interruption of the same instance", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		for _, life := range []string{"first", "second"} {
			r := c.request(&rec)
			wantState(t, r, provisioner.StateRequested, "")
			u, err := c.Tracker().Get(nodeClaimResource, "", r.Name)
			if err != nil {
				t.Fatalf("%s interruption: %v", life, err)
			}
			claim := u.(*unstructured.Unstructured).DeepCopy()
			if claim.GetLabels()[SettledLabel] != "" || claim.GetLabels()[ReplacesLabel] != instance {
				t.Errorf("%s interruption: replaced by %s with labels %v, whose room is taken", life, r.Name, claim.GetLabels())
			}
			again := rec
			again.Replacement = nil // nobody lived to record it
			if second := c.request(&again); second.Name != r.Name {
				t.Errorf("%s interruption: asked for %s and %s", life, r.Name, second.Name)
			}
			// Its pods come, and the instance is back.
			labels := claim.GetLabels()
			labels[SettledLabel] = settledUsed
			claim.SetLabels(labels)
			claim.SetResourceVersion("9")
			if err := c.Tracker().Update(nodeClaimResource, claim, ""); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			rec = record()
		}
	})
	bubble(t, "somebody else's", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		other := built(t, newOrder(t))
		other.SetLabels(map[string]string{ReplacesLabel: "i-1"})
		if _, err := c.Resource(nodeClaimResource).Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		wantState(t, c.request(&rec), provisioner.StateFailed, "not ours")
	})
	bubble(t, "restart", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		claim := built(t, newOrder(t))
		if _, err := c.Resource(nodeClaimResource).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.condition("Launched", "True", "")
		c.ClearActions()
		rec.Replacement = &interruption.Replacement{Backend: provisioner.Karpenter, Name: claimName, Pool: "fallback", State: provisioner.StateRequested}
		if _, err := c.p.Request(t.Context(), interruptedNode(), rec, need()); err != nil { // the watch might not have begun
			t.Fatal(err)
		}
		synctest.Wait()
		wantState(t, c.request(&rec), provisioner.StateLaunched, "")
		c.wantCalls()
	})
}

func TestFailures(t *testing.T) {
	bubble(t, "not launched in time", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		time.Sleep(5 * time.Second)
		c.condition("Launched", "Unknown", "no subnet")
		c.request(&rec)
		c.forgetNotified()
		c.ClearActions()
		time.Sleep(launchTimeout - 6*time.Second)
		c.wantNotified(false)
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
		time.Sleep(2 * time.Second)
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateFailed, "not launched in 25 s: no subnet")
		c.wantCalls("delete nodeclaims", "get nodeclaims") // of the node, to choose the next pool
		time.Sleep(time.Minute)
		wantState(t, c.request(&rec), provisioner.StateFailed, "not launched in 25 s")
		c.wantCalls("get nodeclaims") // looked after, and gone
		c.wantCount("failed", 1)
	})
	bubble(t, "not launched in time, restart", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		if _, err := c.Resource(nodeClaimResource).Create(t.Context(), built(t, newOrder(t)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(launchTimeout + orphanGrace/2)
		rec.Replacement = &interruption.Replacement{Backend: provisioner.Karpenter, Name: claimName, Pool: "fallback", State: provisioner.StateRequested}
		c.request(&rec)
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateFailed, "not launched in 25 s")
	})
	bubble(t, "launched in the last moment", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.PrependReactor("delete", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			c.setCondition("Launched", "True", "")
			return true, nil, apierrors.NewConflict(nodeClaimResource.GroupResource(), claimName, errors.New("precondition"))
		})
		time.Sleep(launchTimeout)
		wantState(t, c.request(&rec), provisioner.StateLaunched, "")
	})
	bubble(t, "changed in the last moment", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.PrependReactor("delete", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewConflict(nodeClaimResource.GroupResource(), claimName, errors.New("precondition"))
		})
		time.Sleep(launchTimeout)
		if _, err := c.p.Request(t.Context(), interruptedNode(), rec, need()); err == nil {
			t.Error("no error, want one that has the caller try again")
		}
	})
	bubble(t, "no capacity", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.request(&rec)
		c.ClearActions()
		c.forgetNotified()
		c.remove()
		c.wantNotified(true)
		wantState(t, c.request(&rec), provisioner.StateFailed, "insufficient capacity")
		c.wantCalls("get nodeclaims") // the absence is checked; the node's own claim has just been read
		c.request(&rec)
		c.wantCalls()
		time.Sleep(time.Hour)
		c.wantNotified(false)
	})
	bubble(t, "taken away while it boots", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.request(&rec)
		c.condition("Launched", "True", "")
		c.request(&rec)
		c.remove()
		wantState(t, c.request(&rec), provisioner.StateFailed, "before its node was Ready")
	})
	bubble(t, "refused", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.PrependReactor("create", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInvalid(schema.GroupKind{Group: karpenterGroup, Kind: "NodeClaim"}, claimName, nil)
		})
		wantState(t, c.request(&rec), provisioner.StateFailed, "invalid")
	})
	bubble(t, "denied by an admission policy", func(t *testing.T) {
		c, rec := automatic(t, Options{}, plain(t, "a", 40), plain(t, "b", 30)), record()
		c.PrependReactor("create", "nodeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
			name := action.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured).GetName()
			denial := errors.New("ValidatingAdmissionPolicy 'creates-nodeclaims' denied request: its NodePool uses more than its limits")
			return strings.HasPrefix(name, "a-"), nil, apierrors.NewForbidden(nodeClaimResource.GroupResource(), name, denial)
		})
		r := c.request(&rec)
		if wantState(t, r, provisioner.StateRequested, "NodePool a: ValidatingAdmissionPolicy 'creates-nodeclaims' denied"); r.Pool != "b" || r.Tried != "a" {
			t.Errorf("replacement %+v, want one in b after a", r)
		}
	})
	bubble(t, "transient", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		broken := true
		c.PrependReactor("create", "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken, nil, apierrors.NewServiceUnavailable("starting")
		})
		if _, err := c.p.Request(t.Context(), interruptedNode(), rec, need()); err == nil {
			t.Error("no error, want a transient one")
		}
		broken = false
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
	})
}

// Pools are tried one after the other, each once, across processes.
func TestNextPool(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := automatic(t, Options{}, plain(t, "a", 40), plain(t, "b", 30), plain(t, "c", 20)), record()
		drop := func(name string) {
			if err := c.Tracker().Delete(nodeClaimResource, "", name); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		var seen []string
		for _, want := range []string{"a", "b", "c"} {
			r := c.request(&rec)
			if r.Pool != want || r.State != provisioner.StateRequested || r.Tried != strings.Join(seen, ",") {
				t.Fatalf("replacement %+v, want one in %s after %q", r, want, seen)
			}
			if want != "a" && !strings.Contains(r.Reason, "NodePool "+seen[len(seen)-1]+": insufficient capacity") {
				t.Errorf("reason %q, want why not %s", r.Reason, seen[len(seen)-1])
			}
			seen = append(seen, want)
			drop(r.Name)
			if want == "b" { // another process goes on from the record
				next := automatic(t, Options{}, plain(t, "a", 40), plain(t, "b", 30), plain(t, "c", 20))
				again := rec
				next.request(&again) // its watch has only just begun
				if r := next.request(&again); r.Pool != "c" || r.Tried != "a,b" {
					t.Errorf("next process: %+v, want one in c after a and b", r)
				}
			}
		}
		for range 3 {
			r := c.request(&rec)
			wantState(t, r, provisioner.StateFailed, "none suits")
			if r.Tried != "a,b,c" || r.Pool != "c" {
				t.Errorf("replacement %+v, want a, b, c tried", r)
			}
		}
		c.wantCount("failed", 3)
		c.wantCount("requested", 3)
	})
}

// The answer to a NodeClaim's creation is lost, and the watch is behind. Even if the next attempt chooses another pool,
// the NodeClaim is found.
func TestLostAnswerAndAnotherPool(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{})
		c.PrependReactor("create", "nodeclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			u := a.(clienttesting.CreateAction).GetObject().(*unstructured.Unstructured)
			u.SetUID("uid-of-" + types.UID(u.GetName()))
			u.SetCreationTimestamp(metav1.Now())
			if err := c.Tracker().Create(nodeClaimResource, u, ""); err != nil {
				t.Error(err)
			}
			return true, nil, errors.New("connection reset by peer")
		})
		if r, err := c.p.Request(t.Context(), interruptedNode(), record(), need()); err == nil {
			t.Fatalf("%+v, want an error", r)
		}
		synctest.Wait()
		c.b.claims.forget(claimName)
		claims, err := c.b.existing(t.Context(), instance)
		if err != nil || len(claims) != 1 || claims[0].Name != claimName {
			t.Errorf("%d NodeClaims, %v; want the one whose answer was lost", len(claims), err)
		}
	})
}
