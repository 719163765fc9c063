package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// readOnly is an API server with one interrupted Node and its pod. What forbidden matches, the
// caller must not read.
func readOnly(t *testing.T, forbidden string) (kubeconfig string) {
	t.Helper()
	rec := interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "event-1", InstanceID: "i-0123456789abcdef0",
		Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(2 * time.Minute),
	})
	rec.Phase = interruption.Draining
	node := corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: map[string]string{interruption.Annotation: rec.String()}},
		Spec:       corev1.NodeSpec{ProviderID: "aws:///eu-west-1a/" + rec.Instance},
	}
	answers := map[string]any{
		"/api/v1/nodes":        corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, Items: []corev1.Node{node}},
		"/api/v1/nodes/node-1": node,
		"/api/v1/pods": corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1"}, Spec: corev1.PodSpec{NodeName: "node-1", TerminationGracePeriodSeconds: new(int64(600))}},
		}},
		"/api/v1/namespaces/default/events":                    corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}},
		"/api/v1/events":                                       corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}},
		"/apis/policy/v1/namespaces/shop/poddisruptionbudgets": map[string]any{"apiVersion": "policy/v1", "kind": "PodDisruptionBudgetList"},
		"/apis/policy/v1/poddisruptionbudgets":                 map[string]any{"apiVersion": "policy/v1", "kind": "PodDisruptionBudgetList"},
	}
	answers["/api/v1/namespaces/ops/configmaps/spot-handler-offerings"] = corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{
		"offerings.json": `{"at":"` + time.Now().Format(time.RFC3339) + `","offerings":[{"type":"m5.large","zone":"eu-west-1a","pool":"spot","lost":3,"hours":211.5,"last":"` + time.Now().Format(time.RFC3339) + `"}]}`,
	}}
	answers["/api/v1/namespaces/hostile/configmaps/spot-handler-offerings"] = corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{
		"offerings.json": `{"offerings":[{"type":"\u001b[2J","zone":"a","pool":"spot","lost":3}]}`,
	}}
	for path, kind := range map[string]string{
		"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings": "ClusterRoleBinding", "/apis/apps/v1/deployments": "Deployment", "/apis/apps/v1/statefulsets": "StatefulSet", "/apis/apps/v1/replicasets": "ReplicaSet",
		"/apis/apps/v1/daemonsets": "DaemonSet", "/api/v1/persistentvolumeclaims": "PersistentVolumeClaim", "/api/v1/persistentvolumes": "PersistentVolume", "/api/v1/resourcequotas": "ResourceQuota",
		"/apis/storage.k8s.io/v1/volumeattachments": "VolumeAttachment", "/api/v1/namespaces": "Namespace",
	} {
		version := strings.TrimPrefix(strings.TrimPrefix(path[:strings.LastIndex(path, "/")], "/apis/"), "/api/")
		answers[path] = map[string]any{"apiVersion": version, "kind": kind + "List", "items": []any{}}
	}
	denied := regexp.MustCompile(forbidden)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		switch {
		case forbidden != "" && denied.MatchString(r.URL.Path):
			w.WriteHeader(http.StatusForbidden)
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: 403, Message: "not allowed"}
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			answer = metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: 404, Message: r.URL.Path + " not found"}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	err := os.WriteFile(kubeconfig, []byte(`{"current-context":"here","contexts":[{"name":"here","context":{"cluster":"a"}},{"name":"elsewhere","context":{"cluster":"b"}}],`+
		`"clusters":[{"name":"a","cluster":{"server":"`+server.URL+`"}},{"name":"b","cluster":{"server":"http://127.0.0.1:9"}}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

func TestStatusCommand(t *testing.T) {
	for name, tt := range map[string]struct {
		forbidden   string
		args        []string
		code        int
		out, notice string
	}{
		"all":             {"", nil, exitClean, "node-1  spot-interruption  Draining  ", ""},
		"no pods":         {"/pods$", nil, exitClean, "node-1  spot-interruption  Draining  ", "could not read: list pods on node \"node-1\": not allowed"},
		"no nodes":        {"/nodes", nil, exitRuntime, "", "list nodes: not allowed"},
		"no nodes, watch": {"/nodes", []string{"--watch"}, exitRuntime, "", "list nodes: not allowed"},
		"node":            {"", []string{"--node=node-1"}, exitClean, "shop/web-1", ""},
		"node, no pods":   {"/pods$", []string{"--node=node-1"}, exitClean, "event: event-1", "could not read: list pods on node \"node-1\": not allowed"},
		"node, no events": {"events$", []string{"--node=node-1"}, exitClean, "shop/web-1", "could not read: the Events of node node-1: list events: not allowed"},
		"unknown node":    {"", []string{"--node=node-2"}, exitRuntime, "", "read node node-2"},
		"json":            {"", []string{"-o", "json"}, exitClean, `"kind": "spot-interruption"`, ""},
		"json, no pods":   {"/pods$", []string{"-o", "json"}, exitClean, `"unread": [`, ""},
		"yaml":            {"", []string{"-o", "yaml", "--node", "node-1"}, exitClean, "\n  phase: Draining\n", ""},
		"offerings":       {"", []string{"--daemon-namespace=ops"}, exitClean, "\n\nLOST OFFERING  ZONE        POOL  LOST  NODE-HOURS  LAST\nm5.large       eu-west-1a  spot  3     211.5       2", ""},
		"json, offerings": {"", []string{"--daemon-namespace=ops", "-o=json"}, exitClean, "\"type\": \"m5.large\",\n      \"zone\": \"eu-west-1a\",\n      \"pool\": \"spot\",\n      \"lost\": 3,\n      \"hours\": 211.5,\n      \"last\": \"2", ""},
		"no offerings":    {"configmaps", []string{"--daemon-namespace=ops"}, exitClean, "node-1  spot-interruption  Draining  ", "could not read: read lost offerings: not allowed"},
		"bad offerings":   {"", []string{"--daemon-namespace=hostile"}, exitClean, "node-1  spot-interruption  Draining  ", `could not read: read lost offerings: "\x1b[2J" is no value of a label`},
		"no bindings":     {"clusterrolebindings", nil, exitClean, "node-1  spot-interruption  Draining  ", "could not read: find where spot-handler is installed, which --daemon-namespace says too: "},
		"no such format":  {"", []string{"-o", "xml"}, exitUsage, "", "want one of table, json, yaml"},
		"no such context": {"", []string{"--context=nowhere"}, exitUsage, "", "nowhere"},
		"no such server":  {"", []string{"--context=elsewhere"}, exitRuntime, "", "connection refused"},
		"argument":        {"", []string{"node-1"}, exitUsage, "", `unknown command "node-1"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			args := append([]string{"status", "--kubeconfig=" + readOnly(t, tt.forbidden)}, tt.args...)
			if code := run(t.Context(), args, env(nil), &out, &errs); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(out.String(), tt.out) || !strings.Contains(errs.String(), tt.notice) || (tt.notice == "") != (errs.Len() == 0) {
				t.Errorf("want %q and %q, got\n%s\nand\n%s", tt.out, tt.notice, &out, &errs)
			}
		})
	}
}

