package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

// parsed is what a mode's command makes of its arguments and variables.
func parsed(args []string, getenv func(string) string) (meant settings, err error) {
	cmd := &cobra.Command{}
	meant.mode = args[0]
	addGroups(cmd, meant.define())
	readsVariables(cmd, getenv, meant.check, func(*cobra.Command) error { return nil })
	err = cmd.RunE(cmd, args[1:])
	return meant, err
}

func TestParse(t *testing.T) {
	cfg, err := parsed([]string{"queue", "--queue-url=https://sqs.eu-west-1.amazonaws.com/1/q", "--margin=7s",
		"--fallback-nodepool=batch=batch-fallback", "--fallback-nodepool=web=web-od", "--leader-elect=false", "--notice-networks=10.1.2.3/8,fd00::/8"},
		env(map[string]string{"SPOT_HANDLER_SCHEDULED_LEAD": "9m", "SPOT_HANDLER_MARGIN": "20s", "KUBECONFIG": "/k"}))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.mode != modeQueue || cfg.policy.Margin != 7*time.Second || cfg.scheduledLead != 9*time.Minute || cfg.leaderElect || cfg.kubeconfig != "/k" {
		t.Errorf("got %+v", cfg)
	}
	if cfg.fallback["batch"] != "batch-fallback" || cfg.fallback["web"] != "web-od" {
		t.Errorf("fallback %v", cfg.fallback)
	}
	if want := "[10.0.0.0/8 fd00::/8]"; fmt.Sprint(cfg.networks) != want {
		t.Errorf("networks %v, want %s", cfg.networks, want)
	}
	if cfg.rebalance != "replace" || cfg.cordonOnly || cfg.policy.Strategy != plan.StrategySurge || cfg.policy.Blocked != plan.Leave || !cfg.release {
		t.Errorf("defaults: %+v", cfg)
	}
}

// Without anything that makes replacements, recommendations come to nothing.
func TestRebalanceWithoutAProvisioner(t *testing.T) {
	for provisioner, want := range map[string]map[string]interruption.RebalancePolicy{
		"none": {"replace": interruption.RebalanceIgnore, "cordon": interruption.RebalanceCordon},
		"auto": {"replace": interruption.RebalanceReplace, "cordon": interruption.RebalanceCordon},
	} {
		for flag, want := range want {
			cfg, err := parsed([]string{"imds", "--node-name=a", "--provisioner=" + provisioner, "--rebalance=" + flag}, env(nil))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := rulesOf(cfg, nil)(&corev1.Node{}, true); err != nil || got.Rebalance != want {
				t.Errorf("--provisioner=%s --rebalance=%s: %s, %v; want %s", provisioner, flag, got.Rebalance, err, want)
			}
		}
	}
}

func TestNodeNameFromTheDownwardAPI(t *testing.T) {
	cfg, err := parsed([]string{"imds"}, env(map[string]string{"NODE_NAME": "a", "SPOT_HANDLER_DRAIN": "false"}))
	if err != nil || cfg.nodeName != "a" || cfg.drain {
		t.Errorf("%+v, %v", cfg, err)
	}
	cfg, err = parsed([]string{"imds"}, env(map[string]string{"NODE_NAME": "a", "SPOT_HANDLER_NODE_NAME": "b"}))
	if err != nil || cfg.nodeName != "b" {
		t.Errorf("our own variable overrides it: %q, %v", cfg.nodeName, err)
	}
}

func TestWatchedKinds(t *testing.T) {
	for want, args := range map[string][]string{
		"[spot-interruption instance-terminating rebalance-recommendation scheduled-event]": nil,
		"[spot-interruption]":                          {"--watch=spot"},
		"[rebalance-recommendation spot-interruption]": {"--watch=rebalance", "--watch=spot"},
		"[instance-terminating]":                       {"--watch=lifecycle"},
	} {
		cfg, err := parsed(append([]string{"imds", "--node-name=a"}, args...), env(nil))
		if got := fmt.Sprint(cfg.kinds); err != nil || got != want {
			t.Errorf("%v: watches %s, %v; want %s", args, got, err, want)
		}
	}
}

