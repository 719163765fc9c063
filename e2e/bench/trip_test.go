package bench

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
)

// tripFile is what e2e/plots draws for the page about replacements.
const tripFile = "../plots/trip.json"

// The trip: EC2 takes one of four nodes, and has no other spot instance for a while.
const (
	spotIsBack = 150 * time.Second // after the notice; also how long spot-handler waits at least
	tripLimit  = 8 * time.Minute
	tripQuiet  = 20 * time.Second // the service has been where it was for so long
)

// trip is what was seen of a service from the notice until it is on spot again, and some seconds longer.
type trip struct {
	ready, spot, onDemand []point
	podSeconds            float64 // unavailable
	took                  float64 // seconds
}

// BenchmarkRoundTrip has a service lose a spot node, go to an on-demand one and come back: with spot-handler, and
// beside it with Karpenter alone, which acts on the notice as its interruption queue has it, by deleting the
// NodeClaim.
func BenchmarkRoundTrip(b *testing.B) {
	for b.Loop() {
		cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
		ours := service{B: b, cluster: cluster, name: "ours", pods: servicePods, nodes: serviceNodes}
		theirs := service{B: b, cluster: cluster, name: "theirs", pods: servicePods, nodes: serviceNodes}
		var with, alone trip
		var group sync.WaitGroup
		group.Go(func() { with = ours.roundTrip(ours.notify) })
		group.Go(func() { alone = theirs.roundTrip(theirs.deleteClaim) })
		group.Wait()
		if b.Failed() {
			return
		}
		must(b, tripChart(with, alone).write(tripFile))
		report(row{what: "there and back, unavailable: Karpenter alone", unit: "pod s", values: []float64{alone.podSeconds}})
		report(row{what: "there and back, unavailable: spot-handler", unit: "pod s", values: []float64{with.podSeconds}, none: true})
		report(row{what: "  on spot again after, Karpenter alone and spot-handler", text: fmt.Sprintf("%.0f s; %.0f s", alone.took, with.took)})
	}
}

// roundTrip runs the service, has interrupt say that EC2 takes one of its nodes, and follows it.
func (s service) roundTrip(interrupt func(ctx context.Context, node *corev1.Node)) trip {
	ctx, cancel := context.WithTimeout(s.Context(), tripLimit)
	defer cancel()
	label := map[string]string{"bench.spot-handler/service": s.name}
	must(s.B, s.cluster.CreatePools(ctx,
		controlplane.PoolSpec{Name: s.name + "-spot", Weight: 100, Boot: bootTime, Labels: label},
		controlplane.PoolSpec{
			Name: s.name + "-fallback", Weight: 10, Boot: bootTime, Labels: label, Capacity: []string{controlplane.OnDemand},
			ConsolidateAfter: "0s",
		}))
	nodes, err := s.cluster.CreateNodes(ctx, s.name+"-spot", s.nodes)
	must(s.B, err)
	ready, stop, quarter := readyTime, stopTime, intstr.FromString("25%")
	_, err = s.cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
		Name: s.name, Replicas: s.pods, CPU: "1", NodeSelector: label, Grace: 30 * time.Second,
		MaxSurge: &quarter, BudgetMaxUnavailable: &quarter,
		Behaviour: controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &stop},
	})
	must(s.B, err)
	_, err = s.cluster.WaitReady(ctx, "", s.name, s.pods)
	must(s.B, err)

	s.limitSpot(ctx, `{"cpu":"1"}`) // it has more already: no spot instance is to be had
	noticed := time.Now()
	interrupt(ctx, nodes[0])
	return s.followTrip(ctx, noticed)
}

func (s service) limitSpot(ctx context.Context, limits string) {
	patch := fmt.Appendf(nil, `{"spec":{"limits":%s}}`, limits)
	_, err := s.cluster.Dynamic.Resource(controlplane.NodePools).Patch(ctx, s.name+"-spot", types.MergePatchType, patch, metav1.PatchOptions{})
	must(s.B, err)
}

// notify starts spot-handler, which EC2's notice reaches by the queue.
func (s service) notify(ctx context.Context, node *corev1.Node) {
	sqs := sqsemu.Start()
	s.Cleanup(sqs.Close)
	queue := sqs.Queue("spot-handler")
	d := start(s.B, daemon.Options{
		Args:       []string{"queue", "--queue-url=" + queue.URL(), "--calm=" + spotIsBack.String(), "--managed-nodes=bench.spot-handler/service=" + s.name},
		Kubeconfig: s.cluster.Kubeconfig, SQS: sqs.URL,
	})
	s.Cleanup(func() { d.Kill() })
	must(s.B, d.WaitReady(ctx))
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "trip", controlplane.InstanceID(node.Name), time.Now()))
}

// deleteClaim is what Karpenter does on the notice.
// https://github.com/aws/karpenter-provider-aws/blob/v1.12.0/pkg/controllers/interruption/controller.go
func (s service) deleteClaim(ctx context.Context, node *corev1.Node) {
	for _, owner := range node.OwnerReferences {
		if owner.Kind == "NodeClaim" {
			must(s.B, s.cluster.Dynamic.Resource(controlplane.NodeClaims).Delete(ctx, owner.Name, metav1.DeleteOptions{}))
		}
	}
}

