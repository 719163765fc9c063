package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/drain"
	"spot-handler/handler"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/workloads"
	"spot-handler/imds"
	"spot-handler/queue"
)

// wired are all the parts that count, as serve wires them, in a registry for each source.
func wired(t *testing.T) []*prometheus.Registry {
	t.Helper()
	var registries []*prometheus.Registry
	for _, mode := range []string{modeIMDS, modeQueue} {
		registry := prometheus.NewPedanticRegistry()
		index := nodes.New(nil, "", zerolog.Nop())
		handler.New(handler.Options{
			Index:       index,
			Drainer:     drain.New(drain.Options{Registerer: registry, Logger: zerolog.Nop()}),
			Provisioner: provisioner.New(provisioner.Options{Registerer: registry, Logger: zerolog.Nop()}),
			Registerer:  registry, Logger: zerolog.Nop(),
		})
		workloads.New(workloads.Options{Registerer: registry, Logger: zerolog.Nop()})
		registry.MustRegister(buildInfo(mode))
		if mode == modeIMDS {
			imds.New(imds.Options{Registerer: registry, Logger: zerolog.Nop()})
		} else {
			queue.New(queue.Options{Registerer: registry, Logger: zerolog.Nop()})
			newLeader(registry)
			registry.MustRegister(offerings.New().Collector())
			lifecycle.New(lifecycle.Options{Registerer: registry, Logger: zerolog.Nop()})
		}
		registries = append(registries, registry)
	}
	return registries
}

// Every histogram has buckets of both sorts, so that any Prometheus can read it, and
// every metric has a base unit and a help text.
func TestHistogramsAreClassicAndNative(t *testing.T) {
	histograms := 0
	for _, registry := range wired(t) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "spot_handler_") || f.GetHelp() == "" {
				t.Errorf("metric %q, help %q", f.GetName(), f.GetHelp())
			}
			for _, m := range f.GetMetric() {
				h := m.GetHistogram()
				if h == nil {
					continue
				}
				histograms++
				if !strings.HasSuffix(f.GetName(), "_seconds") {
					t.Errorf("%s is in no base unit", f.GetName())
				}
				buckets := h.GetBucket()
				if len(buckets) < 2 || buckets[0].GetUpperBound() != 0.1 || buckets[len(buckets)-1].GetUpperBound() != 120 {
					t.Errorf("%s: classic buckets %v, want some from 0.1 to 120 s", f.GetName(), buckets)
				}
				// The factor 1.1 makes schema 3; without native buckets there is none.
				if h.Schema == nil || h.GetSchema() != 3 {
					t.Errorf("%s has no native buckets", f.GetName())
				}
			}
		}
	}
	if histograms == 0 {
		t.Error("no histograms")
	}
}

// What the alerts look at in buckets is a limit of one.
func TestBucketsOfAlerts(t *testing.T) {
	for name, limit := range map[string]float64{"spot_handler_notice_lead_seconds": 60, "spot_handler_message_age_seconds": 30} {
		found := false
		for _, registry := range wired(t) {
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() != name {
					continue
				}
				for _, b := range f.GetMetric()[0].GetHistogram().GetBucket() {
					found = found || b.GetUpperBound() == limit
				}
			}
		}
		if !found {
			t.Errorf("%s has no bucket of %v s", name, limit)
		}
	}
}

// The labels, all of them. Each has values that are known beforehand, but for those that
// are cut off beyond a number: pool, also with zone, and budget. A new one has to be as
// bounded; a node, an instance, a pod or an id never is.
var labelsOfMetrics = []string{
	"action", "backend", "budget", "code", "commit", "go_version", "kind", "mode", "outcome", "phase", "pool", "reason", "replacement",
	"result", "source", "state", "version", "within", "zone",
}

func TestLabelsAreBounded(t *testing.T) {
	variable := regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	constant := regexp.MustCompile(`constLabels: \{([^}]*)\}`)
	for _, registry := range wired(t) {
		descs := make(chan *prometheus.Desc)
		go func() { defer close(descs); registry.Describe(descs) }()
		for desc := range descs {
			metric := name.FindStringSubmatch(desc.String())[1]
			labels := strings.Split(variable.FindStringSubmatch(desc.String())[1], ",")
			for pair := range strings.SplitSeq(constant.FindStringSubmatch(desc.String())[1], ",") {
				label, _, _ := strings.Cut(pair, "=")
				labels = append(labels, label)
			}
			for _, label := range labels {
				if label != "" && !slices.Contains(labelsOfMetrics, label) {
					t.Errorf("%s has label %q, of which nobody knows that it is bounded", metric, label)
				}
			}
		}
	}
}

// From the first scrape on there is a series for every kind, phase, source, outcome and
// result: what appears only with its first count is a count that rate and increase do
// not see.
func TestSeriesAreThereFromTheStart(t *testing.T) {
	values := map[string]map[string]bool{} // of each metric's labels, by metric and label
	for _, registry := range wired(t) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					key := f.GetName() + " " + l.GetName()
					if values[key] == nil {
						values[key] = map[string]bool{}
					}
					values[key][l.GetValue()] = true
				}
			}
		}
	}
	want := map[string]int{} // at least
	for metric, n := range map[string]int{
		"pods_total outcome": 4, "drains_total result": 4, "evictions_total code": 8, "messages_total outcome": 8,
		"active_interruptions phase": len(interruption.Phases()), "replacements_total result": len(provisioner.States()),
		"last_poll_timestamp_seconds source": len(interruption.Sources()),
	} {
		want["spot_handler_"+metric] = n
	}
	kinds, sources := 0, 0
	for key, got := range values {
		if strings.HasSuffix(key, " kind") {
			kinds++
			want[key] = len(interruption.Kinds())
		}
		if strings.HasSuffix(key, " source") && strings.Contains(key, "notice") {
			sources++
			want[key] = len(interruption.Sources())
		}
		if len(got) == 0 {
			t.Errorf("%s has no value", key)
		}
	}
	if kinds < 8 || sources < 3 {
		t.Errorf("%d metrics by kind, %d of notices by source, want 8 and 3 at least", kinds, sources)
	}
	for key, n := range want {
		if len(values[key]) < n {
			t.Errorf("%s has %d values at the start, want %d at least: %v", key, len(values[key]), n, values[key])
		}
	}
}
