package observe

import (
	"testing"
	"time"
)

// An alert goes from a rule of Prometheus through Alertmanager to the receiver that its
// severity demands.
func TestAlertReachesItsReceiver(t *testing.T) {
	tools := ForTest(t)
	alertmanager, err := StartAlertmanager(t.Context(), tools, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer alertmanager.Close()
	rules := t.TempDir() + "/rules.yaml"
	write(t, rules, `{groups: [{name: test, rules: [
		{alert: Broken, expr: vector(1), labels: {severity: critical}, annotations: {summary: it is}},
		{alert: Worn, expr: vector(1), labels: {severity: warning}}]}]}`)
	prometheus, err := StartPrometheus(t.Context(), tools, t.TempDir(), PrometheusOptions{Rules: rules, Alertmanager: alertmanager.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer prometheus.Close()

	for deadline := time.Now().Add(time.Minute); len(alertmanager.Received(Pager, "Broken")) == 0 || len(alertmanager.Received(Inbox, "Worn")) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the alerts have not arrived within a minute")
		}
	}
	if a := alertmanager.Received(Pager, "Broken")[0]; a.Annotations["summary"] != "it is" || a.Labels["severity"] != "critical" {
		t.Errorf("the page says %v, %v", a.Labels, a.Annotations)
	}
	if got := alertmanager.Received(Pager, "Worn"); len(got) != 0 {
		t.Errorf("a ticket was paged: %v", got)
	}
	firing, err := prometheus.Firing(t.Context())
	if err != nil || firing["Broken"] != 1 || firing["Worn"] != 1 {
		t.Errorf("firing %v (%v), want both", firing, err)
	}
	series, err := prometheus.QueryRange(t.Context(), `vector(0) / vector(0) or vector(2)`, time.Now().Add(-time.Minute), time.Now(), 30*time.Second)
	if err != nil || len(series) != 1 || len(series[0].Values) != 3 || series[0].Number() {
		t.Errorf("%v (%v), want three samples that are not a number", series, err)
	}
	if _, err := prometheus.Query(t.Context(), "sum("); err == nil {
		t.Error("no error for a query that cannot be read")
	}
}
