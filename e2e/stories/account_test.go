package stories

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// namespace is where the chart is installed.
const namespace = "spot-handler"

// The daemons of all stories run under service accounts of the chart, with the rights that
// it gives them and with its admission policies in force: of both Deployments, of the
// DaemonSet, and of a DaemonSet that only says what would be done. The Deployment of imds mode
// and the last one are of releases of their own. A daemon that drains its own node, for which
// the chart has nothing, borrows the rights of the Deployment of imds mode.
const (
	queueAccount  = "spot-handler-queue"
	drainAccount  = "alone-spot-handler-drain"
	markAccount   = "spot-handler-imds"
	dryRunAccount = "dry-spot-handler-imds"
)

// release is one of the chart, and the accounts of it that daemons run under.
type release struct {
	name, mode string
	accounts   []string
}

var (
	inBothModes = release{"spot-handler", "both", []string{queueAccount, markAccount}}
	inIMDSMode  = release{"alone", "imds", []string{drainAccount}}
	inDryRun    = release{"dry", "imds", []string{dryRunAccount}}
)

// accounts makes the service accounts of a release, their rights and the policies, and what
// placeholder pods need, but for the objects that contain what leave names. A story has those
// that its daemons use: the API server and kube-controller-manager take a second of processor
// time to compile the policies of one release.
func (s *story) accounts(r release, leave ...string) {
	s.Helper()
	s.applied.Lock()
	defer s.applied.Unlock()
	s.apply(r, leave...)
}

func (s *story) apply(r release, leave ...string) {
	s.Helper()
	if s.releases == nil {
		s.releases = map[string]bool{}
	}
	s.releases[r.name] = true
	s.must(s.cluster.CreateNamespace(s.ctx, namespace))
	docs := slices.DeleteFunc(strings.Split(s.accountManifests(r), "\n---\n"), func(doc string) bool {
		return slices.ContainsFunc(leave, func(what string) bool { return strings.Contains(doc+"\n", what) })
	})
	objects, err := chart.Objects(strings.Join(docs, "\n---\n"))
	s.must(err)
	for _, o := range objects {
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		_, err := s.cluster.Dynamic.Resource(resource).Namespace(o.GetNamespace()).Create(s.ctx, &o, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) { // an earlier call left out others
			s.Fatalf("create %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	for _, account := range r.accounts {
		s.rightsInForce(account)
	}
}

var (
	manifestsMu sync.Mutex
	manifests   = map[string]string{} // by the release's name: what all stories render alike
)

// accountManifests renders what accounts creates of one release.
func (s *story) accountManifests(r release) string {
	s.Helper()
	manifestsMu.Lock()
	defer manifestsMu.Unlock()
	if manifests[r.name] == "" {
		show := []string{"--show-only=templates/serviceaccounts.yaml", "--show-only=templates/rbac.yaml", "--show-only=templates/admission.yaml", "--show-only=templates/patches.yaml", "--show-only=templates/creations.yaml", "--show-only=templates/flowcontrol.yaml"}
		if r.mode == "both" {
			show = append(show, "--show-only=templates/placeholder.yaml")
		}
		changes := map[string]any{"flags.fallbackSelector": onDemand, "flags.dryRun": r.name == inDryRun.name, "flags.workloadNotices": true}
		text, err := s.helm().Template(s.ctx, chart.Release{Name: r.name, Namespace: namespace, Values: chart.Values(r.mode, changes)}, show...)
		s.must(err)
		manifests[r.name] = text
	}
	return manifests[r.name]
}

// rightsInForce waits until the API server grants the account what its roles say, of which a
// daemon asks as soon as it starts. One right stands for all that are bound as it is.
func (s *story) rightsInForce(account string) {
	s.Helper()
	of := map[string]right{} // by namespace
	for r := range s.granted(account) {
		if r.resource != "configmaps" { // for the one of a name
			of[r.namespace] = r
		}
	}
	for namespaceOf, r := range of {
		resource, subresource, _ := strings.Cut(r.resource, "/")
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + namespace + ":" + account,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespaceOf, Verb: r.verb, Group: r.group, Resource: resource, Subresource: subresource,
			},
		}}
		s.eventually(account+" may "+r.String(), func() bool {
			answer, err := s.cluster.Client.AuthorizationV1().SubjectAccessReviews().Create(s.ctx, review, metav1.CreateOptions{})
			s.must(err)
			return answer.Status.Allowed
		})
	}
}

