package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/provisioner"
)

type custom = *unstructured.Unstructured

// Labels of Karpenter's and of its AWS provider.
const (
	capacityLabel = "karpenter.sh/capacity-type"
	cpuLabel      = "karpenter.k8s.aws/instance-cpu"

	reserved = "reserved" // a capacity type
)

func (w *World) condition(kind, status, reason string) map[string]any {
	return map[string]any{
		"type": kind, "status": status, "reason": reason, "message": "",
		"lastTransitionTime": w.Now().Format(time.RFC3339),
	}
}

func requirement(key string, values ...any) map[string]any {
	return map[string]any{"key": key, "operator": "In", "values": values}
}

func (w *World) template(pool string) map[string]any {
	capacity, types := requirement(capacityLabel, capacityTypeOf(pool)), []any{"m5.4x", "m5.8x"}
	if pool == PoolFallback && w.Scene.Karpenter.Reserved > 0 {
		capacity = map[string]any{"key": capacityLabel, "operator": "NotIn", "values": []any{"spot"}}
	}
	if w.Scene.Karpenter.Limit > 0 {
		types = []any{"m5.1x", "m5.2x", "m5.4x", "m5.8x", "m5.16x"}
	}
	return map[string]any{
		"nodeClassRef": map[string]any{"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
		"requirements": []any{
			capacity,
			requirement(corev1.LabelInstanceTypeStable, types...),
			requirement(corev1.LabelArchStable, "amd64"),
		},
		"expireAfter": "Never",
	}
}

func (w *World) buildPools() {
	after := "Never"
	if w.Scene.Karpenter.Consolidates > 0 {
		after = w.Scene.Karpenter.Consolidates.String()
	}
	for _, name := range []string{PoolSpot, PoolFallback} {
		pool := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "karpenter.sh/v1", "kind": "NodePool",
			"metadata": map[string]any{"name": name, "annotations": map[string]any{
				"karpenter.sh/nodepool-hash": "1", "karpenter.sh/nodepool-hash-version": "v3",
			}},
			"spec": map[string]any{
				"template":   map[string]any{"metadata": map[string]any{"labels": map[string]any{}}, "spec": w.template(name)},
				"disruption": map[string]any{"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": after},
				"weight":     int64(map[string]int{PoolSpot: 50, PoolFallback: 1}[name]),
			},
			"status": map[string]any{"conditions": []any{w.condition("Ready", "True", "Ready")}},
		}}
		if limit := w.Scene.Karpenter.Limit; limit > 0 && name == PoolFallback {
			spec, _ := pool.Object["spec"].(map[string]any)
			spec["limits"] = map[string]any{"cpu": fmt.Sprintf("%dm", limit)}
		}
		w.Put(memapi.NodePools, pool, byOperator)
	}
}

// newClaim is a NodeClaim of Karpenter's own.
func (w *World) newClaim(name, pool string, requests map[string]any) custom {
	spec := w.template(pool)
	if requests != nil {
		spec["resources"] = map[string]any{"requests": requests}
	}
	claim := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "spec": spec}}
	claim.SetName(name)
	claim.SetLabels(map[string]string{"karpenter.sh/nodepool": pool})
	claim.SetAnnotations(map[string]string{"karpenter.sh/nodepool-hash": "1", "karpenter.sh/nodepool-hash-version": "v3"})
	claim.SetFinalizers([]string{finalizer})
	return claim
}

// setClaim notes on a NodeClaim how far its machine has come.
func (w *World) setClaim(claim custom, i *instance, conditions ...string) {
	list, _, _ := unstructured.NestedSlice(claim.Object, "status", "conditions")
	for _, kind := range conditions {
		stands := func(c any) bool { return c.(map[string]any)["type"] == kind }
		if !slices.ContainsFunc(list, stands) { // one that stands keeps its time
			list = append(list, w.condition(kind, "True", kind))
		}
	}
	status := map[string]any{
		"conditions": list, "providerID": "aws:///" + i.zone + "/" + i.id,
		"capacity":    map[string]any{"cpu": fmt.Sprintf("%dm", i.cpu), "memory": fmt.Sprintf("%dGi", i.cpu/1000*4), "pods": "58"},
		"allocatable": map[string]any{"cpu": fmt.Sprintf("%dm", i.cpu), "memory": fmt.Sprintf("%dGi", i.cpu/1000*4), "pods": "58"},
	}
	if slices.Contains(conditions, "Registered") {
		status["nodeName"] = i.node
	}
	claim.Object["status"] = status
	labels := claim.GetLabels()
	labels[capacityLabel] = i.capacityType()
	labels[corev1.LabelTopologyZone], labels[corev1.LabelInstanceTypeStable] = i.zone, typeOf(i.cpu)
	claim.SetLabels(labels)
}