func TestStatusCompletion(t *testing.T) {
	kubeconfig := "--kubeconfig=" + readOnly(t, "")
	for name, tt := range map[string]struct {
		typed []string
		want  string
	}{
		"node":        {[]string{"status", kubeconfig, "--node=no"}, "node-1\tspot-interruption\n:4\n"},
		"not a node":  {[]string{"status", kubeconfig, "--node=x"}, ":4\n"},
		"context":     {[]string{"status", kubeconfig, "--context", ""}, "elsewhere\nhere\n"},
		"format":      {[]string{"status", "-o", ""}, "table\njson\nyaml\n"},
		"away":        {[]string{"status", kubeconfig, "--context=elsewhere", "--node", ""}, ":1\n"},
		"no argument": {[]string{"status", kubeconfig, ""}, ":4\n"},
	} {
		var out, errs bytes.Buffer
		run(t.Context(), append([]string{cobra.ShellCompRequestCmd}, tt.typed...), env(nil), &out, &errs)
		if !strings.HasPrefix(out.String(), tt.want) {
			t.Errorf("%s: %q, want %q; %s", name, &out, tt.want, &errs)
		}
	}
}

// kubectl finds the program under another name, and its help is about that.
func TestAsAPlugin(t *testing.T) {
	for program, want := range map[string]string{
		"/usr/local/bin/kubectl-spot_handler": "kubectl spot-handler status",
		"kubectl-spot_handler.exe":            "kubectl spot-handler status",
		"./spot-handler":                      "spot-handler status",
	} {
		var out bytes.Buffer
		if code := runAs(t.Context(), program, []string{"status", "--help"}, env(nil), &out, &out); code != exitClean {
			t.Errorf("%s: exit code %d", program, code)
		}
		for _, line := range []string{"\n  " + want + " [flags]\n", "\n  " + want + " --watch\n"} {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%s: no line %q:\n%s", program, line, &out)
			}
		}
	}
	bare := regexp.MustCompile(`spot-handler (status|audit|plan|rehearse)\b`)
	for _, cmd := range newRoot(env(nil), nil, nil).Commands() {
		var out bytes.Buffer
		runAs(t.Context(), "kubectl-spot_handler", []string{cmd.Name(), "--help"}, env(nil), &out, &out)
		if own := bare.FindString(strings.ReplaceAll(out.String(), "kubectl spot-handler", "the plugin")); own != "" {
			t.Errorf("the plugin's %s --help speaks of %q:\n%s", cmd.Name(), own, &out)
		}
	}
}
