package bench

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// view is what EndpointSlices say from a moment on.
type view struct {
	at    time.Time
	ready []string // pods
}

// late is a load balancer that knows each view only after lag. It spreads its requests
// evenly over the pods of the view that it knows, whether they take them or not.
type late struct {
	lag  time.Duration
	rate float64 // requests a second
}

// lost counts the requests to pods that had stopped taking them, from the first view on,
// which the load balancer knows already, until it knows the last. fewest is the smallest
// number of pods that it knew and that took requests.
func (l late) lost(views []view, stopped map[string]time.Time) (requests float64, fewest int) {
	fewest = len(views[0].ready)
	for i, v := range views {
		from, to := v.at, v.at.Add(l.lag)
		if i > 0 {
			from = v.at.Add(l.lag)
		}
		if i+1 < len(views) {
			to = views[i+1].at.Add(l.lag)
		}
		taking := len(v.ready)
		for _, pod := range v.ready {
			at, stops := stopped[pod]
			if !stops || at.After(to) {
				continue
			}
			taking--
			if at.Before(from) {
				at = from
			}
			requests += to.Sub(at).Seconds() * l.rate / float64(len(v.ready))
		}
		fewest = min(fewest, taking)
	}
	return requests, fewest
}

func TestLost(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	both, one, none := []string{"old", "stays"}, []string{"stays"}, []string(nil)
	for name, tt := range map[string]struct {
		views   []view
		stopped map[string]time.Time
		lost    float64 // of 10 a second, 30 s late
		fewest  int
	}{
		"nobody goes":                 {[]view{{at(0), both}}, nil, 0, 2},
		"stops as it leaves":          {[]view{{at(0), both}, {at(60), one}}, map[string]time.Time{"old": at(60)}, 30 * 5, 1},
		"takes requests for as long":  {[]view{{at(0), both}, {at(60), one}}, map[string]time.Time{"old": at(90)}, 0, 1},
		"and not quite as long":       {[]view{{at(0), both}, {at(60), one}}, map[string]time.Time{"old": at(88)}, 2 * 5, 1},
		"stops before it leaves":      {[]view{{at(0), both}, {at(60), one}}, map[string]time.Time{"old": at(50)}, 40 * 5, 1},
		"its replacement comes first": {[]view{{at(0), both}, {at(50), []string{"old", "stays", "new"}}, {at(60), []string{"stays", "new"}}}, map[string]time.Time{"old": at(60)}, 20*5 + 10*10/3., 1},
		"it comes after":              {[]view{{at(0), both}, {at(60), one}, {at(70), []string{"stays", "new"}}}, map[string]time.Time{"old": at(90)}, 0, 1},
		"all stop":                    {[]view{{at(0), both}, {at(60), none}}, map[string]time.Time{"old": at(80), "stays": at(80)}, 10 * 10, 0},
	} {
		lost, fewest := late{30 * time.Second, 10}.lost(tt.views, tt.stopped)
		if diff := lost - tt.lost; diff < -0.001 || diff > 0.001 || fewest != tt.fewest {
			t.Errorf("%s: %.1f lost and %d at least, want %.1f and %d", name, lost, fewest, tt.lost, tt.fewest)
		}
	}
}

// A pod stops at SIGTERM, which comes after its preStop sleep or at the end of its grace period; when
// it is gone; or with its node.
func TestStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deleted := time.Now()
		pod := func(name string, sleep, grace int64) *corev1.Pod {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, DeletionTimestamp: &metav1.Time{Time: deleted}, DeletionGracePeriodSeconds: &grace}}
			p.Spec.Containers = []corev1.Container{{}}
			if sleep > 0 {
				p.Spec.Containers[0].Lifecycle = preStopSleep(time.Duration(sleep) * time.Second)
			}
			return p
		}
		stays := pod("stays", 35, 50)
		stays.DeletionTimestamp = nil
		watch := trafficWatch{traffic: traffic{stopped: map[string]time.Time{}}}
		for _, p := range []*corev1.Pod{stays, pod("none", 0, 30), pod("sleeps", 35, 50), pod("short", 35, 20), pod("long", 125, 140), pod("killed", 35, 50)} {
			watch.seePod(p, false)
		}
		time.Sleep(10 * time.Second)
		watch.seePod(pod("sleeps", 35, 50), false)
		watch.seePod(pod("none", 0, 30), true)
		watch.seePod(pod("killed", 35, 50), true)
		got := map[string]time.Duration{}
		for name, at := range watch.until(deleted.Add(120 * time.Second)).stopped {
			got[name] = at.Sub(deleted)
		}
		want := map[string]time.Duration{"none": 0, "sleeps": 35 * time.Second, "short": 20 * time.Second, "long": 120 * time.Second, "killed": 10 * time.Second}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stopped after (-want +got):\n%s", diff)
		}
	})
}
