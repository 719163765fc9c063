package observe

import (
	"testing"
	"time"
)

func TestPrometheus(t *testing.T) {
	programs := ForTest(t)
	rules := t.TempDir() + "/rules.yaml"
	write(t, rules, `{groups: [{name: test, rules: [{alert: Broken, expr: vector(1), labels: {severity: critical}}]}]}`)
	prometheus, err := StartPrometheus(t.Context(), programs, t.TempDir(), PrometheusOptions{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	defer prometheus.Close()

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		firing, err := prometheus.Query(t.Context(), `ALERTS{alertstate="firing"}`)
		if err == nil && len(firing) == 1 && firing[0].Labels["alertname"] == "Broken" && firing[0].Labels["severity"] == "critical" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("firing %v (%v), want Broken", firing, err)
		}
	}
	series, err := prometheus.QueryRange(t.Context(), `vector(0) / vector(0) or vector(2)`, time.Now().Add(-time.Minute), time.Now(), 30*time.Second)
	if err != nil || len(series) != 1 || len(series[0].Values) != 3 || series[0].Number() {
		t.Errorf("%v (%v), want three samples that are not a number", series, err)
	}
	if _, err := prometheus.Query(t.Context(), "sum("); err == nil {
		t.Error("no error for a query that cannot be read")
	}
}
