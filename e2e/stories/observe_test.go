package stories

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/observe"
	"spot-handler/handler/interruption"
)

// An interruption misses its deadline, as a budget allows nothing, and Events say so:
// by the rules of deploy/alerts in a real Prometheus that scrapes the daemon, as a page.
// What else went wrong raises its own alert, what went well raises none, and every panel
// of the dashboard has something to show.
func TestAMissedDeadlinePages(t *testing.T) {
	programs := observe.ForTest(t)
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{
			Name: "batch", Weight: 100, CPUs: 16, Boot: time.Second, Labels: map[string]string{"team": "batch"},
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"},
		},
		controlplane.PoolSpec{
			Name: "batch-fallback", Weight: 10, CPUs: 16, Boot: 2 * time.Second,
			Capacity: []string{controlplane.OnDemand}, Labels: map[string]string{"team": "batch"},
		},
		controlplane.PoolSpec{
			Name: "tight", Weight: 1, CPUs: 4, Boot: time.Second, Labels: map[string]string{"team": "tight"},
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "full"},
		},
		controlplane.PoolSpec{
			Name: "full", Capacity: []string{controlplane.OnDemand}, Limits: map[string]string{"cpu": "0"}, Labels: map[string]string{"team": "tight"},
		},
	))
	batch, tight := s.node("batch"), s.node("tight")
	on := func(team string, change func(*controlplane.DeploymentSpec)) func(*controlplane.DeploymentSpec) {
		return func(d *controlplane.DeploymentSpec) {
			d.NodeSelector, d.Grace = map[string]string{"team": team}, 5*time.Second
			change(d)
		}
	}
	s.service("web", 4, on("batch", func(*controlplane.DeploymentSpec) {}))
	s.service("db", 2, on("batch", func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(2) }))
	s.service("slow", 1, on("batch", func(d *controlplane.DeploymentSpec) {
		stop := 30 * time.Second // for the gauge of such pods to be scraped
		d.StopAfter, d.Grace = &stop, 5*time.Minute
	}))
	s.service("job", 1, on("tight", func(*controlplane.DeploymentSpec) {}))

	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--drain-strategy=at-once")
	rules, err := filepath.Abs(filepath.Join("..", "..", "deploy", "alerts", "spot-handler.yaml"))
	s.must(err)
	targets := map[string]string{"spot-handler-queue-0": strings.TrimPrefix(d.URL, "http://")}
	prometheus, err := observe.StartPrometheus(s.ctx, programs, t.TempDir(), observe.PrometheusOptions{Targets: targets, Rules: rules})
	s.must(err)
	t.Cleanup(prometheus.Close)
	native, err := observe.StartPrometheus(s.ctx, programs, t.TempDir(), observe.PrometheusOptions{Targets: targets, Native: true})
	s.must(err)
	t.Cleanup(native.Close)
	s.eventually("first scrapes", func() bool {
		found, err := prometheus.Query(s.ctx, "count_over_time(spot_handler_leader[1m]) > 2 and spot_handler_leader == 1")
		s.must(err)
		return len(found) == 1
	})
	if fired := s.fired(prometheus); len(fired) != 0 {
		t.Errorf("alerts fire before anything has happened: %v", fired)
	}

	// One notice with 90 s left, long enough for a budget to hold pods back for a minute;
	// one that comes late, with 40 s; and other things that a queue holds.
	began := time.Now()
	now := began.Truncate(time.Second)
	queue.Send("}{ no JSON")
	for i := range 12 {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint("event-foreign-", i), fmt.Sprintf("i-%017x", i), now))
	}
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(batch.Name), now.Add(-30*time.Second)))
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-2", controlplane.InstanceID(tight.Name), now.Add(-80*time.Second)))
	over := func(r interruption.Record) bool { return r.Phase.Over() }
	if rec := s.waitRecord(tight.Name, over); rec.Phase == interruption.DeadlineReached || rec.Pods == nil || rec.Pods.Left != 0 {
		t.Errorf("record %s of the node that nothing blocks, want its pods gone", rec)
	}
	s.waitLine(d, "deadline reached")

	want := map[string]map[string]string{ // labels of each
		"SpotHandlerDeadlineMissed":    {"severity": "critical", "kind": "spot-interruption"},
		"SpotHandlerPodsLost":          {"severity": "critical"},
		"SpotHandlerNoticeLate":        {"severity": "critical"},
		"SpotHandlerBudgetBlocks":      {"severity": "warning", "budget": "default/db"},
		"SpotHandlerGraceTooLong":      {"severity": "warning"},
		"SpotHandlerFallbackPoolFull":  {"severity": "warning"},
		"SpotHandlerReplacementFailed": {"severity": "warning"},
	}
	for name, labels := range want {
		s.eventually("alert "+name, func() bool { return s.fired(prometheus)[name] != nil })
		for label, value := range labels {
			if got := s.fired(prometheus)[name][label]; got != value {
				t.Errorf("alert %s has %s %q, want %q", name, label, got, value)
			}
		}
	}
	for name := range s.fired(prometheus) {
		if want[name] == nil {
			t.Errorf("alert %s fires, which nothing has given cause for", name)
		}
	}
	s.panelsHaveData(prometheus, began)

	// What the gauges said while the drains were under way.
	for expr, want := range map[string]float64{
		`max_over_time(spot_handler_interrupted_nodes{kind="spot-interruption",pool="batch",zone!="",replacement="ready"}[10m])`: 1,
		`max_over_time(spot_handler_budget_blocked_pods{budget="default/db"}[10m])`:                                              2,
		`max_over_time(spot_handler_overlong_grace_pods[10m])`:                                                                   1,
		`max_over_time(spot_handler_nearest_deadline_timestamp_seconds{kind="spot-interruption"}[10m])`:                          float64(now.Add(90 * time.Second).Unix()),
		`spot_handler_nearest_deadline_timestamp_seconds{kind="spot-interruption"}`:                                              0,
	} {
		s.says(prometheus, expr, want)
	}
	s.says(native, `histogram_count(spot_handler_notice_lead_seconds{kind="spot-interruption",source="queue"})`, 2)
}

