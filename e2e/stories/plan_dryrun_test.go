package stories

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// With --dry-run=server `plan` asks the API server about evictions, surges and replacements, as the
// person who runs it: a policy, a budget and a quota each refuse, in the API server's words, and the
// cluster is as it was. A person without permissions gets an error that says so.
func TestPlanAsksTheAPIServer(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(time.Second)
	s.accounts(inBothModes)
	s.accounts(inDryRun)
	batch := s.node("batch")
	bare, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{
		Count: 1, Labels: map[string]string{"made": "by-hand"}, Taints: []corev1.Taint{{Key: "made", Effect: corev1.TaintEffectNoSchedule}},
	})
	s.must(err)
	s.service("web", 2, quick)
	s.service("guarded", 1, quick)
	s.service("kept", 1, func(d *controlplane.DeploymentSpec) { quick(d); d.BudgetMinAvailable = budget(1) })
	_, err = s.cluster.RunReplicaSet(s.ctx, controlplane.DeploymentSpec{
		Name: "other", Replicas: 1, NodeSelector: map[string]string{"made": "by-hand"},
		Tolerations: []corev1.Toleration{{Key: "made", Operator: corev1.TolerationOpExists}},
	})
	s.must(err)
	_, err = s.cluster.WaitReady(s.ctx, "default", "other", 1)
	s.must(err)
	s.must(s.cluster.Announce(s.ctx, namespace, queueAccount, "drain", "--fallback-selector="+onDemand))
	s.refuseSome(batch.Name, bare[0].Name)

	before, from := s.state(), time.Now()
	report := s.plan(batch.Name, bare[0].Name)
	if after := s.state(); !slices.Equal(before, after) {
		t.Errorf("the cluster was\n%s\nand is\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	if want := []string{"yourself"}; !slices.Equal(report.DryRun.As, want) {
		t.Errorf("asked as %q, want %q", report.DryRun.As, want)
	}
	for _, want := range []struct{ verb, why, object string }{
		{"evict", "ValidatingAdmissionPolicy 'hands-off'", "pods/default/guarded"},
		{"evict", "The disruption budget kept needs 1 healthy pods and has 1 currently", "pods/default/kept"},
		{"request", "exceeded quota: no-pods", "pods/placeholder"},
	} {
		if !slices.ContainsFunc(report.DryRun.Refused, func(r refusal) bool {
			return r.Verb == want.verb && strings.Contains(r.Why, want.why) && len(r.Objects) == 1 && strings.HasPrefix(r.Objects[0], want.object)
		}) {
			t.Errorf("want %+v refused, got %+v", want, report.DryRun.Refused)
		}
	}
	if len(report.DryRun.Refused) != 3 || report.DryRun.Tried < 2+2+4 { // requests, surges, evictions
		t.Errorf("tried %d, refused %+v", report.DryRun.Tried, report.DryRun.Refused)
	}
	for _, r := range s.allRequests(func(r request) bool {
		return strings.HasPrefix(r.UserAgent, "spot-handler-command/") && !slices.Contains([]string{"get", "list"}, r.Verb)
	}) {
		if !strings.Contains(r.RequestURI, "dryRun=All") {
			t.Errorf("after %s: %s %s, want a dry run", from, r.Verb, r.RequestURI)
		}
	}

	report = s.plan(batch.Name, "--kubeconfig="+s.kubeconfig(dryRunAccount, ""))
	if text := fmt.Sprint(report.DryRun.Refused); !strings.Contains(text, `cannot create resource "pods/eviction"`) || strings.Contains(text, queueAccount) {
		t.Errorf("refused %s", text)
	}
}

// refuseSome has a policy refuse an eviction, and a quota pods.
func (s *story) refuseSome(nodes ...string) {
	s.Helper()
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "hands-off"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"pods/eviction"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "!request.name.startsWith('guarded')", Message: "guarded pods stay"}},
		},
	}
	admission := s.cluster.Client.AdmissionregistrationV1()
	_, err := admission.ValidatingAdmissionPolicies().Create(s.ctx, policy, metav1.CreateOptions{})
	s.must(err)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(s.ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "hands-off"},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "hands-off", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.cluster.Client.CoreV1().ResourceQuotas(holdNamespace).Create(s.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "no-pods"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}, metav1.CreateOptions{})
	s.must(err)
	var report planReport
	s.within("policy and quota in force", 2*time.Minute, func() bool {
		report = s.plan(nodes...)
		text := fmt.Sprint(report.DryRun.Refused)
		return strings.Contains(text, "hands-off") && strings.Contains(text, "exceeded quota")
	}, func() string { return fmt.Sprintf("%+v", report) })
}

// refusal is an answer of the API server.
type refusal struct {
	Verb, Why string
	Objects   []string
}

// planReport is what programs read of `plan --dry-run=server -o json`.
type planReport struct {
	Unread []string
	Nodes  []struct {
		Replacement struct {
			State, Pool, Why string
			Requirements     []string
			Others           []struct{ Name, Why string }
		}
	}
	DryRun struct {
		As      []string
		Tried   int
		Refused []refusal
	}
}

// plan asks as an administrator does, unless another kubeconfig is given.
func (s *story) plan(args ...string) (report planReport) {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	args = append([]string{"plan", "--dry-run=server", "-o=json", "--kubeconfig=" + s.cluster.Kubeconfig}, args...)
	out, _ := exec.CommandContext(s.ctx, program, args...).Output()
	if err := json.Unmarshal(out, &report); err != nil {
		s.Fatalf("%q: %v\n%s", args, err, out)
	}
	return report
}

// state is the version of every object that an interruption changes.
func (s *story) state() (versions []string) {
	s.Helper()
	for _, resource := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "podtemplates"},
		{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}, {Group: "apps", Version: "v1", Resource: "replicasets"},
		controlplane.NodeClaims, controlplane.NodePools,
	} {
		list, err := s.cluster.Dynamic.Resource(resource).List(s.ctx, metav1.ListOptions{})
		s.must(err)
		for _, o := range list.Items {
			version := o.GetResourceVersion()
			if resource.Resource == "nodes" { // its kubelet goes on reporting
				spec, err := json.Marshal([]any{o.Object["spec"], o.GetLabels(), o.GetAnnotations()})
				s.must(err)
				version = string(spec)
			}
			versions = append(versions, resource.Resource+"/"+o.GetName()+" "+string(o.GetUID())+" "+version)
		}
	}
	return versions
}
