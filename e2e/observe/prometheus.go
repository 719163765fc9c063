package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"

	"spot-handler/e2e/internal/loopback"
	"spot-handler/e2e/internal/tied"
)

// PrometheusOptions say what a Prometheus scrapes and evaluates: every two seconds, and every second, so a story
// need not wait.
type PrometheusOptions struct {
	// Targets are the addresses to scrape, HOST:PORT, by the name of the pod that each
	// stands for.
	Targets map[string]string
	// Rules is the path of a file of rules, which may be empty.
	Rules string
	// Native makes Prometheus scrape native histograms only.
	Native bool
}

// Prometheus is a running Prometheus.
type Prometheus struct {
	process *tied.Process
	url     string
}

// startTimeout is much longer than the second or two that a start takes.
const startTimeout = time.Minute

// StartPrometheus starts a Prometheus with its data in dir, and waits until it answers.
func StartPrometheus(ctx context.Context, programs Programs, dir string, o PrometheusOptions) (*Prometheus, error) {
	config, err := o.config()
	if err != nil {
		return nil, fmt.Errorf("start Prometheus: %w", err)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return nil, fmt.Errorf("start Prometheus: %w", err)
	}
	address, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "prometheus.log"))
	if err != nil {
		return nil, fmt.Errorf("start Prometheus: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(programs.Prometheus,
		"--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "tsdb"),
		"--web.listen-address="+address,
	)
	if o.Native {
		cmd.Args = append(cmd.Args, "--enable-feature=native-histograms")
	}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	p := &Prometheus{url: "http://" + address}
	if p.process, err = tied.Run(cmd); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := p.process.WaitServing(ctx, p.url+"/-/ready"); err != nil {
		p.Close()
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("start Prometheus: %w\n%s", err, text)
	}
	return p, nil
}

func (o PrometheusOptions) config() ([]byte, error) {
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
	return yaml.Marshal(config)
}

// Close ends the process and returns when it is gone.
func (p *Prometheus) Close() { p.process.Stop(10 * time.Second) }

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
	body, err := tied.Get(ctx, p.url+"/api/v1/"+call+"?"+values.Encode())
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", values.Get("query"), err)
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  *sample
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
		if r.Value != nil {
			r.Values = append(r.Values, *r.Value)
		}
		for _, v := range r.Values {
			s.Values = append(s.Values, v.number())
		}
		found = append(found, s)
	}
	return found, nil
}

// sample is a time, and a number as text.
type sample [2]any

func (s sample) number() float64 {
	number, err := strconv.ParseFloat(fmt.Sprint(s[1]), 64)
	if err != nil {
		return math.NaN()
	}
	return number
}