// says waits until the expression is the one value; a scrape may have been lost.
func (s *story) says(p *observe.Prometheus, expr string, want float64) {
	s.Helper()
	var found []observe.Series
	s.within(expr, time.Minute, func() bool {
		var err error
		found, err = p.Query(s.ctx, expr)
		s.must(err)
		return len(found) == 1 && found[0].Values[0] == want
	}, func() string { return fmt.Sprintf("it is %v, want %v", found, want) })
}

// fired returns the labels of the alerts that have fired, by their names.
func (s *story) fired(p *observe.Prometheus) map[string]map[string]string {
	s.Helper()
	found, err := p.Query(s.ctx, `max_over_time(ALERTS{alertstate="firing"}[10m])`)
	s.must(err)
	fired := map[string]map[string]string{}
	for _, series := range found {
		fired[series.Labels["alertname"]] = series.Labels
	}
	return fired
}

// panelsHaveData runs every query of the dashboard over the time of the story, as
// Grafana would.
func (s *story) panelsHaveData(p *observe.Prometheus, began time.Time) {
	s.Helper()
	dashboard, err := observe.ReadDashboard(filepath.Join("..", "..", "deploy", "dashboards", "spot-handler.json"))
	s.must(err)
	queries := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries++
			series, err := p.QueryRange(s.ctx, observe.Resolve(target.Expr), began, time.Now(), time.Second)
			s.must(err)
			numbers := 0
			for _, one := range series {
				if one.Number() {
					numbers++
				}
			}
			if numbers == 0 {
				s.Errorf("panel %q has nothing to show: %s", panel.Title, target.Expr)
			}
		}
	}
	if queries == 0 {
		s.Error("the dashboard has no queries")
	}
}
