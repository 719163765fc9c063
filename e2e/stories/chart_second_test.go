package stories

import (
	"strings"
	"testing"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/handler/offerings"
)

// Two installations, each with nodes of its own, live in one cluster if their names and namespaces
// differ. Where they can't, the chart says why before anything is installed, and the first one can
// still be upgraded.
func TestSecondInstallation(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	helms, err := chart.Helms(s.ctx, t.Output())
	s.must(err)
	release := func(name, namespace string, changes map[string]any) chart.Release {
		values := map[string]any{"flags.fallbackSelector": "node-lifecycle=on-demand", "flags.managedNodes": "team=" + name}
		for path, value := range changes {
			values[path] = value
		}
		return chart.Release{Name: name, Namespace: namespace, Values: chart.Values("both", values)}
	}
	for _, h := range helms {
		first := release("blue", "blue-"+h.Name, nil)
		_, err := h.Install(s.ctx, s.cluster.Kubeconfig, first)
		s.must(err)
		for want, second := range map[string]chart.Release{
			"flags.managedNodes":       release("red", first.Namespace, nil),
			"set fullnameOverride":     release("red", "red-"+h.Name, map[string]any{"fullnameOverride": "blue-spot-handler"}),
			"in one installation only": release("red", "red-"+h.Name, nil),
			"belongs to release blue-": release("red", first.Namespace, nil),
		} {
			if _, err := h.Install(s.ctx, s.cluster.Kubeconfig, second); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want it refused with %q", h.Name, err, want)
			}
		}
		second := release("red", "red-"+h.Name, map[string]any{"flags.fallbackSelector": ""})
		_, err = h.Install(s.ctx, s.cluster.Kubeconfig, second)
		s.must(err)
		_, err = h.Upgrade(s.ctx, s.cluster.Kubeconfig, first)
		s.must(err)
		for _, r := range []chart.Release{first, second} {
			_, err = h.Run(s.ctx, s.cluster.Kubeconfig, "uninstall", r.Name, "--namespace="+r.Namespace, "--wait")
			s.must(err)
		}
	}
}

// What Argo CD compares with server-side diff, and Flux for drift, is the same after an installation
// has run: neither what the API server fills in nor what the program writes is a difference.
func TestGitOpsSeesNoDrift(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	s.must(s.cluster.CreateNamespace(s.ctx, namespace))
	helms, err := chart.Helms(s.ctx, t.Output())
	s.must(err)
	values := chart.Values("both", map[string]any{"audit.enabled": true, "flags.fallbackSelector": "node-lifecycle=on-demand"})
	text, err := helms[len(helms)-1].Template(s.ctx, chart.Release{Values: values})
	s.must(err)
	apply := []string{"--server-side", "--field-manager=argocd-controller", "-f", "-"}
	s.kubectl("apiVersion: v1\nkind: Namespace\nmetadata:\n  name: "+chart.PlaceholderNamespace+"\n", append([]string{"apply"}, apply...)...)
	s.kubectl(text, append([]string{"apply"}, apply...)...)
	// As the leader does.
	s.kubectl("", "patch", "configmap", offerings.ConfigMap, "--namespace="+namespace, "--patch="+`{"data":{"offerings.json":"ours"}}`)
	if out := s.kubectl(text, append([]string{"diff"}, apply...)...); out != "" {
		t.Errorf("after the installation there is a difference:\n%s", out)
	}
}
