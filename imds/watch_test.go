package imds

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
)

// paths are those of each kind.
var paths = map[interruption.Kind][]string{
	interruption.SpotInterruption:        {actionPath},
	interruption.InstanceTerminating:     {lifecyclePath},
	interruption.RebalanceRecommendation: {rebalancePath},
	interruption.ScheduledEvent:          {scheduledPath, historyPath},
}

// announceAll has the service announce every kind that it knows.
func (w *wire) announceAll(at time.Time) {
	w.set(actionPath, spotBody(at))
	w.set(rebalancePath, `{"noticeTime":"`+time.Now().UTC().Format(time.RFC3339)+`"}`)
	w.set(lifecyclePath, "Terminated")
	w.set(scheduledPath, eventBody("instance-event-1", "active", at))
}

func TestEveryKindIsSubmittedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		at := time.Now().Add(2 * time.Minute)
		w.announceAll(at)
		start(t, w, a)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		events, deadlines := map[string]int{}, map[interruption.Kind]time.Time{}
		for _, n := range a.notices() {
			events[n.EventID]++
			deadlines[n.Kind] = n.Deadline
		}
		stamp, began := at.UTC().Format(time.RFC3339), at.Add(-2*time.Minute).UTC().Format(time.RFC3339)
		if diff := cmp.Diff(map[string]int{
			"imds/" + testInstance + "/spot-interruption/" + stamp:        1,
			"imds/" + testInstance + "/rebalance-recommendation/" + began: 1,
			"imds/" + testInstance + "/instance-terminating/Terminated":   1,
			"imds/" + testInstance + "/scheduled-event/instance-event-1":  1,
		}, events); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[interruption.Kind]time.Time{
			interruption.SpotInterruption: at.UTC(), interruption.ScheduledEvent: at.UTC(),
			interruption.RebalanceRecommendation: {}, interruption.InstanceTerminating: {},
		}, deadlines); diff != "" {
			t.Error(diff)
		}
	})
}

// What is switched off is not asked for, and does not count for the health.
func TestOnlyTheKindsAskedForArePolled(t *testing.T) {
	for _, only := range kinds() {
		t.Run(string(only), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a := newWire(), &fakeAccepter{}
				w.announceAll(time.Now().Add(2 * time.Minute))
				w.answer = func(r *http.Request) (*http.Response, error) {
					for kind, ps := range paths {
						for _, path := range ps {
							if kind != only && r.URL.Path == path {
								return response(http.StatusServiceUnavailable, ""), nil
							}
						}
					}
					return nil, nil
				}
				metrics := prometheus.NewRegistry()
				p := New(Options{
					Client: NewClientOver(aws.Config{}, w), Accepter: a, NodeName: "node-1", Kinds: []interruption.Kind{only}, Interval: testInterval,
					Registerer: metrics, Logger: zerolog.Nop(),
				})
				run(t, p)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				for kind, ps := range paths {
					for _, path := range ps {
						if n := len(w.times(path)); (n > 0) != (kind == only) {
							t.Errorf("%s asked for %d times", path, n)
						}
					}
				}
				if got := a.notices(); len(got) != 1 || got[0].Kind != only {
					t.Errorf("submitted %v, want one of kind %s", got, only)
				}
				if err := p.Healthy(); err != nil {
					t.Error(err)
				}
				families, err := metrics.Gather()
				if err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "spot_handler_last_poll_timestamp_seconds" })
				if age := float64(time.Now().Unix()) - families[i].GetMetric()[0].GetGauge().GetValue(); age > 35 {
					t.Errorf("last poll %v s ago", age)
				}
			})
		})
	}
}

func TestKinds(t *testing.T) {
	if len(kinds()) != len(paths) || kinds()[0] != interruption.SpotInterruption {
		t.Errorf("kinds %v, want the %d with paths, spot interruptions first", kinds(), len(paths))
	}
	for _, s := range subjects(everything) {
		if p := s.period(30 * time.Second); p != 30*time.Second {
			t.Errorf("%s: read every %v at the longest interval", s.path, p)
		}
	}
}

// kinds lists the kinds that the metadata service announces, the most urgent first.
func kinds() []interruption.Kind {
	var all []interruption.Kind
	for _, s := range subjects(everything) {
		all = append(all, s.kind)
	}
	return slices.Compact(all)
}
