package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/karpenter"
)

// What the demo runs: sized so that one node's pods fill a line of the view, with a boot
// time that lets people watch the replacement.
const (
	service  = "web"
	replicas = 12
	budget   = 10 // of the replicas must stay ready
	nodes    = 2
	nodeCPUs = 8 // room for 7 pods of 1 CPU
	grace    = 30 * time.Second
	boot     = 20 * time.Second

	pool         = "batch"
	fallbackPool = "batch-fallback"
)

// startTimeout limits each of the steps before the notice.
const startTimeout = 2 * time.Minute

var begun = time.Now()

// step says what the demo is doing, which may take long.
func step(format string, args ...any) {
	fmt.Printf("%7.1f s  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
}

// play runs the demo and returns when nothing that it started is left.
func play(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	step("start the control plane: etcd, API server, scheduler, Karpenter")
	cluster, err := controlplane.Start(ctx, controlplane.Options{Karpenter: true, Log: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	go func() {
		<-cluster.Done()
		cancel(errors.New("the control plane ended"))
	}()

	node, err := prepare(ctx, cluster)
	if err != nil {
		return err
	}

	step("start spot-handler in queue mode")
	server := sqsemu.Start()
	defer server.Close()
	queue := server.Queue("spot-handler")
	handler, err := daemon.Start(daemon.Options{
		Args:       []string{"queue", "--queue-url=" + queue.URL()},
		Kubeconfig: cluster.Kubeconfig,
		SQS:        server.URL,
	})
	if err != nil {
		return err
	}
	defer handler.Stop()
	starting, cancelStart := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancelStart()
	if err := handler.WaitReady(starting); err != nil {
		return err
	}
	go func() {
		<-handler.Done()
		cancel(errors.New("spot-handler ended"))
	}()

	err = observe(ctx, cluster.Kubeconfig, node.Name, func() {
		step("EC2 announces that it takes a node in %.0f s:\n%11s%s", interruption.SpotNotice.Seconds(), "", node.Name)
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, "demo", controlplane.InstanceID(node.Name), time.Now()))
	})
	if ctx.Err() == nil {
		step("the report is in %s", report)
	}
	return err
}

// prepare brings up the pools, the spot nodes and the service, and returns the node that
// carries most of it.
func prepare(ctx context.Context, cluster *controlplane.Cluster) (*corev1.Node, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancel()
	step("create NodePools %s and %s, which boots in %.0f s", pool, fallbackPool, boot.Seconds())
	if err := cluster.CreatePools(ctx,
		controlplane.PoolSpec{
			Name: pool, Weight: 100, CPUs: nodeCPUs, Boot: boot,
			Annotations: map[string]string{karpenter.FallbackAnnotation: fallbackPool},
		},
		controlplane.PoolSpec{
			Name: fallbackPool, Weight: 10, CPUs: nodeCPUs, Boot: boot,
			Capacity: []string{controlplane.OnDemand},
		},
	); err != nil {
		return nil, err
	}

	step("bring up %d spot nodes", nodes)
	created, err := cluster.CreateNodes(ctx, pool, nodes)
	if err != nil {
		return nil, err
	}

	step("run service %s: wait for %d pods to be ready", service, replicas)
	ready, stop := 5*time.Second, 3*time.Second
	minAvailable := intstr.FromInt32(budget)
	if _, err := cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
		Name: service, Replicas: replicas, CPU: "1", Grace: grace,
		Behaviour:          controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &stop},
		BudgetMinAvailable: &minAvailable,
		Spread:             corev1.LabelHostname,
		// The spread is a preference: as a rule it would keep pods from moving, because
		// the interrupted node counts as one to spread over until it is gone.
		Change: func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
		},
	}); err != nil {
		return nil, err
	}
	pods, err := cluster.WaitReady(ctx, corev1.NamespaceDefault, service, replicas)
	if err != nil {
		return nil, err
	}
	on := map[string]int{}
	for _, pod := range pods {
		on[pod.Spec.NodeName]++
	}
	most := created[0]
	for _, node := range created {
		if on[node.Name] > on[most.Name] {
			most = node
		}
	}
	if on[most.Name] == 0 {
		return nil, fmt.Errorf("run service %s: no pod is on a spot node", service)
	}
	return most, nil
}