// followTrip counts pods and nodes until the service is where it was.
func (s service) followTrip(ctx context.Context, noticed time.Time) (t trip) {
	last, missing, left, back := noticed, 0, false, false
	var home time.Time
	add := func(points *[]point, at float64, n int) {
		if len(*points) == 0 || (*points)[len(*points)-1][1] != float64(n) {
			*points = append(*points, point{math.Round(10*at) / 10, float64(n)})
		}
	}
	for home.IsZero() || time.Since(home) < tripQuiet {
		pods, err := s.cluster.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: controlplane.Selector(s.name), ResourceVersion: "0"})
		must(s.B, err)
		nodes, err := s.cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "bench.spot-handler/service=" + s.name, ResourceVersion: "0"})
		must(s.B, err)
		ready, of := 0, map[string]int{}
		for i := range pods.Items {
			if controlplane.Ready(&pods.Items[i]) {
				ready++
			}
		}
		for _, node := range nodes.Items {
			of[node.Labels["karpenter.sh/capacity-type"]]++
		}
		now := time.Now()
		at := now.Sub(noticed).Seconds()
		t.podSeconds += float64(missing) * now.Sub(last).Seconds()
		last, missing = now, max(0, s.pods-ready)
		add(&t.ready, at, ready)
		add(&t.spot, at, of["spot"])
		add(&t.onDemand, at, of[controlplane.OnDemand])
		left = left || of[controlplane.OnDemand] > 0
		if !back && at >= spotIsBack.Seconds() {
			back = true
			s.limitSpot(ctx, "null")
		}
		switch {
		case !left || of[controlplane.OnDemand] > 0 || missing > 0 || of["spot"] != s.nodes:
			home = time.Time{}
		case home.IsZero():
			home, t.took = now, at
		}
		pause(s.B, ctx, 200*time.Millisecond)
	}
	return t
}

// tripChart has the ready pods of both trips, and the nodes of spot-handler's by their capacity type.
func tripChart(with, alone trip) chart {
	end := 10 * math.Ceil((max(with.took, alone.took)+5)/10)
	c := chart{
		Title: fmt.Sprintf("There and back: a service of %d loses one of its %d spot nodes", servicePods, serviceNodes),
		Subtitle: fmt.Sprintf("%d pods run on it. A node boots in %.0f s, a pod is ready after %.0f s. EC2 has no spot instance for %.0f s.",
			servicePods/serviceNodes, bootTime.Seconds(), readyTime.Seconds(), spotIsBack.Seconds()),
		X:     axis{Label: "seconds after EC2’s notice", From: -6, To: end, Step: 30},
		Y:     axis{Label: "ready pods, and nodes below", From: -2, To: 40, Step: 4},
		Base:  servicePods,
		Marks: []mark{{0, "notice"}, {spotIsBack.Seconds(), "EC2 has spot again"}},
	}
	var captions []string
	show := func(name, figure string, strong bool, points []point) {
		l := line{Name: name, Figure: figure, Strong: strong, Points: []point{{c.X.From, points[0][1]}}, Nodes: !strings.HasPrefix(name, "ready")}
		for _, p := range points {
			if p[0] <= end {
				l.Points = append(l.Points, p)
			}
		}
		l.Points = append(l.Points, point{end, l.Points[len(l.Points)-1][1]})
		c.Lines = append(c.Lines, l)
		captions = append(captions, name+": "+figure)
	}
	unavailable := func(t trip) string { return fmt.Sprintf("%.0f pod-seconds unavailable", t.podSeconds) }
	since := func(points []point) string {
		last := points[len(points)-1]
		return fmt.Sprintf("%.0f again after %.0f s", last[1], last[0])
	}
	show("on-demand nodes with spot-handler", since(with.onDemand), false, with.onDemand)
	show("spot nodes with spot-handler", since(with.spot), false, with.spot)
	show("ready pods with Karpenter alone", unavailable(alone), false, alone.ready)
	show("ready pods with spot-handler", unavailable(with), true, with.ready)
	c.Description = strings.Join(captions, ". ") + "."
	return c
}

// TestTripChart ends each line where the picture ends, and shades nodes below no count of pods.
func TestTripChart(t *testing.T) {
	with := trip{ready: []point{{0, 28}, {60, 35}, {70, 28}}, spot: []point{{0, 4}}, onDemand: []point{{0, 0}, {40, 1}, {230, 0}}, took: 230}
	alone := trip{ready: []point{{0, 28}, {2, 21}, {52, 28}}, spot: []point{{0, 4}}, onDemand: []point{{0, 0}, {41, 1}, {214, 0}}, podSeconds: 350, took: 214}
	c := tripChart(with, alone)
	for _, l := range c.Lines {
		if last := l.Points[len(l.Points)-1]; last[0] != 240 {
			t.Errorf("%s ends at %v", l.Name, last)
		}
		if pods := l.Points[0][1] == servicePods; pods == l.Nodes {
			t.Errorf("%s: of nodes: %t", l.Name, l.Nodes)
		}
	}
	if !strings.Contains(c.Description, "350 pod-seconds") {
		t.Error(c.Description)
	}
}
