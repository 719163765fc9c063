package stories

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// Two nodes at the same time, one of whose daemons logs for programs and the other for
// people. Each tells the interruption in about six lines, all of which say what they are
// about, and nothing that is not in the manual's table.
func TestAnInterruptionIsToldInAboutSixLines(t *testing.T) {
	s := tell(t, controlplane.Options{Karpenter: true})
	s.pools(2 * time.Second)
	nodes := []*corev1.Node{s.node("batch"), s.node("batch")}
	s.service("web", 8, func(d *controlplane.DeploymentSpec) { d.Spread, d.BudgetMinAvailable = corev1.LabelHostname, budget(4) })

	formats := []string{"json", "console"}
	daemons := make([]*daemon.Daemon, len(nodes))
	for i, node := range nodes {
		imds := s.imds(node)
		daemons[i] = s.run(daemon.Options{
			Args: []string{"imds", "--node-name=" + node.Name, "--poll-interval=500ms", "--log-format=" + formats[i]},
			IMDS: imds.URL,
		})
		imds.Interrupt("terminate", time.Now().Add(2*time.Minute))
	}
	for i := range nodes {
		s.waitLine(daemons[i], "node released")
	}

	story := []string{"interruption accepted, node cordoned", "replacement requested", "draining", "drained", "node released"}
	fields := []string{"level", "time", "component", "node", "instance_id", "kind", "source", "deadline", "remaining_seconds", "message"}
	var told []string
	for _, line := range daemons[0].Lines("") {
		if line["kind"] == nil {
			continue // about the process
		}
		told = append(told, line.Message())
		for _, field := range fields {
			if line[field] == nil {
				t.Errorf("line %q has no %s: %v", line.Message(), field, line)
			}
		}
		if line["node"] != nodes[0].Name || line["instance_id"] != controlplane.InstanceID(nodes[0].Name) ||
			line["kind"] != string(interruption.SpotInterruption) || line["source"] != string(interruption.IMDS) || line["level"] != "info" {
			t.Errorf("line about something else: %v", line)
		}
	}
	s.tells("json", story, told)

	// The same for people: time, level, message, and the fields in the order of the table.
	told = nil
	pattern := regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{3} INF (.+?) component=handler node=` + regexp.QuoteMeta(nodes[1].Name) +
		` instance_id=` + controlplane.InstanceID(nodes[1].Name) + ` kind=spot-interruption source=imds deadline=\S+Z remaining_seconds=[0-9.]+( [a-z_]+=("[^"]*"|\S*))*$`)
	for _, line := range daemons[1].Lines("") {
		if !strings.Contains(line.Message(), " kind=") {
			continue
		}
		found := pattern.FindStringSubmatch(line.Message())
		if found == nil {
			t.Errorf("not a line for people: %q", line.Message())
			continue
		}
		told = append(told, found[1])
	}
	s.tells("console", story, told)
}

// tells checks that the lines are about six, and among them the story in its order.
func (s *story) tells(format string, story, told []string) {
	s.Helper()
	if len(told) < 5 || len(told) > 8 {
		s.Errorf("%s: %d lines, want about six: %q", format, len(told), told)
	}
	rest := told
	for _, message := range story {
		i := slices.Index(rest, message)
		if i < 0 {
			s.Errorf("%s: line %q is missing, or out of order, in %q", format, message, told)
			continue
		}
		rest = rest[i+1:]
	}
}
