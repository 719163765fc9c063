package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
)

func TestMissingPermissionsAreNamedAtOnce(t *testing.T) {
	ask := func(_ context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
		return a.Verb != "patch" && a.Subresource != "eviction", nil
	}
	err := checkPermissions(t.Context(), ask, permissionsOf(settings{mode: modeQueue, leaderElect: true}, "ns"))
	if !errors.Is(err, errUsage) {
		t.Fatalf("error %v, want wrong use", err)
	}
	for _, want := range []string{"patch nodes", "patch pods/status", "create pods/eviction"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %q:\n%v", want, err)
		}
	}
}

// An API server that takes the connection and does not answer does not keep the process
// from starting: the kubelet would kill it, again and again, as it is not alive before.
func TestPermissionsOfAnAPIServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ask := func(ctx context.Context, _ *authorizationv1.ResourceAttributes) (bool, error) {
			select {
			case <-ctx.Done():
				return false, ctx.Err()
			case <-time.After(time.Hour):
				return true, nil
			}
		}
		start := time.Now()
		err := checkPermissions(t.Context(), ask, permissionsOf(settings{mode: modeIMDS, drain: true}, ""))
		if err == nil || errors.Is(err, errUsage) {
			t.Errorf("error %v, want one that does not end the process", err)
		}
		if took := time.Since(start); took > permissionTimeout {
			t.Errorf("asked for %s, want %s at most", took, permissionTimeout)
		}
	})
}
