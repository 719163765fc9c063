package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A pod whose program demands a permission at its start that the chart does not grant crashes for
// ever. For all values that decide on either, what the program demands is granted to its account.
func TestWhatIsDemandedIsGranted(t *testing.T) {
	releases := permissionReleases(t)
	program := build(t)
	g := errgroup.Group{}
	g.SetLimit(4)
	for _, r := range releases {
		for _, component := range r.components {
			g.Go(func() error {
				pod := workload(t, r.objects, component)
				rules := rulesOf(t, r.objects, pod.Spec.ServiceAccountName)
				demands := demandsOf(t, program, containerArgs(t, pod))
				if !slices.ContainsFunc(demands, func(d authorizationv1.ResourceAttributes) bool { return d.Resource == "nodes" }) {
					t.Errorf("%s: %s demands %v, want nodes to be among it", r.name, component, demands)
				}
				for _, d := range demands {
					if !slices.ContainsFunc(rules, func(rule boundRule) bool { return rule.grants(d) }) {
						t.Errorf("%s: %s has no permission to %s %s %s %s in namespace %q, and exits", r.name, component, d.Verb, d.Group, d.Resource, d.Subresource, d.Namespace)
					}
				}
				return nil
			})
		}
	}
	_ = g.Wait()
}

// permissionRelease is the chart rendered with some values.
type permissionRelease struct {
	name       string
	components []string
	objects    []unstructured.Unstructured
}

// permissionReleases combine all values that decide on permissions with each other, and those that should
// not with each of these in turn. One umbrella chart renders them: Helm takes longer to start than to
// render.
func permissionReleases(t *testing.T) []permissionRelease {
	t.Helper()
	var releases []permissionRelease
	values := map[string]any{}
	policies := []string{"ignore", "cordon", "replace", "fallback"}
	add := func(mode string, dryRun bool, strategy, provisioner, selector string) {
		r := permissionRelease{components: []string{drainers[mode]}}
		if mode != "queue" {
			r.components = append(r.components, "imds")
		}
		policy := policies[len(releases)%len(policies)]
		r.name = fmt.Sprintf("mode=%s dryRun=%v drainStrategy=%s provisioner=%s fallbackSelector=%s rebalance=%s", mode, dryRun, strategy, provisioner, selector, policy)
		alias := fmt.Sprintf("r%d", len(releases))
		values[alias] = Values(mode, map[string]any{
			"fullnameOverride":       alias,
			"flags.dryRun":           dryRun,
			"flags.drainStrategy":    strategy,
			"flags.provisioner":      provisioner,
			"flags.fallbackSelector": selector,
			"flags.rebalance":        policy,
		})
		releases = append(releases, r)
	}
	for _, mode := range Modes {
		for _, dryRun := range []bool{false, true} {
			for _, strategy := range []string{"surge", "hold", "at-once"} {
				for _, provisioner := range []string{"auto", "karpenter", "placeholder", "none"} {
					if provisioner != "placeholder" { // it is refused
						add(mode, dryRun, strategy, provisioner, "")
					}
					add(mode, dryRun, strategy, provisioner, "node-lifecycle=on-demand")
				}
			}
		}
	}
	text := umbrella(t, values)
	docs := make(map[string][]string, len(releases))
	source := regexp.MustCompile(`(?m)^# Source: umbrella/charts/(r[0-9]+)/`)
	for doc := range strings.SplitSeq("\n"+text, "\n---") {
		if from := source.FindStringSubmatch(doc); from != nil {
			docs[from[1]] = append(docs[from[1]], doc)
		}
	}
	for i := range releases {
		objects, err := Objects(strings.Join(docs[fmt.Sprintf("r%d", i)], "\n---\n"))
		if err != nil {
			t.Fatal(err)
		}
		releases[i].objects = objects
	}
	return releases
}

