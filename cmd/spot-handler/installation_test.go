package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"spot-handler/drain/plan"
	"spot-handler/handler/webhook"
)

// Of the pods that drain, what a forecast needs is read as they read it themselves, and nothing else.
func TestRemoteConfig(t *testing.T) {
	t.Setenv("SPOT_HANDLER_MARGIN", "99s") // of this process, which nobody asks for
	vars := []corev1.EnvVar{{Name: "SPOT_HANDLER_DRAIN_STRATEGY", Value: "hold"}, {Name: "SPOT_HANDLER_MARGIN", Value: "1s"}, {Name: "SPOT_HANDLER_WEBHOOK_URL_FILE", Value: "/dev/zero"}}
	cfg, err := remoteConfig(modeQueue, []string{
		"--queue-url", "https://example.com/q", "--margin=7s", "--dry-run", "--release-node=false", "--of-another-version=x", "--managed-nodes", "team=blue",
		"--webhook-url-file=/dev/zero", "--webhook-template={{range until 2000000000}}x{{end}}", "--kubeconfig=/dev/zero",
	}, vars)
	if err != nil || cfg.policy.Margin != 7*time.Second || cfg.policy.Strategy != plan.StrategyHold || cfg.policy.Blocked != plan.Leave || !cfg.dryRun || cfg.release {
		t.Errorf("%v, %+v", err, cfg)
	}
	if cfg.webhooks.Endpoint != (webhook.Endpoint{}) || cfg.webhookTemplate != "" || cfg.kubeconfig != "" || cfg.queueURL != "" || !cfg.nodes.Matches(labels.Set{"team": "blue"}) || cfg.nodes.Empty() {
		t.Errorf("%+v", cfg)
	}
	if old, err := remoteConfig(modeQueue, []string{"--node-selector=team=blue"}, nil); err != nil || old.nodes.Matches(labels.Set{"team": "red"}) || !old.nodes.Matches(labels.Set{"team": "blue"}) {
		t.Errorf("of an older pod: %v, nodes %v", err, old.nodes)
	}
	for _, mode := range []string{modeIMDS, modeDrain, modeQueue} {
		if cfg, err := remoteConfig(mode, nil, nil); err != nil || cfg.policy.Margin != 10*time.Second {
			t.Errorf("%s by default: %v, %+v", mode, err, cfg)
		}
	}
	for want, args := range map[string][]string{
		"invalid duration":     {"--margin=soon"},
		"want 0s to 100s":      {"--margin=1h"},
		"flag needs an arg":    {"--margin"},
		"more than":            slices.Repeat([]string{"--dry-run"}, mostArgs+1),
		"4096 bytes":           {"--managed-nodes=a=" + strings.Repeat("b", mostBytes)},
		"is no NodePool name":  {"--fallback-nodepool=a=b c"},
		"want one of surge":    {"--drain-strategy=\x1b]0;owned\a"},
		"unable to parse":      {"--managed-nodes=a in (("},
		"parse label selector": {"--fallback-selector=,"},
	} {
		cfg, err := remoteConfig(modeQueue, args, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || cfg.mode != "" {
			t.Errorf("%.80q: %v, want %q", args, err, want)
		}
	}
	for _, args := range [][]string{nil, {"version"}} {
		if _, err := settingsOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: args}}}}); !errors.Is(err, errNotOurs) {
			t.Errorf("%q is taken for a mode", args)
		}
	}
}