// claimChanged has Karpenter launch what is new, and end what is being deleted.
func (w *World) claimChanged(c memapi.Change) {
	claim, ok := c.After.(custom)
	switch {
	case !ok || claim == nil:
	case claim.GetDeletionTimestamp() != nil:
		w.after(w.draw().Between(50*time.Millisecond, time.Second, c.Key, "ends"), "terminate "+c.Key, func() { w.terminate(c.Key) })
	case c.Before == nil && c.By != byKarpenter:
		if !slices.Contains(claim.GetFinalizers(), finalizer) { // Karpenter adds it
			w.after(20*time.Millisecond, "finalizer "+c.Key, func() {
				w.changeClaim(c.Key, func(claim custom) { claim.SetFinalizers([]string{finalizer}) })
			})
		}
		fallthrough
	case c.Before == nil && w.since() > 0:
		w.after(w.steady(time.Second, 500*time.Millisecond, 4*time.Second, c.Key, "launch"), "launch "+c.Key, func() { w.launch(c.Key) })
	}
}

// changeClaim changes a NodeClaim that is not going.
func (w *World) changeClaim(name string, how func(custom)) {
	claim := memapi.Get[custom](w.Server, memapi.NodeClaims, name)
	if claim == nil || claim.GetDeletionTimestamp() != nil {
		return
	}
	changed := claim.DeepCopy()
	how(changed)
	w.Put(memapi.NodeClaims, changed, byKarpenter)
}

// allows is what the requirements of a NodeClaim allow for a label.
func allows(claim custom, key string) (c provisioner.Constraint) {
	list, _, _ := unstructured.NestedSlice(claim.Object, "spec", "requirements")
	for _, r := range list {
		if r, ok := r.(map[string]any); ok && r["key"] == key {
			operator, _ := r["operator"].(string)
			values, _, _ := unstructured.NestedStringSlice(r, "values")
			c.Require(operator, values)
		}
	}
	return c
}

// zonesFor are those that a NodeClaim's machine can be in.
func zonesFor(claim custom) []string {
	allowed := allows(claim, corev1.LabelTopologyZone)
	return slices.DeleteFunc(slices.Clone(zones), func(zone string) bool { return !allowed.Allows(zone) })
}

// sizes are the processors of the types that a pool with a limit has, in thousandths.
var sizes = []int64{1000, 2000, 4000, 8000, 16000}

// sizeFor is how large a NodeClaim's machine is: where there is a limit, the smallest that fits.
func (w *World) sizeFor(claim custom) int64 {
	asked, least := cpuAsked(claim), cmp.Or(w.Scene.Karpenter.CPU, 4000)
	if w.Scene.Karpenter.Limit > 0 {
		types, processors := allows(claim, corev1.LabelInstanceTypeStable), allows(claim, cpuLabel)
		for _, size := range sizes {
			if size >= asked && types.Allows(typeOf(size)) && processors.Allows(fmt.Sprint(size/1000)) {
				return size
			}
		}
	}
	if asked > least {
		return (asked + 3999) / 4000 * 4000
	}
	return least
}

// launch starts the machine of a NodeClaim, or fails.
func (w *World) launch(name string) {
	claim := memapi.Get[custom](w.Server, memapi.NodeClaims, name)
	if claim == nil || claim.GetDeletionTimestamp() != nil {
		return
	}
	pool := claim.GetLabels()["karpenter.sh/nodepool"]
	capacity, k := allows(claim, capacityLabel), w.Scene.Karpenter
	isSpot := pool == PoolSpot && capacity.Allows("spot")
	chance := k.NoCapacity
	if isSpot {
		chance = max(chance, k.NoSpot)
	}
	among := zonesFor(claim)
	if len(among) == 0 {
		w.note("karpenter: nothing is offered in any zone that %s allows: %v", name, claim.Object["spec"])
		chance = 1
	}
	if w.draw().Chance(chance, name, "no capacity") {
		w.note("karpenter: no capacity for %s", name)
		if w.draw().Chance(0.2, name, "hangs") {
			return // it tries again and again, and has no answer
		}
		w.Remove(memapi.NodeClaims, name, byKarpenter)
		return
	}
	i := &instance{id: instanceID(name), node: name, claim: name, pool: pool, cpu: w.sizeFor(claim)}
	i.zone = Pick(w.draw(), among, name, "zone")
	if pool == PoolFallback && k.Reserved > 0 && w.reserved() < k.Reserved {
		i.reserved = capacity.Allows(reserved)
		w.judge.judgePaid(claim, i)
	}
	w.add(i)
	w.judge.judgeLimit(claim, i)
	w.note("karpenter: launches %s", name)
	w.changeClaim(name, func(c custom) { w.setClaim(c, i, "Launched") })
	boot := k.Boot
	if !k.Steady {
		boot = boot * time.Duration(80+w.draw().Int(50, name, "boot")) / 100
	}
	w.after(boot, "register "+name, func() { w.register(i) })
}

