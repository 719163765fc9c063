package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestParse(t *testing.T) {
	cfg, done, err := parse([]string{"queue", "--queue-url=https://sqs.eu-west-1.amazonaws.com/1/q", "--margin=7s",
		"--fallback-nodepool=batch=batch-fallback", "--fallback-nodepool=web=web-od", "--leader-elect=false"},
		env(map[string]string{"SPOT_HANDLER_RECEIVERS": "9", "SPOT_HANDLER_MARGIN": "20s", "KUBECONFIG": "/k"}), nil)
	if err != nil || done {
		t.Fatalf("done %v, error %v", done, err)
	}
	if cfg.mode != modeQueue || cfg.margin != 7*time.Second || cfg.receivers != 9 || cfg.leaderElect || cfg.kubeconfig != "/k" {
		t.Errorf("got %+v", cfg)
	}
	if cfg.fallback["batch"] != "batch-fallback" || cfg.fallback["web"] != "web-od" {
		t.Errorf("fallback %v", cfg.fallback)
	}
	if cfg.rebalance != "replace" || cfg.strategy != "surge" || cfg.blocked != "leave" || !cfg.release || cfg.qps != 0 {
		t.Errorf("defaults: %+v", cfg)
	}
}

func TestNodeNameFromTheDownwardAPI(t *testing.T) {
	cfg, _, err := parse([]string{"imds"}, env(map[string]string{"NODE_NAME": "a", "SPOT_HANDLER_DRAIN": "false"}), nil)
	if err != nil || cfg.nodeName != "a" || cfg.drain {
		t.Errorf("%+v, %v", cfg, err)
	}
	cfg, _, err = parse([]string{"imds"}, env(map[string]string{"NODE_NAME": "a", "SPOT_HANDLER_NODE_NAME": "b"}), nil)
	if err != nil || cfg.nodeName != "b" {
		t.Errorf("our own variable goes first: %q, %v", cfg.nodeName, err)
	}
}

// All problems are named at once, each with its flag and variable.
func TestParseNamesAllProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		env  map[string]string
		want []string
	}{
		"nothing":      {nil, nil, []string{"give a mode"}},
		"no mode":      {[]string{"drain"}, nil, []string{`"drain" is no mode`}},
		"unknown flag": {[]string{"imds", "--node-name=a", "--nod"}, nil, []string{"unknown flag: --nod"}},
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
		"placeholders nowhere": {[]string{"imds", "--node-name=a", "--provisioner=placeholder"}, nil, []string{"--fallback-selector ("}},
		"hooks": {[]string{"queue", "--queue-url=https://sqs/1/q", "--hook-timeout=29s", "--heartbeat-interval=5s", "--heartbeat-until=49h"}, nil,
			[]string{"--hook-timeout (SPOT_HANDLER_HOOK_TIMEOUT)", "--heartbeat-interval (", "--heartbeat-until ("}},
		"heartbeats that stop before the first": {[]string{"queue", "--queue-url=https://sqs/1/q", "--heartbeat-interval=2m", "--heartbeat-until=1m"}, nil,
			[]string{"--heartbeat-until ("}},
		"heartbeats in imds mode": {[]string{"imds", "--node-name=a", "--heartbeat-interval=1m"}, nil, []string{"unknown flag: --heartbeat-interval"}},
		"queue url":               {[]string{"queue", "--queue-url=my-queue"}, nil, []string{"--queue-url ("}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := parse(tt.args, env(tt.env), nil)
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

func TestExitCodes(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		code int
		out  string
	}{
		"help":       {[]string{"--help"}, 0, "Usage:"},
		"mode help":  {[]string{"queue", "--help"}, 0, "--queue-url"},
		"version":    {[]string{"--version"}, 0, "spot-handler dev"},
		"wrong use":  {[]string{"imds", "--bogus"}, 2, "unknown flag: --bogus"},
		"no cluster": {[]string{"imds", "--node-name=a", "--kubeconfig=/does/not/exist"}, 2, "--kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if code := run(t.Context(), tt.args, env(nil), &out, &out); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(out.String(), tt.out) {
				t.Errorf("output does not contain %q:\n%s", tt.out, out.String())
			}
		})
	}
}

func TestHelpFitsTheTerminal(t *testing.T) {
	for _, mode := range []string{modeIMDS, modeQueue} {
		var cfg config
		cfg.mode = mode
		for line := range strings.Lines(help(mode, cfg.define())) {
			if len(line) > helpWidth+1 {
				t.Errorf("%s: %d columns: %s", mode, len(line), line)
			}
		}
	}
}

func TestRegionOf(t *testing.T) {
	for url, want := range map[string]string{
		"https://sqs.eu-west-1.amazonaws.com/123456789012/q":  "eu-west-1",
		"https://sqs.cn-north-1.amazonaws.com.cn/123456789/q": "cn-north-1",
		"http://127.0.0.1:9324/000000000000/q":                "",
		"https://queue.example.com/q":                         "",
		"::":                                                  "",
	} {
		if got := regionOf(url); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}