// All problems are named at once, each with its flag and variable.
func TestParseNamesAllProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		env  map[string]string
		want []string
	}{
		"unknown flag": {[]string{"imds", "--node-name=a", "--node-nam"}, nil, []string{"unknown flag: --node-nam; did you mean --node-name?"}},
		"argument":     {[]string{"imds", "--node-name=a", "b"}, nil, []string{`unexpected argument "b"`}},
		"bad variable": {[]string{"imds", "--node-name=a"}, map[string]string{"SPOT_HANDLER_MARGIN": "soon"}, []string{"SPOT_HANDLER_MARGIN"}},
		"many in queue mode": {
			[]string{"queue", "--margin=5m", "--rebalance=run", "--drain-strategy=x", "--http-addr=8080", "--log-level=loud",
				"--provisioner=terraform", "--pod-namespace=A", "--fallback-nodepool=a=B_"}, nil,
			[]string{"--margin (SPOT_HANDLER_MARGIN)", "--rebalance (", "--drain-strategy (", "--http-addr (", "--log-level (",
				"--provisioner (", "--pod-namespace (", "--fallback-nodepool (", "--queue-url (SPOT_HANDLER_QUEUE_URL)"},
		},
		"many in imds mode": {[]string{"imds", "--margin=5m"}, nil, []string{"--node-name (SPOT_HANDLER_NODE_NAME)", "--margin ("}},
		"placeholders": {[]string{"imds", "--node-name=a", "--fallback-selector=a b", "--placeholder-image="}, nil,
			[]string{"--fallback-selector (SPOT_HANDLER_FALLBACK_SELECTOR)", "--placeholder-image ("}},
		"nodes":                {[]string{"imds", "--node-name=a", "--managed-nodes=a b"}, nil, []string{"--managed-nodes (SPOT_HANDLER_MANAGED_NODES)"}},
		"placeholders nowhere": {[]string{"imds", "--node-name=a", "--provisioner=placeholder"}, nil, []string{"--fallback-selector ("}},
		"nothing to watch":     {[]string{"imds", "--node-name=a", "--watch="}, nil, []string{"--watch (SPOT_HANDLER_WATCH): empty", "want some of spot, lifecycle, rebalance, scheduled-events"}},
		"unknown to watch":     {[]string{"imds", "--node-name=a", "--watch=spots"}, nil, []string{`--watch (SPOT_HANDLER_WATCH): "spots"`}},
		"flags of older versions": {[]string{"imds", "--node-name=a", "--watch-spot=false", "--receivers", "--notice-host-network", "--rebalance-capacity=fallback"},
			map[string]string{"SPOT_HANDLER_KUBE_API_QPS": "5"},
			[]string{"--watch-spot is no longer a flag: --watch lists", "--receivers is no longer a flag", "--notice-networks", "--rebalance-capacity is no longer a flag: --rebalance=fallback", "SPOT_HANDLER_KUBE_API_QPS is no longer a variable"}},
		"queue url":            {[]string{"queue", "--queue-url=my-queue"}, nil, []string{"--queue-url ("}},
		"queue by ftp":         {[]string{"queue", "--queue-url=ftp://sqs/1/q"}, nil, []string{"--queue-url (", "want the queue's URL"}},
		"queue without a host": {[]string{"queue", "--queue-url=https:///1/q"}, nil, []string{"--queue-url (", "want the queue's URL"}},
		"no URL at all":        {[]string{"queue", "--queue-url=https://sqs/%zz"}, nil, []string{"--queue-url (", "want the queue's URL"}},
		"FIFO queue":           {[]string{"queue", "--queue-url=https://sqs.eu-west-1.amazonaws.com/1/q.fifo"}, nil, []string{"--queue-url (", "standard queue"}},
		"managed tag":          {[]string{"queue", "--queue-url=http://a/q"}, map[string]string{"SPOT_HANDLER_MANAGED_TAG": "team=blue"}, []string{"SPOT_HANDLER_MANAGED_TAG is no longer a variable", "--managed-nodes"}},
		"rebalances":           {[]string{"imds", "--node-name=a", "--max-concurrent-rebalances=0%", "--rebalance-ttl=-1s", "--calm=25h"}, nil, []string{"--max-concurrent-rebalances (SPOT_HANDLER_MAX_CONCURRENT_REBALANCES)", "--rebalance-ttl (", "--calm (SPOT_HANDLER_CALM): 25h0m0s: want 0s (off) to 24h"}},
		"hooks": {[]string{"queue", "--queue-url=https://sqs/1/q", "--heartbeat-until=49h"}, nil,
			[]string{"--heartbeat-until (SPOT_HANDLER_HEARTBEAT_UNTIL)"}},
		"heartbeats in imds mode": {[]string{"imds", "--node-name=a", "--heartbeat-until=1m"}, nil, []string{"unknown flag: --heartbeat-until"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parsed(tt.args, env(tt.env))
			if !errors.Is(err, errUsage) {
				t.Fatalf("error %v, want wrong use", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error does not name %q:\n%v", want, err)
				}
			}
		})
	}
}

