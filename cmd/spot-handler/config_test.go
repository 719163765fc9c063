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

	"spot-handler/handler/interruption"
	"spot-handler/handler/managed"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

// parsed is what a mode's command makes of its arguments and variables.
func parsed(args []string, getenv func(string) string) (cfg config, err error) {
	cfg.mode = args[0]
	cmd := &cobra.Command{}
	addGroups(cmd, cfg.define())
	readsVariables(cmd, getenv, cfg.validate, func(*cobra.Command) error { return nil })
	err = cmd.RunE(cmd, args[1:])
	return cfg, err
}

func TestParse(t *testing.T) {
	cfg, err := parsed([]string{"queue", "--queue-url=https://sqs.eu-west-1.amazonaws.com/1/q", "--margin=7s",
		"--fallback-nodepool=batch=batch-fallback", "--fallback-nodepool=web=web-od", "--leader-elect=false", "--managed-tag=team=blue", "--notice-networks=10.1.2.3/8,fd00::/8"},
		env(map[string]string{"SPOT_HANDLER_RECEIVERS": "9", "SPOT_HANDLER_MARGIN": "20s", "KUBECONFIG": "/k"}))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.mode != modeQueue || cfg.margin != 7*time.Second || cfg.receivers != 9 || cfg.leaderElect || cfg.kubeconfig != "/k" {
		t.Errorf("got %+v", cfg)
	}
	if cfg.fallback["batch"] != "batch-fallback" || cfg.fallback["web"] != "web-od" {
		t.Errorf("fallback %v", cfg.fallback)
	}
	if want := "[10.0.0.0/8 fd00::/8]"; fmt.Sprint(cfg.networks) != want {
		t.Errorf("networks %v, want %s", cfg.networks, want)
	}
	if cfg.managed != (managed.Tag{Key: "team", Value: "blue", Exact: true}) {
		t.Errorf("managed tag %+v", cfg.managed)
	}
	if cfg.rebalance != "replace" || cfg.cordonOnly || cfg.strategy != "surge" || cfg.blocked != "leave" || !cfg.release || cfg.qps != 0 {
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
		"[spot-interruption]":    {"--watch-lifecycle=false", "--watch-rebalance=false", "--watch-scheduled-events=false"},
		"[instance-terminating]": {"--watch-spot=false", "--watch-rebalance=false", "--watch-scheduled-events=false"},
	} {
		cfg, err := parsed(append([]string{"imds", "--node-name=a"}, args...), env(nil))
		if got := fmt.Sprint(cfg.watch.kinds()); err != nil || got != want {
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
				"--log-format=xml", "--provisioner=terraform", "--receivers=0", "--kube-api-qps=-1", "--kube-api-burst=0",
				"--lease-namespace=A", "--fallback-nodepool=a=B_"}, nil,
			[]string{"--margin (SPOT_HANDLER_MARGIN)", "--rebalance (", "--drain-strategy (", "--http-addr (", "--log-level (", "--log-format (",
				"--provisioner (", "--receivers (", "--kube-api-qps (", "--kube-api-burst (", "--lease-namespace (", "--fallback-nodepool (", "--queue-url (SPOT_HANDLER_QUEUE_URL)"},
		},
		"many in imds mode": {[]string{"imds", "--poll-interval=1ms"}, nil, []string{"--node-name (SPOT_HANDLER_NODE_NAME)", "--poll-interval ("}},
		"placeholders": {[]string{"imds", "--node-name=a", "--fallback-selector=a b", "--placeholder-namespace=A_", "--placeholder-image="}, nil,
			[]string{"--fallback-selector (SPOT_HANDLER_FALLBACK_SELECTOR)", "--placeholder-namespace (", "--placeholder-image ("}},
		"nodes":                {[]string{"imds", "--node-name=a", "--node-selector=a b"}, nil, []string{"--node-selector (SPOT_HANDLER_NODE_SELECTOR)"}},
		"placeholders nowhere": {[]string{"imds", "--node-name=a", "--provisioner=placeholder"}, nil, []string{"--fallback-selector ("}},
		"nothing to watch": {[]string{"imds", "--node-name=a", "--watch-spot=false", "--watch-lifecycle=false", "--watch-rebalance=false"},
			map[string]string{"SPOT_HANDLER_WATCH_SCHEDULED_EVENTS": "false"},
			[]string{"--watch-spot (SPOT_HANDLER_WATCH_SPOT)", "--watch-lifecycle (", "--watch-rebalance (", "--watch-scheduled-events (", "want at least one"}},
		"queue url":   {[]string{"queue", "--queue-url=my-queue"}, nil, []string{"--queue-url ("}},
		"managed tag": {[]string{"queue", "--queue-url=http://a/q", "--managed-tag==blue"}, nil, []string{"--managed-tag (SPOT_HANDLER_MANAGED_TAG)"}},
		"rebalances":  {[]string{"imds", "--node-name=a", "--max-concurrent-rebalances=0%", "--rebalance-ttl=-1s"}, nil, []string{"--max-concurrent-rebalances (SPOT_HANDLER_MAX_CONCURRENT_REBALANCES)", "--rebalance-ttl ("}},
		"hooks": {[]string{"queue", "--queue-url=https://sqs/1/q", "--hook-timeout=29s", "--heartbeat-interval=5s", "--heartbeat-until=49h"}, nil,
			[]string{"--hook-timeout (SPOT_HANDLER_HOOK_TIMEOUT)", "--heartbeat-interval (", "--heartbeat-until ("}},
		"heartbeats that stop before the first": {[]string{"queue", "--queue-url=https://sqs/1/q", "--heartbeat-interval=2m", "--heartbeat-until=1m"}, nil,
			[]string{"--heartbeat-until ("}},
		"heartbeats in imds mode": {[]string{"imds", "--node-name=a", "--heartbeat-interval=1m"}, nil, []string{"unknown flag: --heartbeat-interval"}},
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
		"all": {[]string{"--webhook-url-file=" + url, "--webhook-headers-file=" + plain, "--webhook-template=hello {{ .Text }}", "--webhook-proxy=http://user:topsecret@proxy:3128"}, nil},
		"template file": {[]string{"--webhook-url=https://hooks.example.com/topsecret",
			"--webhook-template-file=" + file("template", `{"a": {{ .Text | toJson }}}`)}, nil},
		"no URL":       {[]string{"--webhook-url=topsecret"}, []string{"--webhook-url (SPOT_HANDLER_WEBHOOK_URL): want an http or https URL"}},
		"no file":      {[]string{"--webhook-url-file=" + dir + "/none"}, []string{"--webhook-url-file (", dir + "/none: no such file"}},
		"two URLs":     {[]string{"--webhook-url=https://a/topsecret", "--webhook-url-file=" + url}, []string{"--webhook-url-file (", "not both"}},
		"without URL":  {[]string{"--webhook-template={{ .Text | toJson }}", "--webhook-proxy=http://p"}, []string{"--webhook-template (", "--webhook-proxy (", "of no use"}},
		"many at once": {[]string{"--webhook-url=https://a", "--webhook-proxy=ftp://topsecret", "--webhook-headers-file=" + file("bad", "topsecret"), "--webhook-template={{ .Txt }}"}, []string{"--webhook-proxy (", "--webhook-headers-file (", "line 1", "--webhook-template (SPOT_HANDLER_WEBHOOK_TEMPLATE): ", "Txt"}},
		"no JSON":      {[]string{"--webhook-url=https://a", "--webhook-template-file=" + file("text", "hello {{ .Text }}")}, []string{"--webhook-template-file (", "toJson"}},
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
				t.Errorf("a secret is told:\n%s", &out)
			}
		})
	}
}
