package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// people run commands, one after the other, until ctx ends.
func (r *round) people(ctx context.Context, path string, nodes []*corev1.Node) {
	for ctx.Err() == nil {
		r.commands(ctx, path, nodes, 2*time.Second)
	}
}

func (r *round) commands(ctx context.Context, path string, nodes []*corev1.Node, pause time.Duration) {
	for _, args := range [][]string{
		{"status"}, {"audit"}, {"plan", nodes[0].Name}, {"status", "--node=" + nodes[1].Name}, {"plan", "-o", "json", nodes[2].Name}, {"audit", "-o", "json"},
		{"status", "-o", "json"},
	} {
		o, err := Command(ctx, r.cluster.Kubeconfig, args...)
		if ctx.Err() != nil {
			return
		}
		r.judge(o, err, path)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// observe follows all interruptions until ctx ends, and writes a report.
func (r *round) observe(ctx context.Context, path string) {
	report := filepath.Join(r.TempDir(), "report.html")
	o, err := Command(ctx, r.cluster.Kubeconfig, "observe", "--all", "--report="+report)
	r.judge(o, err, path)
	page, err := os.ReadFile(report)
	r.check(err)
	if found := (Outcome{Out: page}).controls(); found != "" {
		r.Errorf("controls: the report of observe has a control character: %s", found)
	}
	if strings.Contains(string(page), "<script>alert") {
		r.Errorf("the report of observe has a tenant's script")
	}
}

// rehearse rehearses the loss of a node with the tenant's pods only.
func (r *round) rehearse(ctx context.Context, path string) {
	o, err := Command(ctx, r.cluster.Kubeconfig, "rehearse", r.rehearsed, "--yes", "--despite-findings", "--deadline=25s", "--max-share=100")
	r.judge(o, err, path)
}

// migrate converts the settings of a program that the tenant calls aws-node-termination-handler.
func (r *round) migrate(ctx context.Context, path string, d *rand.Rand) {
	odd := dice{d, r.tenant.Canary, largest, false}
	pod := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "aws-node-termination-handler", Annotations: odd.annotations()}}
	c := corev1.Container{Name: "aws-node-termination-handler", Image: "aws-node-termination-handler"}
	for _, name := range []string{
		"QUEUE_URL", "WEBHOOK_URL", "WEBHOOK_HEADERS", "WEBHOOK_TEMPLATE", "WEBHOOK_PROXY", "POD_TERMINATION_GRACE_PERIOD", "NODE_TERMINATION_GRACE_PERIOD",
		"TAINT_NODE", "DRY_RUN", "MANAGED_TAG", "LOG_LEVEL", "PROMETHEUS_SERVER_PORT", "ENABLE_SQS_TERMINATION_DRAINING", "SPOT_HANDLER\x1b[31m", odd.odd() + "x",
	} {
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: odd.odd()})
		c.Args = append(c.Args, "--"+strings.ToLower(strings.ReplaceAll(name, "_", "-"))+"="+odd.odd())
	}
	odd.swell(&pod.ObjectMeta, &corev1.PodSpec{Containers: []corev1.Container{c}}, largest)
	pod.Spec.Containers = []corev1.Container{c}
	text, err := json.Marshal(pod)
	r.check(err)
	file := filepath.Join(r.TempDir(), "pod.json")
	r.check(os.WriteFile(file, text, 0o600))
	o, err := Command(ctx, r.cluster.Kubeconfig, "migrate", file)
	r.judge(o, err, path)
}

func (r *round) check(err error) {
	r.Helper()
	if err != nil {
		r.Errorf("%v", err)
	}
}

// judge judges how a command has ended, and what it has printed.
func (r *round) judge(o Outcome, err error, path string) {
	r.Helper()
	what := strings.Join(o.Args, " ")
	if err != nil {
		r.Errorf("run %s: %v", what, err)
		return
	}
	r.peak(o.Args[0], o.Peak)
	// A command ends with code 1 if it left out what is too large, which must be the tenant's alone;
	// migrate ends so as it cannot read most settings.
	leftOut := o.Code == 1 && strings.Count(string(o.Err), "left out: ") == strings.Count(string(o.Err), fmt.Sprintf(" of namespace %q: larger than", tenantNamespace)) && strings.Contains(string(o.Err), "left out: ")
	if o.Code != 0 && o.Code != 3 && !leftOut && o.Args[0] != "migrate" {
		r.Errorf("commands: %s ended with code %d, %d MiB: %.500q", what, o.Code, o.Peak, o.Err)
	}
	if found := o.controls(); found != "" {
		r.Errorf("controls: %s printed a control character: %s", what, found)
	}
	offered := o.commands()
	ran, err := runs(r.Context(), path, r.tenant.Canary, offered)
	r.check(err)
	if ran != "" {
		r.Errorf("quoting: %s printed what runs a tenant's command: %q", what, ran)
	}
	for _, text := range offered {
		if strings.Contains(text, "ServiceAccount") && strings.Contains(text, `"`+tenantNamespace+`"`) {
			r.Errorf("grants: %s printed a grant for a tenant's account: %q", what, text)
		}
	}
}
