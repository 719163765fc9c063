package sim

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/sim/memapi"
)

// instance is a machine of EC2.
type instance struct {
	id, node, claim string
	pool, zone      string
	cpu             int64
	reserved        bool // paid for, whether it is used or not
	runs            bool
	taken           time.Time // by EC2, against the will of Karpenter
	ended           time.Time
}

func instanceID(name string) string {
	h := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return fmt.Sprintf("i-%016x1", h)
}

// instanceOf is the machine of a node; nil: it never had one.
func (w *World) instanceOf(node string) *instance { return w.byNode[node] }

// add notes a machine that runs.
func (w *World) add(i *instance) {
	i.runs = true
	w.instances[i.id], w.byNode[i.node] = i, i
	if i.claim != "" {
		w.byClaim[i.claim] = i
	}
}

func quantity(milli int64) resource.Quantity {
	return *resource.NewMilliQuantity(milli, resource.DecimalSI)
}

const finalizer = "karpenter.sh/termination"

func typeOf(cpu int64) string { return fmt.Sprintf("m5.%dx", cpu/1000) }

func capacityTypeOf(pool string) string {
	if pool == PoolSpot {
		return "spot"
	}
	return "on-demand"
}

func (i *instance) capacityType() string {
	if i.reserved {
		return reserved
	}
	return capacityTypeOf(i.pool)
}

// nodeOf is the Node that a machine registers as.
func (w *World) nodeOf(i *instance, claim types.UID, ready bool) *corev1.Node {
	status, now := corev1.ConditionTrue, w.Now()
	if !ready {
		status = corev1.ConditionFalse
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: quantity(i.cpu), corev1.ResourceMemory: *resource.NewQuantity(i.cpu/1000*4<<30, resource.BinarySI),
		corev1.ResourcePods: *resource.NewQuantity(58, resource.DecimalSI),
	}
	yes := true
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: i.node, Finalizers: []string{finalizer},
			Labels: map[string]string{
				"karpenter.sh/nodepool": i.pool, capacityLabel: i.capacityType(), "karpenter.sh/registered": "true",
				corev1.LabelTopologyZone: i.zone, corev1.LabelFailureDomainBetaZone: i.zone, ebsZone: i.zone,
				corev1.LabelInstanceTypeStable: typeOf(i.cpu), corev1.LabelHostname: i.node,
				corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: i.claim, UID: claim, BlockOwnerDeletion: &yes,
			}},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///" + i.zone + "/" + i.id},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			NodeInfo:   corev1.NodeSystemInfo{BootID: "boot-" + i.id},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastTransitionTime: now, LastHeartbeatTime: now}},
		},
	}
}

func (w *World) buildNode(n Node) {
	i := &instance{id: instanceID(n.Name), node: n.Name, pool: n.Pool, zone: n.Zone, cpu: n.CPU}
	if w.cloud == nil {
		i.claim = "claim-" + n.Name
	}
	w.add(i)
	old := metav1.NewTime(w.began.Add(-time.Hour))
	node := w.groupNodeOf(i, true)
	if w.cloud == nil {
		claim := w.newClaim(i.claim, n.Pool, nil)
		claim.SetCreationTimestamp(old)
		w.setClaim(claim, i, "Launched", "Registered", "Initialized")
		w.Put(memapi.NodeClaims, claim, byKarpenter)
		node = w.nodeOf(i, claim.GetUID(), true)
	}
	node.Status.Conditions[0].LastTransitionTime = old
	node.CreationTimestamp, node.Spec.Unschedulable = old, n.Cordoned
	w.Put(memapi.Nodes, node, byKarpenter)
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// setReady changes the Node's condition Ready.
func (w *World) setReady(name string, status corev1.ConditionStatus) {
	node := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, name)
	if node == nil {
		return
	}
	changed := node.DeepCopy()
	for i := range changed.Status.Conditions {
		if c := &changed.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status != status {
			c.Status, c.LastTransitionTime = status, w.Now()
		}
	}
	w.Put(memapi.Nodes, changed, byController)
}

// end is the end of a machine. What ran there runs no more, and nobody says so at first.
func (w *World) end(i *instance, taken bool) {
	if !i.runs {
		return
	}
	i.runs, i.ended = false, time.Now()
	w.endAgent(i.node)
	if taken {
		i.taken = i.ended
		w.note("ec2: takes %s (%s)", i.node, i.id)
	}
	w.judge.ended(i)
	// The node lifecycle controller's grace period is 50 s since Kubernetes 1.32.
	w.after(50*time.Second, "unknown "+i.id, func() { w.nodeUnknown(i) })
	if i.claim == "" { // the cloud controller looks every 5 s what has become of Nodes that aren't Ready
		w.after(50*time.Second+w.draw().Between(0, 5*time.Second, i.node, "collected"), "collect "+i.id, func() { w.collect(i) })
		return
	}
	// Karpenter finds out that a machine is gone: at once, if it reads of it in its own queue, or when it next lists them.
	w.after(w.Scene.CollectedAfter(i.node), "collect "+i.id, func() { w.collect(i) })
}

func (w *World) nodeUnknown(i *instance) {
	node := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, i.node)
	if node == nil {
		return
	}
	w.setReady(i.node, corev1.ConditionUnknown)
	for _, pod := range w.podsOn(i.node) {
		if memapi.Ready(pod) {
			w.setPodReady(pod, false)
		}
	}
}

// collect removes what is left of a machine that is gone.
func (w *World) collect(i *instance) {
	claim := memapi.Get[*unstructured.Unstructured](w.Server, memapi.NodeClaims, i.claim)
	if claim != nil {
		w.Delete(memapi.NodeClaims, i.claim, nil, byKarpenter)
	}
	w.removeNode(i)
}

// removeNode removes the Node and the NodeClaim of a machine that has ended.
func (w *World) removeNode(i *instance) {
	w.judge.nodeGoes(i)
	w.Remove(memapi.Nodes, i.node, byKarpenter)
	w.Remove(memapi.NodeClaims, i.claim, byKarpenter)
}

func (w *World) nodeChanged(c memapi.Change) {
	if c.After == nil {
		// Pod garbage collection waits 40 s for a Node that might come back.
		w.after(w.draw().Between(time.Second, 45*time.Second, c.Key, "podgc"), "podgc "+c.Key, func() {
			if memapi.Get[*corev1.Node](w.Server, memapi.Nodes, c.Key) != nil {
				return
			}
			for _, pod := range w.podsOn(c.Key) {
				w.Remove(memapi.Pods, memapi.Key(pod), byPodGC)
			}
			for _, a := range memapi.List[attachment](w.Server, memapi.Attachments) {
				if a.Spec.NodeName == c.Key {
					w.Remove(memapi.Attachments, a.Name, byController)
				}
			}
		})
		return
	}
	w.lookForRoom()
	if c.Before == nil {
		w.lookAtDaemons()
	}
}
