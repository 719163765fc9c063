package drain

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// busy is what priority and fairness says of a request.
func busy(retryAfter int32) *metav1.Status {
	return &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "too many requests",
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter, Causes: []metav1.StatusCause{{Type: metav1.CauseTypeUnexpectedServerResponse}}},
	}
}

// attempts are the evictions of a scene: when they came, and with which grace period.
type attempts struct {
	mu    sync.Mutex
	start time.Time
	at    []time.Duration
	grace []any
}

// busyUntil answers the evictions up to a moment of the story with 429.
func (a *attempts) busyUntil(until time.Duration, retryAfter int32) func(*fakeAPI) {
	return func(f *fakeAPI) {
		a.start = time.Now()
		f.answer = func(_, path string, body map[string]any) (int, any) {
			if !strings.HasSuffix(path, "/eviction") {
				return 0, nil
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			since := time.Since(a.start)
			opts, _ := body["deleteOptions"].(map[string]any)
			a.at, a.grace = append(a.at, since), append(a.grace, opts["gracePeriodSeconds"])
			if since <= until {
				return http.StatusTooManyRequests, busy(retryAfter)
			}
			return 0, nil
		}
	}
}

// The API server is too busy at a pod's eviction deadline, and says that for half a minute nobody should
// ask. The pod has no half a minute.
func TestRetryAfterPastTheLatestStart(t *testing.T) {
	for _, after := range []int32{1, 8, 32} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			var tried attempts
			stage(t, holding, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
				pods("a")(f)
				tried.busyUntil(80*time.Second, after)(f)
			}, func(s *scene) {
				s.until(119 * time.Second)
				if len(tried.at) != 2 || tried.at[0] != 80*time.Second || tried.at[1] > 82*time.Second {
					t.Errorf("attempts at %s, want at 80 s and within 2 s of it", tried.at)
				}
				if len(tried.grace) == 2 && tried.grace[1] != nil && tried.grace[1].(float64) < 28 {
					t.Errorf("grace %v, want nearly all of 30", tried.grace[1])
				}
			})
		})
	}
}

// In an emergency all pods are past their eviction deadline from the start, and the API server is busy
// for five seconds.
func TestRetryAfterInAnEmergency(t *testing.T) {
	var tried attempts
	stage(t, holding, time.Nanosecond, plan.NoCapacity, func(f *fakeAPI) {
		pods("a")(f)
		tried.busyUntil(5*time.Second, 32)(f)
	}, func(s *scene) {
		s.until(20 * time.Second)
		if last := len(tried.at) - 1; last < 3 || tried.at[last] > 7*time.Second {
			t.Errorf("attempts at %s, want one within 2 s of the fifth", tried.at)
		}
		for i := range len(tried.at) - 1 {
			if wait := tried.at[i+1] - tried.at[i]; wait < time.Second || wait > 2*time.Second {
				t.Errorf("attempts at %s, want 1 to 2 s between them", tried.at)
			}
		}
	})
}

// A pod has time, and its next attempt waits for a busy API server, when the instance begins to end.
func TestRetryAfterWhenTheDeadlineComesNearer(t *testing.T) {
	var tried attempts
	stage(t, holding, 0, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		tried.busyUntil(2*time.Second, 32)(f)
	}, func(s *scene) {
		s.until(5 * time.Second)
		s.change(func(in *plan.NodeState) { in.Deadline = time.Now() })
		s.pass(time.Second)
		if want := []time.Duration{0, 5 * time.Second}; !slices.Equal(tried.at, want) {
			t.Errorf("attempts at %s, want %s", tried.at, want)
		}
	})
}
