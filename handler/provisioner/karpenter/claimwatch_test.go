package karpenter

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"

	"spot-handler/handler/provisioner"
)

// In the daemon of one node the watch shows that node's replacement alone.
func TestWatchOfOneInstance(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := newCluster(t, Options{SingleNode: true}), record()
		c.request(&rec)
		for _, a := range c.Actions() {
			if w, ok := a.(clienttesting.WatchActionImpl); ok {
				if got, want := w.GetWatchRestrictions().Labels.String(), ReplacesLabel+"="+instance+",!"+SettledLabel; got != want {
					t.Errorf("watch selects %q, want %q", got, want)
				}
				return
			}
		}
		t.Error("no watch")
	})
}

// That claims must not be watched is said once, although it is tried again and again.
func TestForbiddenWatchIsSaidOnce(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var said bytes.Buffer
		klog.SetSlogLogger(slog.New(slog.NewTextHandler(zerolog.SyncWriter(&said), nil)))
		defer klog.ClearLogger()
		c, rec := newCluster(t, Options{}), record()
		forbidden := apierrors.NewForbidden(nodeClaimResource.GroupResource(), "", errors.New("no RBAC"))
		tries := 0
		c.PrependWatchReactor("nodeclaims", func(clienttesting.Action) (bool, watch.Interface, error) {
			tries++
			return true, nil, forbidden
		})
		c.request(&rec)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(c.log.String(), "replacements cannot be watched"); tries < 3 || n != 1 || said.Len() > 0 {
			t.Errorf("said %d times in %d tries, and by client-go: %s", n, tries, said.String())
		}
	})
}

func TestSlim(t *testing.T) {
	claim := built(t, newOrder(t))
	set([]any{map[string]any{"type": "Launched", "status": "True"}, map[string]any{"type": "Drifted", "status": "True"}}, "status", "conditions")(claim)
	s := decodeClaim(claim).slim()
	if s.Name != claimName || s.state() != provisioner.StateLaunched || s.Labels[ReplacesLabel] != instance || s.Annotations[nodeAnnotation] != "node-1" {
		t.Errorf("slim claim %+v lacks what is asked of it", s)
	}
	if len(s.Spec.Requirements)+len(s.Spec.Resources.Requests)+len(s.Status.Capacity) != 0 {
		t.Errorf("slim claim %+v holds more than is asked of it", s)
	}
	set("x", "status", "conditions")(claim)
	if got := decodeClaim(claim).slim(); got.state() != provisioner.StateRequested {
		t.Errorf("hostile claim: %+v; want one that is not launched", got)
	}
}

// What replaces an instance is known from the watch and from calls, until it is gone.
func TestReplacing(t *testing.T) {
	c := newClaimWatch(nil, false, func(*Claim, string) {}, zerolog.Nop())
	claim := func(name, instance, version string) *Claim {
		return &Claim{ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "uid", ResourceVersion: version, Labels: map[string]string{ReplacesLabel: instance},
		}}
	}
	check := func(instance string, want ...string) {
		t.Helper()
		got := c.replacing(instance)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s is replaced by %q, want %q", instance, got, want)
		}
	}
	c.learn(claim("a", "i-1", "1"))
	c.shown(nil, claim("b", "i-1", "2"))
	c.shown(nil, claim("c", "i-2", "3"))
	check("i-1", "a", "b")
	check("i-2", "c")
	c.shown(claim("a", "i-1", "1"), claim("a", "i-2", "4")) // somebody has changed its label
	check("i-1", "b")
	check("i-2", "a", "c")
	c.shown(claim("c", "i-2", "3"), nil)
	c.forget("b")
	check("i-1")
	check("i-2", "a")
	if c.forget("a"); len(c.known)+len(c.replace) > 0 {
		t.Errorf("%v and %v are left", c.known, c.replace)
	}
}
