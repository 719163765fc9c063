package stories

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// The log has about six lines on an interruption. All of them say which interruption it is, and have
// no field that is not in the manual's table.
func TestAnInterruptionIsLoggedInAboutSixLines(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.pools(2 * time.Second)
	node := s.node("batch")
	s.service("web", 8, func(d *controlplane.DeploymentSpec) { d.Spread, d.BudgetMinAvailable = corev1.LabelHostname, budget(4) })
	imds := s.imds(node)
	d := s.runIMDS(imds, node)
	imds.Interrupt("terminate", time.Now().Add(2*time.Minute))
	s.waitLine(d, "node released")

	fields := []string{"level", "time", "component", "node", "instance_id", "kind", "source", "deadline", "remaining_seconds", "message"}
	var logged []string
	for _, line := range d.Lines("") {
		if line["kind"] == nil {
			continue // about the process
		}
		logged = append(logged, line.Message())
		for _, field := range fields {
			if line[field] == nil {
				t.Errorf("line %q has no %s: %v", line.Message(), field, line)
			}
		}
		if line["node"] != node.Name || line["instance_id"] != controlplane.InstanceID(node.Name) ||
			line["kind"] != string(interruption.SpotInterruption) || line["source"] != string(interruption.IMDS) || line["level"] != "info" {
			t.Errorf("line about something else: %v", line)
		}
	}
	if len(logged) < 5 || len(logged) > 8 {
		t.Errorf("%d lines, want about six: %q", len(logged), logged)
	}
	rest := logged
	for _, message := range []string{"interruption accepted, node cordoned", "replacement requested", "draining", "drained", "node released"} {
		i := slices.Index(rest, message)
		if i < 0 {
			t.Errorf("line %q is missing, or out of order, in %q", message, logged)
			continue
		}
		rest = rest[i+1:]
	}
}
