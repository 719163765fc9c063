package stories

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// Whatever passes through, the daemon has as many series as at its start when it is
// over, few more meanwhile, and never one that is named after a node, an instance, an
// event or a message.
func TestSeriesStayBounded(t *testing.T) {
	s := newStory(long(t), controlplane.Options{})
	const each = 40
	var nodes []*corev1.Node
	for i := range each { // every node in a pool and a zone of its own
		made, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: fmt.Sprint("series-", i), Unmanaged: true,
			Labels: map[string]string{"eks.amazonaws.com/nodegroup": fmt.Sprint("group-", i), corev1.LabelTopologyZone: fmt.Sprint("zone-", i)}})
		s.must(err)
		nodes = append(nodes, made...)
	}
	server, queue := s.sqs()
	d := s.runQueue(server, queue)

	before := s.series(d)
	at := time.Now().Add(-time.Minute) // EC2's notices are a minute old, which shortens the story
	var names []string
	for i, node := range nodes {
		instance := controlplane.InstanceID(node.Name)
		foreign := fmt.Sprintf("i-%017x", i)
		for _, body := range []string{
			daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint("event-", i), instance, at),
			daemon.EventBridge(daemon.SpotInterruption, fmt.Sprint("foreign-", i), foreign, at),
			daemon.EventBridge(fmt.Sprint("EC2 Something New ", i), fmt.Sprint("new-", i), instance, at),
			fmt.Sprintf(`{"detail-type": "nonsense-%d"}`, i),
		} {
			names = append(names, queue.Send(body))
		}
		names = append(names, node.Name, instance, foreign, fmt.Sprint("event-", i, `"`), "Something New", "nonsense")
	}
	most := 0
	s.eventually("end of all interruptions", func() bool {
		most = max(most, s.series(d))
		return s.metric(d, `spot_handler_messages_total{outcome="accepted"}`) == each &&
			s.metric(d, `spot_handler_messages_total{outcome="foreign"}`) == each &&
			s.metric(d, `spot_handler_drains_total{kind="spot-interruption",result="completed"}`) == each
	})
	s.waitEmpty(queue)
	s.eventually("as many series as at the start", func() bool { return s.series(d) == before })
	if most > before+each {
		t.Errorf("%d series at some time, %d at the start, want no more than one for each of %d pools on top", most, before, each)
	}
	text := d.Metrics(s.ctx)
	for _, name := range names {
		if strings.Contains(text, name) {
			t.Errorf("%q is in the metrics", name)
		}
	}
}

// series counts those of our own metrics.
func (s *story) series(d *daemon.Daemon) int {
	s.Helper()
	n := 0
	for line := range strings.Lines(d.Metrics(s.ctx)) {
		if strings.HasPrefix(line, "spot_handler_") {
			n++
		}
	}
	return n
}
