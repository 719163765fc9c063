package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// PrometheusOptions say what a Prometheus scrapes and evaluates. Both happen every
// second, so a story need not wait.
type PrometheusOptions struct {
	// Targets are the addresses to scrape, HOST:PORT, by the name of the pod that each
	// stands for.
	Targets map[string]string
	// Rules is the path of a file of rules; Alertmanager is the URL that alerts go to.
	// Both may be empty.
	Rules, Alertmanager string
	// Native makes Prometheus scrape native histograms only.
	Native bool
}

// Prometheus is a running Prometheus.
type Prometheus struct{ *process }

// StartPrometheus starts a Prometheus with its data in dir, and waits until it answers.
func StartPrometheus(ctx context.Context, tools Tools, dir string, o PrometheusOptions) (*Prometheus, error) {
	// The labels that a PodMonitor gives.
	var targets []map[string]any
	for pod, address := range o.Targets {
		targets = append(targets, map[string]any{
			"targets": []string{address}, "labels": map[string]string{"namespace": "spot-handler", "pod": pod, "container": "spot-handler"},
		})
	}
	config := map[string]any{
		"global":         map[string]any{"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
		"scrape_configs": []any{map[string]any{"job_name": "spot-handler/spot-handler", "static_configs": targets}},
	}
	if o.Rules != "" {
		config["rule_files"] = []string{o.Rules}
	}
	if o.Alertmanager != "" {
		config["alerting"] = map[string]any{"alertmanagers": []any{map[string]any{
			"static_configs": []any{map[string]any{"targets": []string{strings.TrimPrefix(o.Alertmanager, "http://")}}},
		}}}
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	p, err := start(ctx, "prometheus", dir, string(text), func(file, address string) []string {
		args := []string{
			tools.Prometheus, "--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "tsdb"), "--web.listen-address=" + address,
			"--rules.alert.resend-delay=1s",
		}
		if o.Native {
			args = append(args, "--enable-feature=native-histograms")
		}
		return args
	})
	if err != nil {
		return nil, err
	}
	return &Prometheus{p}, nil
}

// Series is one series of an answer, with its samples in order of time.
type Series struct {
	Labels map[string]string
	Values []float64
}

// Number reports whether any sample of the series is a number.
func (s Series) Number() bool {
	for _, v := range s.Values {
		if !math.IsNaN(v) {
			return true
		}
	}
	return false
}

// Query evaluates the expression now.
func (p *Prometheus) Query(ctx context.Context, expr string) ([]Series, error) {
	return p.query(ctx, "query", url.Values{"query": {expr}})
}

// QueryRange evaluates the expression at every step of a range of time, as a panel does.
func (p *Prometheus) QueryRange(ctx context.Context, expr string, from, to time.Time, step time.Duration) ([]Series, error) {
	unix := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	return p.query(ctx, "query_range", url.Values{
		"query": {expr}, "start": {unix(from)}, "end": {unix(to)}, "step": {step.String()},
	})
}

func (p *Prometheus) query(ctx context.Context, call string, values url.Values) ([]Series, error) {
	body, err := get(ctx, p.URL+"/api/v1/"+call+"?"+values.Encode())
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", values.Get("query"), err)
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  sample
				Values []sample
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("query %s: %w", values.Get("query"), err)
	}
	var found []Series
	for _, r := range answer.Data.Result {
		s := Series{Labels: r.Metric}
		if r.Value.is {
			r.Values = append(r.Values, r.Value)
		}
		for _, v := range r.Values {
			s.Values = append(s.Values, v.value)
		}
		found = append(found, s)
	}
	return found, nil
}

// sample is the API's [time, "value"].
type sample struct {
	is    bool
	value float64
}

func (s *sample) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &[]any{new(float64), &text}); err != nil {
		return err
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return err
	}
	s.is, s.value = true, value
	return nil
}

// Firing returns the alerts that fire now, and how many of each.
func (p *Prometheus) Firing(ctx context.Context) (map[string]int, error) {
	found, err := p.Query(ctx, `ALERTS{alertstate="firing"}`)
	if err != nil {
		return nil, err
	}
	firing := map[string]int{}
	for _, s := range found {
		firing[s.Labels["alertname"]]++
	}
	return firing, nil
}