// reserved is how many of the machines that are paid for are in use.
func (w *World) reserved() (used int) {
	for _, i := range w.instances {
		if i.reserved && i.runs {
			used++
		}
	}
	return used
}

// usedOf are the processors of a pool that count against its limit.
func (w *World) usedOf(pool string) (sum int64) {
	for _, claim := range memapi.List[custom](w.Server, memapi.NodeClaims) {
		if claim.GetLabels()["karpenter.sh/nodepool"] != pool {
			continue
		}
		text, _, _ := unstructured.NestedString(claim.Object, "status", "capacity", "cpu")
		launched := milli(text)
		if launched == 0 {
			launched = w.sizeFor(claim)
		}
		if w.Now().Sub(claim.GetCreationTimestamp().Time) < knownBy { // it counts with all that it might come to
			launched = max(launched, 2*cpuAsked(claim))
		}
		sum += launched
	}
	return sum
}

// steady is a time, or one from least to most if Karpenter is not always equally fast.
func (w *World) steady(usual, least, most time.Duration, names ...string) time.Duration {
	if w.Scene.Karpenter.Steady {
		return usual
	}
	return w.draw().Between(least, most, names...)
}

func (w *World) register(i *instance) {
	claim := memapi.Get[custom](w.Server, memapi.NodeClaims, i.claim)
	if claim == nil || !i.runs {
		return
	}
	fine := !w.draw().Chance(w.Scene.Karpenter.NeverReady, i.node, "never ready")
	w.Put(memapi.Nodes, w.nodeOf(i, claim.GetUID(), fine), byKarpenter)
	w.changeClaim(i.claim, func(c custom) { w.setClaim(c, i, "Launched", "Registered") })
	if !fine {
		w.note("karpenter: %s never becomes Ready", i.node)
		return
	}
	w.after(w.steady(500*time.Millisecond, 0, 3*time.Second, i.node, "initialize"), "initialize "+i.claim, func() {
		if !i.runs {
			return
		}
		w.changeClaim(i.claim, func(c custom) { w.setClaim(c, i, "Launched", "Registered", "Initialized") })
		w.consolidate(i)
	})
}

// terminate moves on with the end of a NodeClaim: its pods are evicted, then its machine ends.
// https://karpenter.sh/docs/concepts/disruption/
func (w *World) terminate(name string) {
	claim := memapi.Get[custom](w.Server, memapi.NodeClaims, name)
	if claim == nil || claim.GetDeletionTimestamp() == nil {
		return
	}
	i := w.byClaim[name]
	if i == nil { // nothing was launched
		w.Remove(memapi.NodeClaims, name, byKarpenter)
		return
	}
	node := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, i.node)
	if node != nil && node.DeletionTimestamp == nil {
		going, now := node.DeepCopy(), w.Now()
		going.DeletionTimestamp = &now
		going.Spec.Taints = append(going.Spec.Taints, corev1.Taint{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule})
		w.Put(memapi.Nodes, going, byKarpenter)
	}
	until, err := time.Parse(time.RFC3339, claim.GetAnnotations()["karpenter.sh/nodeclaim-termination-timestamp"])
	bounded := err == nil
	if i.runs && w.drainFor(i, until, bounded) && (!bounded || w.Now().Time.Before(until)) {
		w.after(time.Second, "terminate "+name, func() { w.terminate(name) })
		return
	}
	w.end(i, false)
	w.after(w.draw().Between(200*time.Millisecond, 8*time.Second, name, "gone"), "gone "+name, func() { w.removeNode(i) })
}

