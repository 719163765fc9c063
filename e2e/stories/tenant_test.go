package stories

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// A tenant with the built-in role `edit` in one namespace makes a spot-handler of their own there,
// with every label of the chart's, owners whose names are commands, and Events about the pods of
// others; and a node's kubelet writes control sequences into its record. Nothing of it reaches
// what an operator is shown, or asked to run.
func TestCommandsTrustNoTenant(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	node := s.bare("spot", 1, 4)[0]
	s.must(s.cluster.Announce(s.ctx, namespace, "spot-handler-queue", "queue", "--queue-url=http://queue", "--margin=7s", "--webhook-url-file=/dev/zero"))
	s.service("web", 1, func(d *controlplane.DeploymentSpec) { quick(d); d.Pool = "" })
	pods, err := s.cluster.WaitReady(s.ctx, "default", "web", 1)
	s.must(err)
	tenant := s.tenant("tenant")
	hostile := []string{
		"queue", "--queue-url=http://queue", "--managed-nodes=a='; touch owned; '", "--margin=1s", "--webhook-url-file=/dev/zero",
		"--webhook-template={{range until 2000000000}}x{{end}}",
	}
	labels := map[string]string{
		"app.kubernetes.io/name": "spot-handler", "app.kubernetes.io/instance": "spot-handler", "app.kubernetes.io/component": "queue",
		"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "spot-handler",
	}
	_, err = tenant.AppsV1().Deployments("tenant").Create(s.ctx, controlplane.Daemon("default", labels, hostile...), metav1.CreateOptions{})
	s.must(err)
	decoy := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "decoy", Labels: labels, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db; touch owned\x1b]0;owned\a", UID: "1", Controller: new(true),
	}}}}
	decoy.Spec = corev1.PodSpec{
		NodeName: node.Name, TerminationGracePeriodSeconds: new(int64(600)), // a finding, and so a command
		Containers: []corev1.Container{{Name: "decoy", Image: "none", Args: hostile}},
	}
	_, err = tenant.CoreV1().Pods("tenant").Create(s.ctx, decoy, metav1.CreateOptions{})
	s.must(err)
	_, err = tenant.CoreV1().Events("tenant").Create(s.ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "forged", Annotations: map[string]string{notify.AnnotationNode: node.Name}},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "tenant", Name: pods[0].Name, UID: pods[0].UID},
		Reason:         notify.ReasonEvictionBlocked, Message: "cannot leave: forged \x1b]52;c;dG91Y2ggb3duZWQ=\a", ReportingController: "spot-handler",
	}, metav1.CreateOptions{})
	s.must(err)
	rec := interruption.NewRecord(interruption.Notice{
		Kind: interruption.SpotInterruption, Source: interruption.Queue, EventID: "e\x1b]52;c;dG91Y2ggb3duZWQ=\a\u009b2J\u202e", InstanceID: controlplane.InstanceID(node.Name),
		Noticed: time.Now(), Received: time.Now(), Deadline: time.Now().Add(2 * time.Minute),
	})
	rec.Phase, rec.Pods = interruption.Draining, &interruption.Pods{Total: 1, Refusal: "\x1b]0;owned\a\nspot-handler: run this"}
	node, err = s.cluster.Client.CoreV1().Nodes().Get(s.ctx, node.Name, metav1.GetOptions{})
	s.must(err)
	node.Annotations[interruption.Annotation] = rec.String()
	_, err = s.cluster.Client.CoreV1().Nodes().Update(s.ctx, node, metav1.UpdateOptions{})
	s.must(err)

	for _, args := range [][]string{
		{"audit"}, {"audit", "-o=json"}, {"audit", "-o=yaml"}, {"plan", node.Name}, {"plan", node.Name, "-o=json"}, {"plan", node.Name, "--dry-run=server"},
		{"status"}, {"status", "-o=json"}, {"status", "--node=" + node.Name}, {"status", "--node=" + node.Name, "-o=yaml"}, {"rehearse", node.Name, "--deadline=60s"},
	} {
		out, code := s.command(args...)
		for _, never := range []string{"touch owned'", "patch statefulset db;", "forged", "system:serviceaccount:tenant", "default-may-"} {
			if strings.Contains(out, never) {
				t.Errorf("%q prints %q:\n%s", args, never, out)
			}
		}
		if strings.ContainsFunc(out, func(r rune) bool {
			return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
		}) {
			t.Errorf("%q prints control characters: %q", args, out)
		}
		if code < 0 {
			t.Errorf("%q is killed", args)
		}
		story := args[0] == "plan" || len(args) > 1 && strings.HasPrefix(args[1], "--node=")
		if story && !strings.Contains(out, "the settings of pod "+namespace+"/spot-handler-") {
			t.Errorf("%q does not follow the installation:\n%s", args, out)
		}
	}

	// A second installation, which an administrator has made.
	s.must(s.cluster.Announce(s.ctx, "other", "spot-handler-queue", "queue", "--queue-url=http://queue", "--margin=9s"))
	if out, code := s.command("plan", node.Name); code != 2 || !strings.Contains(out, "namespaces other, "+namespace+": say which with --daemon-namespace") {
		t.Errorf("of two installations: exit code %d:\n%s", code, out)
	}
	if out, _ := s.command("plan", node.Name, "--daemon-namespace=other"); !strings.Contains(out, "the settings of pod other/") {
		t.Errorf("does not say which:\n%s", out)
	}
}

// tenant is a client with the built-in role `edit` in a namespace of its own.
func (s *story) tenant(name string) kubernetes.Interface {
	s.Helper()
	s.must(s.cluster.CreateNamespace(s.ctx, name))
	_, err := s.cluster.Client.CoreV1().ServiceAccounts(name).Create(s.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "person"}}, metav1.CreateOptions{})
	s.must(err)
	_, err = s.cluster.Client.RbacV1().RoleBindings(name).Create(s.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "person"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: name, Name: "person"}},
	}, metav1.CreateOptions{})
	s.must(err)
	config, err := s.cluster.ServiceAccountConfig(s.ctx, name, "person", "")
	s.must(err)
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	s.eventually("the role is in force", func() bool {
		_, err := client.AppsV1().Deployments(name).List(s.ctx, metav1.ListOptions{})
		return err == nil
	})
	return client
}

// command runs a command as an administrator does, and returns all that it prints and its exit code.
func (s *story) command(args ...string) (out string, code int) {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Minute)
	defer cancel()
	text, err := exec.CommandContext(ctx, program, append(args, "--kubeconfig="+s.cluster.Kubeconfig)...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.must(err)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return string(text), code
}