func FuzzRemoteConfig(f *testing.F) {
	f.Add("queue", "--margin=7s\x00--queue-url\x00x", "SPOT_HANDLER_MARGIN", "1s")
	f.Add("imds", "--fallback-nodepool=a=b,c=d\x00--webhook-template={{range until 2000000000}}\x00--webhook-url-file=/dev/zero", "SPOT_HANDLER_MANAGED_NODES", "a in (")
	f.Add("drain", "--\x00-h\x00--help\x00--fallback-nodepool=a=';x'", "SPOT_HANDLER_WEBHOOK_TEMPLATE_FILE", "/dev/zero")
	f.Fuzz(func(t *testing.T, mode, args, name, value string) {
		if !slices.Contains([]string{modeIMDS, modeDrain, modeQueue}, mode) {
			return
		}
		cfg, err := remoteConfig(mode, strings.Split(args, "\x00"), []corev1.EnvVar{{Name: name, Value: value}})
		if cfg.webhooks.Endpoint != (webhook.Endpoint{}) || cfg.webhookTemplate != "" || cfg.kubeconfig != "" || cfg.logLevel != "" && cfg.logLevel != "info" {
			t.Errorf("%+v", cfg)
		}
		if err == nil && (cfg.nodes == nil || cfg.mode != mode) {
			t.Errorf("%+v without an error", cfg)
		}
		if err != nil && len(err.Error()) > 4*mostBytes {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}

// A tenant makes what they can: pods, ReplicaSets and Deployments with any labels, in a namespace of
// their own. What counts is in the namespace that an administrator has bound, and made by its owner.
func TestInstallation(t *testing.T) {
	object := func(kind, name, uid, of string) map[string]any {
		metadata := map[string]any{"namespace": "ops", "name": name, "uid": uid}
		if of != "" {
			metadata["ownerReferences"] = []any{map[string]any{"kind": "Any", "name": "owner", "uid": of, "controller": true}}
		}
		return map[string]any{"kind": kind, "metadata": metadata}
	}
	pod := func(name, of, account string, args ...string) map[string]any {
		o := object("Pod", name, name, of)
		o["spec"] = map[string]any{"serviceAccountName": account, "containers": []any{map[string]any{"args": args}}}
		return o
	}
	binding := func(namespace, account string) map[string]any {
		return map[string]any{"kind": "ClusterRoleBinding", "metadata": map[string]any{"name": namespace}, "subjects": []any{
			map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": account}, map[string]any{"kind": "Group", "name": "people"}}}
	}
	for name, tt := range map[string]struct {
		bindings  []any
		flag      string
		want, err string
	}{
		"bound":       {[]any{binding("ops", "queue")}, "", "ok deployment/d true, unbound deployment/d false, wrong deployment/d true", ""},
		"nobody":      {nil, "", "", ""},
		"named":       {nil, "ops", "ok deployment/d true, unbound deployment/d false, wrong deployment/d true", ""},
		"several":     {[]any{binding("ops", "queue"), binding("dev", "queue")}, "", "", "namespaces dev, ops: say which with --daemon-namespace"},
		"no such one": {nil, "a/b", "", `--daemon-namespace="a/b"`},
	} {
		lists := map[string][]any{
			"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings": tt.bindings,
			"/apis/apps/v1/namespaces/ops/deployments":               {object("Deployment", "d", "uid-d", "")},
			"/apis/apps/v1/namespaces/ops/daemonsets":                {},
			"/apis/apps/v1/namespaces/ops/replicasets":               {object("ReplicaSet", "d-1", "uid-1", "uid-d"), object("ReplicaSet", "d-2", "uid-2", "uid-of-another")},
			"/api/v1/namespaces/ops/pods": {
				pod("ok", "uid-1", "queue", "queue", "--margin=7s"), pod("unbound", "uid-1", "default", "queue"), pod("wrong", "uid-1", "queue", "queue", "--margin=x"),
				pod("no-owner", "", "queue", "queue"), pod("forged", "uid-d-1", "queue", "queue"), pod("of-a-forged-set", "uid-2", "queue", "queue"), pod("other", "uid-1", "queue", "version"),
			},
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			items, ok := lists[r.URL.Path]
			if selector := r.URL.Query().Get("labelSelector"); !ok || !strings.HasPrefix(selector, ourLabel) {
				t.Errorf("%s: asked for %s", name, r.URL)
			}
			w.Header().Set("Content-Type", "application/json")
			kind, version := "List", "v1"
			if strings.HasPrefix(r.URL.Path, "/api/v1") {
				kind = "PodList"
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": version, "kind": kind, "items": items})
		}))
		c, err := newCaller(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		c.daemonNamespace = tt.flag
		pods, err := c.installation(t.Context())
		var got []string
		for _, p := range pods {
			got = append(got, fmt.Sprint(p.name, " ", p.Object, " ", p.Named))
			if (p.wrong != nil) != (p.name == "wrong") {
				t.Errorf("%s: %s: %v", name, p.name, p.wrong)
			}
		}
		if text := strings.Join(got, ", "); text != tt.want || (tt.err == "") != (err == nil) || err != nil && (!strings.Contains(err.Error(), tt.err) || !errors.Is(err, errUsage)) {
			t.Errorf("%s: %q, %v, want %q, %q", name, text, err, tt.want, tt.err)
		}
		server.Close()
	}
}
