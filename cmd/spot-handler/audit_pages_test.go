package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// However large the cluster, whole objects are in memory a page at a time, and none is missed.
func TestAuditReadsPages(t *testing.T) {
	kubeconfig, unpaged := pagedCluster(t, 120)
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"audit", "-o=json", "--kubeconfig=" + kubeconfig}, env(nil), &out, &errs); code != exitClean {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	var report struct{ Findings []struct{ Pods int } }
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	pods := 0
	for _, f := range report.Findings { // none of their Deployments has a probe
		pods += f.Pods
	}
	if len(report.Findings) != 12 || pods != 1200 {
		t.Errorf("%d findings about %d pods, want 12 about 1200:\n%s", len(report.Findings), pods, &out)
	}
	if len(*unpaged) > 0 {
		t.Errorf("read at once: %q", *unpaged)
	}
}

// pagedCluster is an API server with so many nodes, ten pods on each, and a Deployment for every
// hundred pods. unpaged are the lists that asked for more than a page.
func pagedCluster(t *testing.T, nodes int) (kubeconfig string, unpaged *[]string) {
	t.Helper()
	const most = 500
	ballast := map[string]string{"of-no-interest": strings.Repeat("x", 3000)}
	named := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: ballast}
	}
	pod := func(i int) any {
		web := fmt.Sprint("web-", i/100)
		p := corev1.Pod{ObjectMeta: named(fmt.Sprint(web, "-abc-", i))}
		p.Labels = map[string]string{"app": web, "pod-template-hash": "abc"}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: web + "-abc", Controller: new(true)}}
		p.Spec.NodeName, p.Spec.Containers = fmt.Sprint("node-", i/10), []corev1.Container{{Name: "app"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		return p
	}
	web := func(spec map[string]any) func(i int) any {
		return func(i int) any {
			name, spec := fmt.Sprint("web-", i), maps.Clone(spec)
			spec["selector"] = map[string]any{"matchLabels": map[string]string{"app": name}}
			return map[string]any{"metadata": named(name), "spec": spec}
		}
	}
	lists := map[string]struct {
		n             int
		item          func(int) any
		version, kind string
	}{
		"nodes": {nodes, func(i int) any {
			return corev1.Node{ObjectMeta: named(fmt.Sprint("node-", i)), Spec: corev1.NodeSpec{ProviderID: fmt.Sprintf("aws:///eu-west-1a/i-%017x", i)}}
		}, "v1", "NodeList"},
		"pods":                 {10 * nodes, pod, "v1", "PodList"},
		"deployments":          {nodes / 10, web(map[string]any{"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": 1}}}), "apps/v1", "DeploymentList"},
		"poddisruptionbudgets": {nodes / 10, web(map[string]any{"maxUnavailable": 1}), "policy/v1", "PodDisruptionBudgetList"},
	}
	unpaged = &[]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		list := lists[filepath.Base(r.URL.Path)]
		if q.Get("labelSelector") != "" { // those of spot-handler's own pods, and of ReplicaSets that adopt: none
			list.n = 0
		}
		limit, _ := strconv.Atoi(q.Get("limit"))
		from, _ := strconv.Atoi(q.Get("continue"))
		if list.n > 0 && (limit == 0 || limit > most) {
			*unpaged, limit = append(*unpaged, r.URL.String()), list.n
		}
		items, next := []any{}, ""
		for i := from; i < min(from+limit, list.n); i++ {
			items = append(items, list.item(i))
		}
		if from+limit < list.n {
			next = strconv.Itoa(from + limit)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"apiVersion": cmp.Or(list.version, "v1"), "kind": cmp.Or(list.kind, "List"), "metadata": map[string]any{"continue": next}, "items": items,
		})
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	err := os.WriteFile(kubeconfig, []byte(`{"current-context":"here","contexts":[{"name":"here","context":{"cluster":"a"}}],"clusters":[{"name":"a","cluster":{"server":"`+server.URL+`"}}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return kubeconfig, unpaged
}