// A webhook is checked as far as that can be done before it is used, and no secret is
// repeated.
func TestWebhookFlags(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	url, plain := file("url", "https://hooks.example.com/topsecret\n"), file("plain", "Content-Type: text/plain\nAuthorization: Bearer topsecret\n")
	for name, tt := range map[string]struct {
		args []string
		want []string // in the error; none is no error
	}{
		"all": {[]string{"--webhook-url-file=" + url, "--webhook-headers-file=" + plain,
			"--webhook-template-file=" + file("plain text", "hello {{ .Text }}"), "--webhook-proxy=http://user:topsecret@proxy:3128"}, nil},
		"template":     {[]string{"--webhook-url-file=" + url, "--webhook-template-file=" + file("template", `{"a": {{ .Text | toJson }}}`)}, nil},
		"no URL":       {[]string{"--webhook-url-file=" + file("no url", "topsecret")}, []string{"--webhook-url-file (SPOT_HANDLER_WEBHOOK_URL_FILE): ", "want an http or https URL"}},
		"no file":      {[]string{"--webhook-url-file=" + dir + "/none"}, []string{"--webhook-url-file (", dir + "/none: no such file"}},
		"without URL":  {[]string{"--webhook-template-file=" + file("template", `{"a": {{ .Text | toJson }}}`), "--webhook-proxy=http://p"}, []string{"--webhook-template-file (", "--webhook-proxy (", "of no use"}},
		"many at once": {[]string{"--webhook-url-file=" + url, "--webhook-proxy=ftp://topsecret", "--webhook-headers-file=" + file("bad", "topsecret"), "--webhook-template-file=" + file("mistyped", "{{ .Txt }}")}, []string{"--webhook-proxy (", "--webhook-headers-file (", "line 1", "--webhook-template-file (SPOT_HANDLER_WEBHOOK_TEMPLATE_FILE): ", "Txt"}},
		"no JSON":      {[]string{"--webhook-url-file=" + url, "--webhook-template-file=" + file("text", "hello {{ .Text }}")}, []string{"--webhook-template-file (", "toJson"}},
		"older flags":  {[]string{"--webhook-url=https://hooks.example.com/topsecret", "--webhook-template={}"}, []string{"--webhook-url is no longer a flag", "--webhook-url-file", "--webhook-template-file"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			args := append([]string{"imds", "--node-name=a", "--kubeconfig=/does/not/exist"}, tt.args...)
			if _, err := parsed(args, env(nil)); (err == nil) != (tt.want == nil) {
				t.Fatalf("error %v", err)
			}
			if code := run(t.Context(), args, env(nil), &out, &out); code != exitUsage {
				t.Errorf("exit code %d, want %d", code, exitUsage)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("output does not contain %q:\n%s", want, &out)
				}
			}
			if strings.Contains(out.String(), "topsecret") {
				t.Errorf("a secret is printed:\n%s", &out)
			}
		})
	}
}
