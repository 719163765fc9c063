package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reviewFunc answers reviews; nil is never.
type reviewFunc func(*authorizationv1.ResourceAttributes) bool

var _ reviewClient = reviewFunc(nil)

func (f reviewFunc) Create(ctx context.Context, r *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SelfSubjectAccessReview, error) {
	if f == nil {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r.Status.Allowed = f(r.Spec.ResourceAttributes)
	return r, nil
}

// An API server that does not answer, as in the burst in which the process was killed, does
// not keep it from starting.
func TestPermissionsAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := checkPermissions(t.Context(), reviewFunc(nil), permissionsOf(config{mode: modeQueue, leaderElect: true}, "ns"))
		if took := time.Since(began); err == nil || errors.Is(err, errUsage) || took > 5*time.Second {
			t.Errorf("%v after %s, want an error that is no wrong use within seconds", err, took)
		}
	})
}

func TestMissingPermissionsAreAllNamed(t *testing.T) {
	list := permissionsOf(config{mode: modeQueue, leaderElect: true}, "ns")
	err := checkPermissions(t.Context(), reviewFunc(func(a *authorizationv1.ResourceAttributes) bool { return a.Resource != "leases" && a.Subresource == "" }), list)
	if !errors.Is(err, errUsage) {
		t.Fatalf("%v, want a wrong use", err)
	}
	for _, want := range []string{"create pods/eviction", "patch pods/status", "get leases.coordination.k8s.io in namespace ns", "update leases"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "list pods") {
		t.Errorf("what is allowed is named: %v", err)
	}
	if err := checkPermissions(t.Context(), reviewFunc(func(*authorizationv1.ResourceAttributes) bool { return true }), list); err != nil {
		t.Error(err)
	}
}
