package stories

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// Each check of `audit` about workloads is seeded, and the drain goes as badly as the finding
// says. Then the commands that it prints are run as they are: it finds nothing more, and the next
// drain goes well.
func TestAuditFindsWhatGoesWrong(t *testing.T) {
	s := newStory(long(t), controlplane.Options{})
	first := s.bareWith("first", controlplane.BareNodes{CPUs: 32, Labels: pair})[0]
	other := s.bareWith("other", controlplane.BareNodes{CPUs: 8, Labels: pair, Taints: keptFor("pair")})[0]
	seeds := s.plant(first.Name)

	cronJob := s.auditAccount()

	var want []string
	for _, seed := range seeds {
		want = append(want, seed.finding)
	}
	slices.Sort(want)
	var found, fixes []string
	s.within("a finding of every check", time.Minute, func() bool { // the budgets' status comes a moment later
		report, code := s.audit(cronJob, "--fail-on=critical")
		found, fixes = nil, nil
		for _, f := range report.Findings {
			found, fixes = append(found, f.ID+" "+f.Object), append(fixes, f.Fix)
		}
		slices.Sort(found)
		return code == 3 && slices.Equal(found, want)
	}, func() string { return cmp.Diff(want, found) })

	second := s.bareWith("second", controlplane.BareNodes{CPUs: 32})[0]
	d, queue := s.drill()
	sees := s.watch(first.Name)
	interrupt(queue, first.Name, time.Minute) // half of what EC2 leaves, for the sake of time
	line := s.waitLine(d, "deadline reached")
	if line["left"] != 3.0 || line["truncated"] != 1.0 {
		t.Errorf("want SH101 and SH102 to leave 3 pods, and SH103 to cost one its grace: %v", line)
	}
	for _, seed := range seeds {
		if v := sees(seed.service); seed.hurts != nil && !seed.hurts(v) {
			t.Errorf("%s did not hurt: %+v", seed.finding, v)
		}
	}

	s.reclaim(first.Name)
	s.bareWith("safe", controlplane.BareNodes{CPUs: 8, Labels: neverTaken, Taints: keptFor("safe")})
	s.patchNode(second.Name, "", `{"metadata":{"labels":{"pair":"true"}}}`)
	for _, fix := range fixes {
		cmd := exec.CommandContext(s.ctx, "sh", "-c", strings.Replace(fix, "kubectl", s.cluster.Kubectl+" --kubeconfig="+s.cluster.Kubeconfig, 1))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", fix, err, out)
		}
	}
	s.eventually("all pods as they are now wanted", s.rolledOut)
	var remains auditReport
	s.within("an audit that finds nothing", time.Minute, func() bool {
		var code int
		remains, code = s.audit(s.cluster.Kubeconfig, "--fail-on=warning")
		return code == 0 && len(remains.Findings) == 0
	}, func() string { return fmt.Sprint(remains.Findings) })

	s.bareWith("third", controlplane.BareNodes{CPUs: 32, Labels: pair})
	sees = s.watch(second.Name, other.Name)
	for _, node := range []string{second.Name, other.Name} {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-again-"+node, controlplane.InstanceID(node), time.Now()))
	}
	for _, node := range []string{second.Name, other.Name} {
		s.eventually("the drain of "+node, func() bool {
			for _, l := range d.Lines("drained") {
				if l["node"] == node {
					line = l
				}
			}
			return line["node"] == node
		})
		if line["left"] != 0.0 || line["truncated"] != 0.0 || line["forced"] != 0.0 || line["graceful"] == 0.0 {
			t.Errorf("want all graceful after the fixes: %v", line)
		}
	}
	for _, seed := range seeds {
		if v := sees(seed.service); seed.hurts != nil && seed.hurts(v) {
			t.Errorf("%s still hurts after its fix: %+v", seed.finding, v)
		}
	}
}

var (
	pair       = map[string]string{"pair": "true"}
	neverTaken = map[string]string{"karpenter.sh/capacity-type": "on-demand"}
)

// keptFor is the taint of nodes for some workloads only.
func keptFor(whom string) []corev1.Taint {
	return []corev1.Taint{{Key: "for", Value: whom, Effect: corev1.TaintEffectNoSchedule}}
}

func (s *story) bareWith(prefix string, spec controlplane.BareNodes) []*corev1.Node {
	s.Helper()
	spec.Prefix, spec.Count = prefix, 1
	nodes, err := s.cluster.CreateBareNodes(s.ctx, spec)
	s.must(err)
	return nodes
}

// reclaim is EC2 taking a node, with what is still on it.
func (s *story) reclaim(node string) {
	s.Helper()
	s.must(s.cluster.Client.CoreV1().Nodes().Delete(s.ctx, node, metav1.DeleteOptions{}))
	s.must(s.cluster.Client.CoreV1().Pods("default").DeleteCollection(s.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))},
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}))
}

// rolledOut reports whether all workloads have the pods that they ask for, and no others.
func (s *story) rolledOut() bool {
	deployments, err := s.cluster.Client.AppsV1().Deployments("default").List(s.ctx, metav1.ListOptions{})
	s.must(err)
	sets, err := s.cluster.Client.AppsV1().StatefulSets("default").List(s.ctx, metav1.ListOptions{})
	s.must(err)
	pods, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{})
	s.must(err)
	wanted := 0
	for _, d := range deployments.Items {
		n := *d.Spec.Replicas
		wanted += int(n)
		if d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas != n || d.Status.AvailableReplicas != n || d.Status.Replicas != n {
			return false
		}
	}
	for _, d := range sets.Items {
		n := *d.Spec.Replicas
		wanted += int(n)
		if d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas != n || d.Status.ReadyReplicas != n {
			return false
		}
	}
	return len(pods.Items) == wanted
}

// auditAccount makes what the chart's CronJob runs with, and returns its kubeconfig.
func (s *story) auditAccount() (kubeconfig string) {
	s.Helper()
	s.must(s.cluster.CreateNamespace(s.ctx, namespace))
	text, err := s.helm().Template(s.ctx, chart.Release{Name: "spot-handler", Namespace: namespace, Values: chart.Values("queue", map[string]any{
		"audit.enabled": true, "networkPolicy.enabled": false,
	})}, "--show-only=templates/audit.yaml")
	s.must(err)
	s.kubectl(text, "apply", "-f", "-")
	s.rightsInForce("spot-handler-audit")
	return s.kubeconfig("spot-handler-audit", "")
}

// auditReport is what programs read of `audit -o json`.
type auditReport struct {
	Findings []auditFinding
	Unread   []string
}

type auditFinding struct{ ID, Object, Fix string }

// audit asks about the workloads as the kubeconfig says.
func (s *story) audit(kubeconfig string, args ...string) (report auditReport, code int) {
	s.Helper()
	return s.auditAll(append([]string{"-n", corev1.NamespaceDefault, "--kubeconfig=" + kubeconfig}, args...)...)
}

// auditAll asks about the whole cluster.
func (s *story) auditAll(args ...string) (report auditReport, code int) {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	cmd := exec.CommandContext(s.ctx, program, append([]string{"audit", "-o", "json", "--kubeconfig=" + s.cluster.Kubeconfig}, args...)...)
	out, _ := cmd.Output() // its code is looked at
	if err := json.Unmarshal(out, &report); err != nil || len(report.Unread) > 0 {
		s.Fatalf("audit %q: %v, unread: %q\n%s", args, err, report.Unread, out)
	}
	return report, cmd.ProcessState.ExitCode()
}
