package stories

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// Each check of `audit` is seeded, and the drain goes as badly as the finding says. Then the
// commands that it prints are run as they are: it finds nothing more, and the next drain goes
// well.
func TestAuditFindsWhatGoesWrong(t *testing.T) {
	s := tell(t, controlplane.Options{})
	first := s.bare("first", 1, 8)[0]
	ready, stop := time.Second, time.Second
	behaviour := controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &stop}

	// SH101: a StatefulSet under a budget that never allows.
	_, err := s.cluster.RunStatefulSet(s.ctx, controlplane.DeploymentSpec{
		Name: "never", Replicas: 1, Behaviour: behaviour, Grace: 5 * time.Second, BudgetMinAvailable: budget(1),
	})
	s.must(err)
	_, err = s.cluster.WaitReady(s.ctx, "default", "never", 1)
	s.must(err)
	// SH102: two budgets, each of which would allow.
	s.service("twice", 1, func(d *controlplane.DeploymentSpec) { quick(d); d.BudgetMaxUnavailable = budget(1) })
	_, err = s.cluster.Client.PolicyV1().PodDisruptionBudgets("default").Create(s.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "twice-too"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: budget(1), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "twice"}}},
	}, metav1.CreateOptions{})
	s.must(err)
	// SH103: more grace than a notice leaves.
	s.service("slow", 1, func(d *controlplane.DeploymentSpec) { quick(d); d.Grace = 5 * time.Minute })
	// SH104: no successor before a pod leaves.
	s.service("dips", 4, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Change = func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		}
	})
	// And what is well.
	s.service("well", 2, func(d *controlplane.DeploymentSpec) { quick(d); d.BudgetMaxUnavailable = budget(1) })

	var fixes []string
	s.eventually("a finding of every check", func() bool { // the budgets' status comes a moment later
		report, code := s.audit("--fail-on=critical")
		fixes = nil
		var found []string
		for _, f := range report.Findings {
			found, fixes = append(found, f.ID+" "+f.Object), append(fixes, f.Fix)
		}
		slices.Sort(found)
		return code == 3 && slices.Equal(found, []string{
			"SH101 poddisruptionbudget/never", "SH102 poddisruptionbudget/twice-too", "SH103 deployment/slow", "SH104 deployment/dips",
		})
	})

	s.bare("second", 1, 16)
	d, queue := s.drill()
	fewest := s.watchReady("dips")
	interrupt(queue, first.Name, time.Minute) // half of what EC2 leaves, for the sake of time
	line := s.waitLine(d, "deadline reached")
	if line["left"] != 2.0 || line["truncated"] != 1.0 {
		t.Errorf("want SH101 and SH102 to leave a pod each, and SH103 to cost one its grace: %v", line)
	}
	if n := fewest(); n >= 4 {
		t.Errorf("%d of 4 pods of dips were ready at the fewest, want less as SH104 says", n)
	}
	s.must(s.cluster.Client.CoreV1().Nodes().Delete(s.ctx, first.Name, metav1.DeleteOptions{})) // EC2 takes it

	for _, fix := range fixes {
		cmd := exec.CommandContext(s.ctx, "sh", "-c", strings.Replace(fix, "kubectl", s.cluster.Kubectl+" --kubeconfig="+s.cluster.Kubeconfig, 1))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", fix, err, out)
		}
	}
	var doomed string
	s.eventually("all pods on the second node, as they are now wanted", func() bool {
		pods, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{})
		s.must(err)
		well := map[string]int{}
		for i := range pods.Items {
			p := &pods.Items[i]
			doomed = p.Spec.NodeName
			if !strings.HasPrefix(doomed, "second") || p.DeletionTimestamp != nil || !controlplane.Ready(p) || *p.Spec.TerminationGracePeriodSeconds > 120 {
				return false
			}
			well[p.Labels["app"]]++
		}
		return well["never"] == 1 && well["twice"] == 1 && well["slow"] == 1 && well["dips"] == 4 && well["well"] == 2
	})
	s.eventually("an audit that finds nothing", func() bool {
		report, code := s.audit("--fail-on=warning")
		return code == 0 && len(report.Findings) == 0
	})

	s.bare("third", 1, 16)
	fewest = s.watchReady("dips")
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-again", controlplane.InstanceID(doomed), time.Now()))
	s.eventually("the second drain", func() bool {
		for _, l := range d.Lines("drained") {
			if l["node"] == doomed && l.Message() == "drained" {
				line = l
			}
		}
		return line["node"] == doomed
	})
	if line["graceful"] != 9.0 || line["left"] != 0.0 || line["truncated"] != 0.0 {
		t.Errorf("want all 9 graceful after the fixes: %v", line)
	}
	if n := fewest(); n < 4 {
		t.Errorf("only %d of 4 pods of dips were ready at the fewest, though it surges now", n)
	}
}

// auditReport is what programs read of `audit -o json`.
type auditReport struct {
	Findings []struct{ ID, Object, Fix string }
	Unread   []string
}

// audit asks as an administrator does.
func (s *story) audit(args ...string) (report auditReport, code int) {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	cmd := exec.CommandContext(s.ctx, program, append([]string{"audit", "-n", corev1.NamespaceDefault, "-o", "json", "--kubeconfig=" + s.cluster.Kubeconfig}, args...)...)
	out, _ := cmd.Output() // its code is looked at
	if err := json.Unmarshal(out, &report); err != nil || len(report.Unread) > 0 {
		s.Fatalf("audit %q: %v, unread: %q\n%s", args, err, report.Unread, out)
	}
	return report, cmd.ProcessState.ExitCode()
}
