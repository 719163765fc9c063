package lifecycle_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/smithy-go/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/e2e/asgemu"
	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
)

const instance = "i-0123456789abcdef0"

// group is an emulated group that waits at its hook of five minutes, and a client for it.
type group struct {
	*lifecycle.Client
	cloud    *asgemu.Server
	hook     interruption.Hook
	registry *prometheus.Registry
	log      *bytes.Buffer
}

func waiting(t *testing.T) *group {
	t.Helper()
	g := &group{cloud: asgemu.Start(asgemu.Options{}), registry: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	t.Cleanup(g.cloud.Close)
	g.Client = lifecycle.New(lifecycle.Options{
		AutoScaling: autoscaling.New(autoscaling.Options{
			BaseEndpoint: &g.cloud.URL, Region: "eu-west-1", Retryer: aws.NopRetryer{},
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
			}),
			APIOptions: []func(*middleware.Stack) error{awsfault.PlainBody},
		}),
		Registerer: g.registry, Logger: zerolog.New(g.log),
	})
	g.cloud.CreateGroup("spot", instance)
	g.cloud.PutHook("spot", asgemu.Hook{Name: "drain", Transition: asgemu.TerminateAt, Timeout: 5 * time.Minute, Default: asgemu.Abandon})
	g.cloud.Shrink(instance)
	w := g.cloud.Waits(instance)[0]
	g.hook = interruption.Hook{Group: w.Group, Name: w.Hook, Token: w.Token, Since: w.Since}
	return g
}

