package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"spot-handler/cmd/spot-handler/internal/plan"
)

func TestPlanCommand(t *testing.T) {
	for name, tt := range map[string]struct {
		forbidden string
		args      []string
		code      int
		out, err  string
	}{
		"a node":              {"", []string{"plan", "node-1", "--stop-time=3s"}, 0, "1 node lost: 1 pod, 1 grace period cut short", ""},
		"a list is forbidden": {"volumeattachments", []string{"plan", "node-1", "--stop-time=3s"}, 1, "1 node lost: 1 pod, 1 grace period cut short", "list volumeattachments: not allowed"},
		"what was assumed":    {"", []string{"plan", "node-1", "--stop-time=3s"}, 0, "stop 3 s (--stop-time)", ""},
		"no offerings":        {"configmaps", []string{"plan", "node-1", "--daemon-namespace=ops"}, 1, "1 node lost: 1 pod", "read lost offerings: not allowed"},
		"bad offerings":       {"", []string{"plan", "node-1", "--daemon-namespace=hostile"}, 1, "1 node lost: 1 pod", `read lost offerings: "\x1b[2J" is no value of a label`},
		"no nodes":            {"/nodes", []string{"plan", "node-1"}, 1, "", "list nodes: not allowed"},
		"no such node":        {"", []string{"plan", "node-2"}, 1, "", "no such node: node-2"},
		"none of a kind":      {"", []string{"plan", "--zone=b"}, 1, "", "no node is selected"},
		"nothing asked for":   {"", []string{"plan"}, 2, "", "no nodes: name some"},
		"no such kind":        {"", []string{"plan", "node-1", "--kind=flood"}, 2, "", "--kind: \"flood\": want one of"},
		"no such selector":    {"", []string{"plan", "-l", "in ("}, 2, "", "--selector"},
		"no such dry run":     {"", []string{"plan", "node-1", "--dry-run=client"}, 2, "", "--dry-run: \"client\": want one of none, server"},
		"a time in the past":  {"", []string{"plan", "node-1", "--deadline=-1s"}, 2, "", "--deadline: -1s: want 0s or more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", readOnly(t, tt.forbidden))
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), tt.args, func(string) string { return "" }, &stdout, &stderr)
			if code != tt.code || !strings.Contains(stdout.String(), tt.out) || !strings.Contains(stderr.String(), tt.err) {
				t.Errorf("exit %d, want %d\n%s\n%s", code, tt.code, &stdout, &stderr)
			}
		})
	}
}

// Each assumption can be given, and the forecast says which were.
func TestAssumptionsThatAreGiven(t *testing.T) {
	t.Setenv("KUBECONFIG", readOnly(t, ""))
	var stdout, stderr bytes.Buffer
	args := []string{"plan", "node-1", "-o", "json", "--boot-time=11s", "--ready-time=12s", "--stop-time=13s", "--detach-time=14s"}
	run(t.Context(), args, func(string) string { return "" }, &stdout, &stderr)
	var f plan.Forecast
	if err := json.Unmarshal(stdout.Bytes(), &f); err != nil {
		t.Fatalf("%v\n%s%s", err, &stdout, &stderr)
	}
	a := f.Assumptions
	for i, got := range []plan.Assumption{a.Boot, a.Ready, a.Stop, a.Detach} {
		name := []string{"--boot-time", "--ready-time", "--stop-time", "--detach-time"}[i]
		if want := time.Duration(11+i) * time.Second; got.Duration() != want || got.From != name {
			t.Errorf("%s: %s from %q, want %s", name, got.Duration(), got.From, want)
		}
	}
}

func TestPlanForPrograms(t *testing.T) {
	t.Setenv("KUBECONFIG", readOnly(t, "volumeattachments"))
	var stdout, stderr bytes.Buffer
	run(t.Context(), []string{"plan", "node-1", "-o", "json"}, func(string) string { return "" }, &stdout, &stderr)
	var f plan.Forecast
	if err := json.Unmarshal(stdout.Bytes(), &f); err != nil {
		t.Fatalf("%v\n%s", err, &stdout)
	}
	if len(f.Pods) != 1 || f.Pods[0].Outcome != plan.Truncated || f.Pods[0].Gone == nil || f.Assumptions.Stop.From != "assumed" || len(f.Unread) == 0 || f.DryRun != nil {
		t.Errorf("%+v", f)
	}
}