// helm is the present version of Helm.
func (s *story) helm() chart.Helm {
	s.Helper()
	found, err := chart.Helms(s.ctx, s.Output())
	s.must(err)
	return found[len(found)-1]
}

// identify gives a daemon with these arguments its account, and the arguments that its
// chart would add.
func (s *story) identify(args []string) (kubeconfig string, more []string) {
	s.Helper()
	flag := func(name string) string {
		for _, arg := range args {
			if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
				return value
			}
		}
		return ""
	}
	if args[0] != "imds" && flag("pod-namespace") == "" {
		more = []string{"--pod-namespace=" + namespace}
	}
	switch {
	case args[0] == "queue":
		s.need(inBothModes)
		return s.kubeconfig(queueAccount, ""), more
	case slices.Contains(args, "--dry-run"):
		s.need(inDryRun)
		return s.kubeconfig(dryRunAccount, s.podOf(dryRunAccount, flag("node-name"))), nil
	case flag("drain") == "false":
		s.need(inBothModes)
		return s.kubeconfig(markAccount, s.podOf(markAccount, flag("node-name"))), nil
	}
	s.need(inIMDSMode)
	return s.kubeconfig(drainAccount, ""), more
}

// need makes the accounts of a release, unless they are there, or the story installs the chart.
func (s *story) need(r release) {
	s.Helper()
	s.applied.Lock()
	defer s.applied.Unlock()
	if !s.installs && !s.releases[r.name] {
		s.apply(r)
	}
}

// podOf puts a pod of the account on the node, as the DaemonSet would, and returns its
// name: tokens are bound to pods.
func (s *story) podOf(account, node string) string {
	s.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: account + "-" + controlplane.InstanceID(node), Namespace: namespace},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account,
			Containers: []corev1.Container{{Name: "spot-handler", Image: "none"}},
			// As a pod of the DaemonSet it would stay; this one says so by name.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}, {Key: interruption.TaintKey, Operator: corev1.TolerationOpExists}},
		},
	}
	_, err := s.cluster.Client.CoreV1().Pods(namespace).Create(s.ctx, pod, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatalf("put a pod of %s on node %s: %v", account, node, err)
	}
	return pod.Name
}

// kubeconfig writes one that holds a token of the service account and nothing else, bound
// to the pod where one is given.
func (s *story) kubeconfig(account, pod string) string {
	s.Helper()
	path := filepath.Join(s.TempDir(), account+".kubeconfig")
	s.must(s.cluster.WriteKubeconfig(s.ctx, path, namespace, account, pod))
	return path
}

// kubectl runs the cluster's own kubectl and returns what it says.
func (s *story) kubectl(stdin string, args ...string) string {
	s.Helper()
	cmd := exec.CommandContext(s.ctx, s.cluster.Kubectl, append([]string{"--kubeconfig=" + s.cluster.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if strings.Contains(string(out), "Warning") {
		s.Errorf("kubectl %s:\n%s", strings.Join(args, " "), out)
	}
	return string(out)
}

// nothingForbidden fails the story if the API server has refused a daemon anything for
// want of a right or because of a policy.
func (s *story) nothingForbidden() {
	s.Helper()
	if _, err := os.Stat(s.cluster.AuditLog); err != nil {
		return // a story without an audit log
	}
	var reported []string
	for _, r := range s.requests(request.forbidden) {
		if s.goesBack && r.ObjectRef.Resource == "configmaps" {
			continue // the older chart grants nothing of it, and a leader that leaves might have a loss to write
		}
		if what := r.User.Username + " is not allowed to " + r.right().String(); !slices.Contains(reported, what) {
			reported = append(reported, what)
			s.Errorf("%s: %s", what, r.RequestURI)
		}
	}
}

// forbidden: for want of a right, or by an admission policy. An eviction can be refused
// with 403 for other reasons.
func (r request) forbidden() bool {
	_, policy := r.Annotations["validation.policy.admission.k8s.io/validation_failure"]
	return r.Annotations["authorization.k8s.io/decision"] == "forbid" || policy
}
