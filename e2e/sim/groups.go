package sim

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/sim/memapi"
)

// Groups are the Auto Scaling groups that the nodes of a scene can belong to, one for each pool, in place of
// Karpenter's NodePools. Machines boot as long, and fail as often, as Karpenter's do.
type Groups struct {
	Manage     bool // the nodes belong to groups
	Rebalances bool // they have Capacity Rebalancing, as EKS's managed spot groups
	Full       bool // the spot group launches nothing
	// Placeholders: nothing is detached. Placeholders have an autoscaler make the fallback group larger.
	Placeholders bool
	// Hook is how long the groups wait at a lifecycle hook before an instance ends; 0: they have none.
	Hook time.Duration
	// Launches: they wait as long before an instance that was launched is in service.
	Launches bool
}

const nodegroupLabel = "eks.amazonaws.com/nodegroup"

// leaves is how long a machine is shutting down, or still listed after it was detached.
const leaves = 5 * time.Second

// buildGroups makes the groups that the nodes of the scene belong to.
func (w *World) buildGroups() {
	members := map[string][]string{PoolSpot: nil, PoolFallback: nil}
	for _, n := range w.Scene.Nodes {
		members[n.Pool] = append(members[n.Pool], instanceID(n.Name))
	}
	for pool, ids := range members {
		w.cloud.CreateGroup(pool, ids...)
		if w.Scene.Groups.Rebalances {
			w.cloud.RebalanceCapacity(pool)
		}
		if w.Scene.Groups.Hook > 0 {
			w.cloud.PutHook(pool, asgemu.Hook{
				Name: "drain", Transition: asgemu.TerminateAt, Timeout: w.Scene.Groups.Hook,
				Default: Pick(w.draw(), []string{asgemu.Continue, asgemu.Abandon}, "hook's default"),
			})
		}
		if w.Scene.Groups.Launches {
			w.cloud.PutHook(pool, asgemu.Hook{
				Name: "launch", Transition: asgemu.Launching, Timeout: w.Scene.Groups.Hook,
				Default: Pick(w.draw(), []string{asgemu.Continue, asgemu.Abandon}, "launch hook's default"),
			})
		}
	}
	if w.Scene.Groups.Full {
		w.cloud.Suspend(PoolSpot, "Launch")
	}
}

// newCloud is Auto Scaling, and EC2 as far as groups go.
func (w *World) newCloud() *asgemu.Server {
	return asgemu.New(asgemu.Options{
		Boot:    w.Scene.Karpenter.Boot,
		Leave:   leaves,
		Waiting: func(wait asgemu.Wait) { w.Do(func() { w.announceHook(wait) }) },
		Booted:  func(i asgemu.Instance) { w.Do(func() { w.join(i) }) },
		Ended: func(i asgemu.Instance) {
			w.Do(func() {
				w.judge.hookEnded(i.ID)
				if of := w.instances[i.ID]; of != nil {
					w.end(of, !w.judge.terminated[i.ID])
				}
			})
		},
	})
}

// join has a machine that a group has launched register as a Node.
func (w *World) join(of asgemu.Instance) {
	i := &instance{id: of.ID, node: "joined-" + of.ID, pool: of.Group, zone: asgemu.Zone, cpu: 4000}
	w.add(i)
	fine := !w.draw().Chance(w.Scene.Karpenter.NeverReady, i.node, "never ready")
	w.note("group %s: %s joins, Ready %t", i.pool, i.node, fine)
	w.Put(memapi.Nodes, w.groupNodeOf(i, fine), byController)
	if w.launchedFor[i.id] != "" && fine {
		w.after(recognizedBy, "recognize "+i.id, func() { w.judge.judgeAhead(i) })
	}
}

// recommend has a group with Capacity Rebalancing launch another instance beside one at risk.
func (w *World) recommend(id string) {
	group := w.instances[id].pool
	before := w.cloud.Members(group)
	w.cloud.Recommend(id)
	for _, i := range w.cloud.Members(group) {
		if !slices.ContainsFunc(before, func(b asgemu.Instance) bool { return b.ID == i.ID }) {
			w.launchedFor[i.ID] = id
		}
	}
}

// groupNodeOf is the Node that a machine of a group registers as.
func (w *World) groupNodeOf(i *instance, ready bool) *corev1.Node {
	node := w.nodeOf(i, "", ready)
	node.Finalizers, node.OwnerReferences = nil, nil
	for _, label := range []string{"karpenter.sh/nodepool", capacityLabel, "karpenter.sh/registered"} {
		delete(node.Labels, label)
	}
	node.Labels[nodegroupLabel] = i.pool
	node.Labels["eks.amazonaws.com/capacityType"] = map[bool]string{true: "SPOT", false: "ON_DEMAND"}[i.pool == PoolSpot]
	return node
}

// autoscale is an autoscaler that makes a group larger for pods that nothing has room for.
func (w *World) autoscale() {
	var groups []string
	for _, pod := range memapi.List[*corev1.Pod](w.Server, memapi.Pods) {
		if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || memapi.Finished(pod) {
			continue
		}
		group := PoolSpot
		if isPlaceholder(pod) || w.Scene.Groups.Full {
			group = PoolFallback
		}
		if !slices.Contains(groups, group) {
			groups = append(groups, group)
			w.scaleUp(group)
		}
	}
}

// mostLaunched is how many instances a group has at most.
const mostLaunched = 16

func (w *World) scaleUp(group string) {
	counted := 0
	for _, i := range w.cloud.Members(group) {
		switch i.Lifecycle {
		case asgemu.Pending, asgemu.PendingWait:
			return // it takes the pods first
		case asgemu.InService:
			counted++
		}
	}
	if counted >= mostLaunched {
		return
	}
	w.note("autoscaler: %s gets one more", group)
	w.cloud.SetDesired(group, counted+1)
}