// drainFor has Karpenter evict what is on the node, and reports whether there is still something to wait for.
func (w *World) drainFor(i *instance, until time.Time, bounded bool) (waits bool) {
	for _, pod := range w.podsOn(i.node) {
		if memapi.Finished(pod) || isDaemon(pod) || toleratesAll(pod) {
			continue
		}
		waits = true
		grace := memapi.GraceOf(pod)
		key := memapi.Key(pod)
		switch last := until.Add(-time.Duration(grace) * time.Second); {
		case bounded && pod.DeletionTimestamp != nil && !pod.DeletionTimestamp.After(until): // it ends in time
		case bounded && !w.Now().Time.Before(last):
			left := max(1, int64(until.Sub(time.Now().Add(w.Ahead)).Seconds()))
			w.Delete(memapi.Pods, key, &left, byKarpenter)
		case pod.DeletionTimestamp == nil:
			if f := w.Evict(key, &metav1.DeleteOptions{}, byKarpenter); f != nil {
				continue
			}
		}
	}
	return waits
}

// consolidate has Karpenter remove a node that is empty for too long.
func (w *World) consolidate(i *instance) {
	after := w.Scene.Karpenter.Consolidates
	if after == 0 || !i.runs {
		return
	}
	w.after(after, "consolidate "+i.claim, func() {
		node, claim := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, i.node), memapi.Get[custom](w.Server, memapi.NodeClaims, i.claim)
		if node == nil || claim == nil || claim.GetDeletionTimestamp() != nil {
			return
		}
		protected := node.Annotations[doNotDisrupt] == "true" || claim.GetAnnotations()[doNotDisrupt] == "true"
		empty := !slices.ContainsFunc(w.podsOn(i.node), func(pod *corev1.Pod) bool { return !isDaemon(pod) && !memapi.Finished(pod) })
		if empty && !protected && isReady(node) {
			w.note("karpenter: consolidates %s, which is empty", i.node)
			w.Delete(memapi.NodeClaims, i.claim, nil, byKarpenter)
			return
		}
		w.consolidate(i)
	})
}

func cpuAsked(claim custom) int64 {
	text, _, _ := unstructured.NestedString(claim.Object, "spec", "resources", "requests", "cpu")
	return milli(text)
}

// provision has Karpenter make a node for pods that nothing has room for.
func (w *World) provision() {
	if !w.Scene.Karpenter.Provisions {
		return
	}
	w.after(w.draw().Between(time.Second, 4*time.Second, "batch", fmt.Sprint(w.made["auto"])), "provision", func() {
		var need int64
		for _, pod := range memapi.List[*corev1.Pod](w.Server, memapi.Pods) {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !memapi.Finished(pod) {
				need += cpuOf(pod)
			}
		}
		switch {
		case need == 0:
			return
		case w.cloud != nil:
			w.autoscale()
			w.after(20*time.Second, "provision again", w.provision)
			return
		}
		// What is on its way takes the pods first.
		for _, claim := range memapi.List[custom](w.Server, memapi.NodeClaims) {
			i := w.instances[instanceID(claim.GetName())]
			joined := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, claim.GetName()) != nil ||
				memapi.Get[*corev1.Node](w.Server, memapi.Nodes, nodeNamed(claim)) != nil
			if claim.GetDeletionTimestamp() == nil && (i == nil || i.runs) && !joined {
				need -= max(4000, cpuAsked(claim))
			}
		}
		if need > 0 && w.made["auto"] < 12 {
			name := w.name("auto")
			w.note("karpenter: makes %s for pods of %dm", name, need)
			pool := PoolSpot
			limit := w.Scene.Karpenter.Limit
			if w.draw().Chance(0.3, name, "pool") && (limit == 0 || w.usedOf(PoolFallback)+2*max(4000, need) <= limit) {
				pool = PoolFallback
			}
			claim := w.newClaim(name, pool, map[string]any{"cpu": fmt.Sprintf("%dm", min(need, 8000))})
			w.Put(memapi.NodeClaims, claim, byKarpenter)
		}
		w.after(8*time.Second, "provision again", w.provision)
	})
}

func nodeNamed(claim custom) string {
	name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
	return name
}

func unstructuredSlice(of custom, path ...string) ([]any, bool, error) {
	return unstructured.NestedSlice(of.Object, path...)
}