// counted is a value of the metric.
func (g *group) counted(t *testing.T, action, result string) (n float64) {
	t.Helper()
	families, err := g.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["action"] == action && labels["result"] == result {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func TestHookIsAnswered(t *testing.T) {
	for _, token := range []bool{true, false} {
		g := waiting(t)
		if !token { // as in a message without a token: the instance says which action it is
			g.hook.Token = ""
		}
		limits, err := g.Limits(t.Context(), g.hook)
		if want := (lifecycle.Limits{Timeout: 5 * time.Minute, Global: 500 * time.Minute}); err != nil || limits != want {
			t.Errorf("limits %v, %v; want %v", limits, err, want)
		}
		for range 3 {
			if err := g.Heartbeat(t.Context(), instance, g.hook); err != nil {
				t.Error(err)
			}
		}
		if err := g.Complete(t.Context(), "node-a", instance, g.hook); err != nil {
			t.Error(err)
		}
		if w := g.cloud.Waits(instance)[0]; w.Result != asgemu.Continue || w.Heartbeats != 3 {
			t.Errorf("wait %+v", w)
		}
		for name, err := range map[string]error{
			"complete": g.Complete(t.Context(), "node-a", instance, g.hook), "heartbeat": g.Heartbeat(t.Context(), instance, g.hook),
		} {
			if !errors.Is(err, lifecycle.ErrGone) {
				t.Errorf("%s when it is over: %v, want ErrGone", name, err)
			}
			if n := g.counted(t, name, "invalid"); n != 1 {
				t.Errorf("%s counted %v times as invalid, want once", name, n)
			}
		}
		if g.counted(t, "heartbeat", "ok") != 3 || g.counted(t, "complete", "ok") != 1 || g.counted(t, "describe", "ok") != 1 {
			t.Error("counts differ from what was called")
		}
	}
}

// One call for all the hooks of a group, whoever asks.
func TestLimitsAreAskedForOnce(t *testing.T) {
	g := waiting(t)
	var asking sync.WaitGroup
	for range 200 {
		asking.Go(func() {
			if _, err := g.Limits(t.Context(), g.hook); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if n := g.cloud.Requests("DescribeLifecycleHooks"); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	other := g.hook
	other.Name = "none"
	if _, err := g.Limits(t.Context(), other); !errors.Is(err, lifecycle.ErrGone) {
		t.Errorf("a hook that is not there: %v, want ErrGone", err)
	}
}

// What fails for a moment can be asked again at once. What is not allowed is logged once for
// each call, and names what the role has to allow.
func TestFailures(t *testing.T) {
	g := waiting(t)
	calls := map[string]func() error{
		"CompleteLifecycleAction":        func() error { return g.Complete(t.Context(), "node-a", instance, g.hook) },
		"RecordLifecycleActionHeartbeat": func() error { return g.Heartbeat(t.Context(), instance, g.hook) },
		"DescribeLifecycleHooks":         func() error { _, err := g.Limits(t.Context(), g.hook); return err },
	}
	for fault, effect := range map[string]http.HandlerFunc{
		"throttled": asgemu.Throttled, "unavailable": asgemu.Unavailable, "contention": asgemu.Contention, "reset": asgemu.Reset,
	} {
		g.cloud.Fail(asgemu.Fault{Effect: effect})
		for name, call := range calls {
			if err := call(); err == nil || errors.Is(err, lifecycle.ErrGone) || errors.Is(err, lifecycle.ErrDenied) {
				t.Errorf("%s, %s: %v; want an error after which it may be tried again", fault, name, err)
			}
		}
		g.cloud.ClearFaults()
	}
	if g.log.Len() > 0 {
		t.Errorf("said: %s", g.log)
	}
	g.cloud.Fail(asgemu.Fault{Effect: asgemu.AccessDenied})
	for range 3 {
		for name, call := range calls {
			if err := call(); !errors.Is(err, lifecycle.ErrDenied) {
				t.Errorf("%s: %v, want ErrDenied", name, err)
			}
		}
	}
	for name := range calls {
		if n := strings.Count(g.log.String(), `"reason":"not allowed to call autoscaling:`+name); n != 1 {
			t.Errorf("%s: said %d times: %s", name, n, g.log)
		}
	}
	if n := g.counted(t, "complete", "access_denied"); n != 3 {
		t.Errorf("counted %v times, want 3", n)
	}
	g.cloud.ClearFaults()
	if err := calls["CompleteLifecycleAction"](); err != nil {
		t.Errorf("when it is allowed: %v", err)
	}
}

// Every cluster gets the notices of every group. A role bound to its own cluster's groups refuses those
// of others: that is no fault of the role, and does not count as one.
func TestRefusedForAnotherClustersGroup(t *testing.T) {
	g := waiting(t)
	g.cloud.Fail(asgemu.Fault{Effect: asgemu.AccessDenied})
	for range 3 {
		if err := g.Complete(t.Context(), "", instance, g.hook); !errors.Is(err, lifecycle.ErrDenied) {
			t.Errorf("%v, want ErrDenied", err)
		}
	}
	if n := strings.Count(g.log.String(), "\n"); n != 1 || strings.Contains(g.log.String(), `"level":"error"`) {
		t.Errorf("said %d times, want once and no error: %s", n, g.log)
	}
	if g.counted(t, "complete", "access_denied") != 0 || g.counted(t, "complete_unknown", "access_denied") != 3 {
		t.Error("counted as of an own node")
	}
	if err := g.Complete(t.Context(), "node-a", instance, g.hook); !errors.Is(err, lifecycle.ErrDenied) || !strings.Contains(g.log.String(), `"level":"error"`) {
		t.Errorf("an own node's, after that: %v: %s", err, g.log)
	}
	g.hook.Launching = true
	if err := g.Complete(t.Context(), "node-a", instance, g.hook); !errors.Is(err, lifecycle.ErrDenied) || g.counted(t, "complete_launch", "access_denied") != 1 ||
		!strings.Contains(g.log.String(), "cannot complete launch hooks") {
		t.Errorf("an own node's that starts: %v: %s", err, g.log)
	}
}

// A group that waits for hundreds of instances gets its answers a few calls at a time.
func TestCallsAtOnce(t *testing.T) {
	g := waiting(t)
	var calls sync.WaitGroup
	for range 300 {
		calls.Go(func() { _ = g.Heartbeat(t.Context(), instance, g.hook) })
	}
	calls.Wait()
	if n := g.counted(t, "heartbeat", "ok"); n != 300 {
		t.Errorf("%v of 300 succeeded", n)
	}
}