// umbrella renders what permissions are decided by, once with the values of each alias.
func umbrella(t *testing.T, values map[string]any) string {
	t.Helper()
	chart, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "charts", "spot-handler"), os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	meta := map[string]any{"apiVersion": "v2", "name": "umbrella", "version": "1.0.0"}
	var parts []any
	for alias := range values {
		parts = append(parts, map[string]any{"name": "spot-handler", "version": "*", "alias": alias})
	}
	meta["dependencies"] = parts
	for name, content := range map[string]any{"Chart.yaml": meta, "values.yaml": values} {
		text, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := helms(t)[1].Template(t.Context(), Release{Chart: dir},
		"--show-only=charts/*/templates/rbac.yaml", "--show-only=charts/*/templates/daemonset.yaml", "--show-only=charts/*/templates/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// boundRule is a rule of a role that is bound to an account, in a namespace or, if that is empty, in
// all.
type boundRule struct {
	rbacv1.PolicyRule
	namespace string
}

func (r boundRule) grants(d authorizationv1.ResourceAttributes) bool {
	resource := d.Resource
	if d.Subresource != "" {
		resource += "/" + d.Subresource
	}
	return slices.Contains(r.Verbs, d.Verb) && slices.Contains(r.APIGroups, d.Group) && slices.Contains(r.Resources, resource) &&
		len(r.ResourceNames) == 0 && (r.namespace == "" || r.namespace == d.Namespace)
}

// rulesOf are those of the roles that are bound to the account.
func rulesOf(t *testing.T, objects []unstructured.Unstructured, account string) []boundRule {
	t.Helper()
	var rules []boundRule
	for _, o := range objects {
		if !strings.HasSuffix(o.GetKind(), "RoleBinding") {
			continue
		}
		var binding rbacv1.ClusterRoleBinding
		convert(t, o, &binding)
		if !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Kind == rbacv1.ServiceAccountKind && s.Name == account }) {
			continue
		}
		for _, role := range objects {
			if role.GetKind() == binding.RoleRef.Kind && role.GetName() == binding.RoleRef.Name && role.GetNamespace() == o.GetNamespace() {
				var of rbacv1.ClusterRole
				convert(t, role, &of)
				for _, rule := range of.Rules {
					rules = append(rules, boundRule{rule, o.GetNamespace()})
				}
			}
		}
	}
	return rules
}

func convert(t *testing.T, from unstructured.Unstructured, to any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, to); err != nil {
		t.Fatal(err)
	}
}

// demandsOf runs the program with these arguments of a pod. An API server that grants nothing notes
// what it is asked for, so the program ends as soon as it has asked for all that it demands.
func demandsOf(t *testing.T, program string, args []string) []authorizationv1.ResourceAttributes {
	var mu sync.Mutex
	var demands []authorizationv1.ResourceAttributes
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body.Bytes(), nil, nil)
		review, ok := object.(*authorizationv1.SelfSubjectAccessReview)
		if err != nil || !ok {
			t.Errorf("%s %s before the permissions were found to be missing: %v", r.Method, r.URL, err)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		mu.Lock()
		demands = append(demands, *review.Spec.ResourceAttributes)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":false}}`)
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	conf := clientcmdapi.NewConfig()
	conf.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL}
	conf.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	conf.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*conf, kubeconfig); err != nil {
		t.Error(err)
		return nil
	}
	env := map[string]string{"NODE_NAME": "node", "HOST_IP": "127.0.0.1", "POD_NAME": "pod", "POD_NAMESPACE": "spot-handler", "AWS_REGION": "eu-west-1"}
	args = append(slices.Clone(args), "--kubeconfig="+kubeconfig)
	for i, arg := range args {
		for name, value := range env {
			arg = strings.ReplaceAll(arg, "$("+name+")", value)
		}
		args[i] = arg
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "missing permissions") {
		t.Errorf("spot-handler %s: %v, want it to end for missing permissions\n%s", strings.Join(args, " "), err, out)
	}
	return demands
}
