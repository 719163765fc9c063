package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
)

// A Windows node is drained like any other in queue mode, of which nothing runs on the node itself:
// its pods go to another Windows node, and not to one of Linux, which is free.
func TestWindowsNodeIsDrained(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	windows := controlplane.BareNodes{
		Count:  1,
		Prefix: "windows",
		CPUs:   8,
		Labels: map[string]string{corev1.LabelOSStable: "windows", "node-lifecycle": "spot"},
	}
	lost, err := s.cluster.CreateBareNodes(s.ctx, windows)
	s.must(err)
	s.service("iis", 2, func(d *controlplane.DeploymentSpec) {
		d.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"}
	})
	home, err := s.cluster.CreateBareNodes(s.ctx, windows)
	s.must(err)
	s.bare("linux", 1, 8)
	server, queue := s.sqs()
	d := s.runQueue(server, queue)
	interrupt(queue, lost[0].Name, 2*time.Minute)
	s.wantResults(d, map[string]result{lost[0].Name: {graceful: 2}})
	pods, err := s.cluster.WaitReady(s.ctx, "default", "iis", 2)
	s.must(err)
	for _, p := range pods {
		if p.Spec.NodeName != home[0].Name {
			t.Errorf("pod %s is on %s, want %s", p.Name, p.Spec.NodeName, home[0].Name)
		}
	}
}
