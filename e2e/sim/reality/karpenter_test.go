package reality

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/sim"
	"spot-handler/handler/interruption"
)

// poolCPUs are those of each machine.
const poolCPUs = 4

// pools makes the pools of the scene, and has Karpenter make its nodes. The scene has other names for them.
func (r *real) pools(ctx context.Context) {
	r.Helper()
	boot := r.scene.Karpenter.Boot
	r.must(r.CreatePools(ctx,
		controlplane.PoolSpec{Name: sim.PoolSpot, Weight: 50, CPUs: poolCPUs, Boot: boot},
		controlplane.PoolSpec{Name: sim.PoolFallback, Weight: 1, CPUs: poolCPUs, Boot: boot, Capacity: []string{controlplane.OnDemand}},
	))
	for _, pool := range []string{sim.PoolSpot, sim.PoolFallback} {
		var which []*sim.Node
		for i := range r.scene.Nodes {
			if n := &r.scene.Nodes[i]; n.Pool == pool {
				which = append(which, n)
			}
		}
		made, err := r.CreateNodes(ctx, pool, len(which))
		r.must(err)
		for i, n := range which {
			for at := range r.scene.Losses {
				if l := &r.scene.Losses[at]; l.Node == n.Name {
					l.Node = made[i].Name
				}
			}
			n.Name = made[i].Name
			if n.Cordoned {
				r.changeNode(ctx, n.Name, `{"spec":{"unschedulable":true}}`)
			}
		}
	}
}

// takeStock has the scene have the nodes that there are: Karpenter has made some for pods that had no room.
func (r *real) takeStock(ctx context.Context) {
	r.Helper()
	all, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	r.must(err)
	known := map[string]sim.Node{}
	for _, n := range r.scene.Nodes {
		known[n.Name] = n
	}
	r.scene.Nodes = nil
	for _, node := range all.Items {
		n, ok := known[node.Name]
		if !ok {
			n = sim.Node{Name: node.Name, Pool: node.Labels["karpenter.sh/nodepool"]}
		}
		n.Zone, n.CPU = node.Labels[corev1.LabelTopologyZone], node.Status.Allocatable.Cpu().MilliValue()
		r.scene.Karpenter.CPU = n.CPU
		r.scene.Nodes = append(r.scene.Nodes, n)
		if node.Labels[interruption.InstanceIDLabel] == "" {
			_, err := r.LabelInstance(ctx, node.Name)
			r.must(err)
		}
	}
}
