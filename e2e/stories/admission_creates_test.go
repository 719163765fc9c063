package stories

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
)

// dryly asks whether the API server would do it.
var dryly = []string{metav1.DryRunAll}

// RBAC does not say what an account may create, nor which objects of a kind it may delete. The chart's
// admission policies hold the account to NodeClaims that replace an instance and are as their NodePool
// has them, to Events of its own, and to placeholders. Each attempt is made with the token of the account.
func TestTokensCreateOnlyWhatIsTheirs(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.pools(0)
	s.accounts(inBothModes)
	pool, err := s.cluster.Dynamic.Resource(controlplane.NodePools).Get(s.ctx, "batch-fallback", metav1.GetOptions{})
	s.must(err)
	who := s.person(queueAccount, "")
	s.claimsAreHeld(who, pool)

	type change = func(claim *unstructured.Unstructured)
	label := func(key, value string) change {
		return func(c *unstructured.Unstructured) {
			labels := c.GetLabels()
			labels[key] = value
			c.SetLabels(labels)
		}
	}
	require := func(i int, values ...any) change { // of the i-th requirement
		return func(c *unstructured.Unstructured) {
			list, _, _ := unstructured.NestedSlice(c.Object, "spec", "requirements")
			list[i].(map[string]any)["values"] = values
			_ = unstructured.SetNestedSlice(c.Object, list, "spec", "requirements")
		}
	}
	const (
		owner   = "its NodePool must be the only owner"
		unlike  = "it must have the node class of its NodePool"
		unnamed = "the label spot-handler/replaces must name"
	)
	for what, tt := range map[string]struct {
		change  change
		refusal string
	}{
		"a replacement":        {func(*unstructured.Unstructured) {}, ""},
		"one with more to ask": {require(2, "s-16x-amd64-linux", "s-16x-amd64-linux"), ""},
		"that replaces none":   {label(karpenter.ReplacesLabel, ""), unnamed},
		"of no pool":           {label("karpenter.sh/nodepool", ""), owner},
		"of another pool":      {label("karpenter.sh/nodepool", "batch"), owner},
		"without an owner":     {func(c *unstructured.Unstructured) { c.SetOwnerReferences(nil) }, owner},
		"with two owners": {func(c *unstructured.Unstructured) {
			c.SetOwnerReferences(append(c.GetOwnerReferences(), metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", UID: "u"}))
		}, owner},
		"of another's UID": {func(c *unstructured.Unstructured) {
			owners := c.GetOwnerReferences()
			owners[0].UID = "another"
			c.SetOwnerReferences(owners)
		}, "the owner must be the NodePool that there is"},
		"that cannot be deleted": {func(c *unstructured.Unstructured) { c.SetFinalizers([]string{"example.com/kept"}) }, owner},
		"of another node class": {func(c *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(c.Object, "batch", "spec", "nodeClassRef", "name")
		}, unlike},
		"of another capacity type": {require(1, "spot"), unlike},
		"of another instance type": {require(2, "s-256x-amd64-linux"), unlike},
		"of any instance type": {func(c *unstructured.Unstructured) {
			list, _, _ := unstructured.NestedSlice(c.Object, "spec", "requirements")
			_ = unstructured.SetNestedSlice(c.Object, list[:2], "spec", "requirements")
		}, unlike},
	} {
		claim := replacementOf(pool, "tried")
		tt.change(claim)
		_, err := who.dynamic.Resource(controlplane.NodeClaims).Create(s.ctx, claim, metav1.CreateOptions{DryRun: dryly})
		s.attempt(who, "create a NodeClaim "+what, tt.refusal, err)
	}

	theirs := replacementOf(pool, "theirs")
	theirs.SetLabels(map[string]string{"karpenter.sh/nodepool": pool.GetName()})
	theirs.SetAnnotations(map[string]string{doNotDisrupt: "true"})
	_, err = s.cluster.Dynamic.Resource(controlplane.NodeClaims).Create(s.ctx, theirs, metav1.CreateOptions{})
	s.must(err)
	remove := func(name string) error {
		return who.dynamic.Resource(controlplane.NodeClaims).Delete(s.ctx, name, metav1.DeleteOptions{DryRun: dryly})
	}
	s.attempt(who, "delete the NodeClaim of a node that stays", "only a replacement, or the NodeClaim of a node that ends", remove("theirs"))
	ends := `{"metadata":{"annotations":{"karpenter.sh/nodeclaim-termination-timestamp":"2026-01-01T00:00:00Z"}}}`
	s.must(who.patch("nodeclaims/theirs", ends, metav1.PatchOptions{}))
	s.attempt(who, "delete the NodeClaim of a node that ends", "", remove("theirs"))

	s.eventsOf(who)
	s.placeholdersOf(who)
}

// replacementOf is a NodeClaim as spot-handler makes it in the pool.
func replacementOf(pool *unstructured.Unstructured, name string) *unstructured.Unstructured {
	requirements, _, _ := unstructured.NestedSlice(pool.Object, "spec", "template", "spec", "requirements")
	class, _, _ := unstructured.NestedMap(pool.Object, "spec", "template", "spec", "nodeClassRef")
	own := map[string]any{"key": "karpenter.sh/nodepool", "operator": "In", "values": []any{pool.GetName()}}
	claim := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeClassRef": class, "requirements": append([]any{own}, requirements...), "expireAfter": "Never",
	}}}
	claim.SetAPIVersion("karpenter.sh/v1")
	claim.SetKind("NodeClaim")
	claim.SetName(name)
	claim.SetLabels(map[string]string{karpenter.ReplacesLabel: "i-0123456789abcdef0", "karpenter.sh/nodepool": pool.GetName()})
	claim.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: pool.GetName(), UID: pool.GetUID(),
	}})
	return claim
}

// claimsAreHeld waits until the API server judges new NodeClaims by their pool.
func (s *story) claimsAreHeld(who person, pool *unstructured.Unstructured) {
	s.Helper()
	s.eventually("policy on new NodeClaims in force", func() bool {
		claim := replacementOf(pool, "tried")
		create := func() error {
			_, err := who.dynamic.Resource(controlplane.NodeClaims).Create(s.ctx, claim, metav1.CreateOptions{DryRun: dryly})
			return err
		}
		allowed := create()
		claim.SetLabels(nil)
		return allowed == nil && apierrors.IsForbidden(create())
	})
}

// eventsOf tries to write Events.
func (s *story) eventsOf(who person) {
	s.Helper()
	event := func(name, from, reporting string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"},
			Type:           corev1.EventTypeNormal, Reason: "Test", Message: "message", Count: 1,
			Source: corev1.EventSource{Component: from}, ReportingController: reporting,
		}
	}
	events := who.CoreV1().Events("default")
	const own, counted = "an Event must come from spot-handler", "of an Event only the count and the time may change"
	create := func(e *corev1.Event) error {
		_, err := events.Create(s.ctx, e, metav1.CreateOptions{})
		return err
	}
	s.eventually("policy on Events in force", func() bool { return apierrors.IsForbidden(create(event("none", "kubelet", ""))) })
	s.attempt(who, "write an Event of the kubelet", own, create(event("none", "kubelet", "kubelet")))
	s.attempt(who, "write an Event that the kubelet reports", own, create(event("none", "spot-handler", "kubelet")))
	s.attempt(who, "write an Event", "", create(event("ours", "spot-handler", "spot-handler")))
	_, err := s.cluster.Client.CoreV1().Events("default").Create(s.ctx, event("theirs", "kubelet", "kubelet"), metav1.CreateOptions{})
	s.must(err)
	for _, tt := range []struct{ name, patch, refusal string }{
		{"ours", `{"count":2,"lastTimestamp":"2026-01-01T00:00:00Z"}`, ""},
		{"ours", `{"message":"another"}`, counted},
		{"ours", `{"source":{"component":"kubelet"}}`, own},
		{"theirs", `{"count":2}`, own},
		{"theirs", `{"source":{"component":"spot-handler"},"reportingComponent":"spot-handler","message":"all is well"}`, counted},
	} {
		_, err := events.Patch(s.ctx, tt.name, types.MergePatchType, []byte(tt.patch), metav1.PatchOptions{})
		s.attempt(who, "patch Event "+tt.name+" with "+tt.patch, tt.refusal, err)
	}
}

// placeholdersOf tries to create pods and PodTemplates, and to delete those.
func (s *story) placeholdersOf(who person) {
	s.Helper()
	create := func(change func(*corev1.Pod)) error {
		pod := heldPod()
		change(pod)
		_, err := who.CoreV1().Pods(holdNamespace).Create(s.ctx, pod, metav1.CreateOptions{DryRun: dryly})
		return err
	}
	const (
		ours  = "only placeholders may be created"
		image = "of the image of placeholders"
		class = "the priority class of placeholders"
		host  = "no volume, no token, no node"
	)
	var err error
	s.within("policy on placeholders in force", time.Minute, func() bool {
		err = create(func(*corev1.Pod) {})
		return err == nil && apierrors.IsForbidden(create(func(p *corev1.Pod) { p.Labels = nil }))
	}, func() string { return fmt.Sprint(err) })
	for what, tt := range map[string]struct {
		change  func(*corev1.Pod)
		refusal string
	}{
		"that is none":     {func(p *corev1.Pod) { p.Labels = nil }, ours},
		"without an owner": {func(p *corev1.Pod) { p.OwnerReferences = nil }, ours},
		"of a Node":        {func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Node" }, ours},
		"of another image": {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "miner" }, image},
		"with a command":   {func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"sh"} }, image},
		"with arguments":   {func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"-c"} }, image},
		"with variables":   {func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}} }, image},
		"with two containers": {func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
			p.Spec.Containers[1].Name = "b"
		}, image},
		"with an init step": {func(p *corev1.Pod) {
			p.Spec.InitContainers = p.Spec.Containers[:1:1]
			p.Spec.InitContainers[0].Name = "a"
			p.Spec.Containers = heldPod().Spec.Containers
		}, image},
		"without a priority": {func(p *corev1.Pod) { p.Spec.PriorityClassName = "" }, class},
		"without an end":     {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = nil }, class},
		"for an hour":        {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(3600)) }, class},
		"that starts again":  {func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }, class},
		"with a token":       {func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = new(true) }, image}, // it would be mounted
		"with a volume": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, host},
		"on a node of its name": {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, host},
	} {
		s.attempt(who, "create a pod "+what, tt.refusal, create(tt.change))
	}

	templates := who.CoreV1().PodTemplates(holdNamespace)
	template := func(name, kind string, labels map[string]string) *corev1.PodTemplate {
		t := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: kind, Name: "n", UID: "u"}},
		}}
		t.Template.Labels, t.Template.Spec = labels, heldPod().Spec
		return t
	}
	const only = "only PodTemplates of placeholders"
	held := heldPod().Labels
	for what, tt := range map[string]struct {
		template *corev1.PodTemplate
		refusal  string
	}{
		"of placeholders": {template("t", "Node", held), ""},
		"of nothing":      {template("t", "Node", nil), only},
		"of a pod":        {template("t", "Pod", held), only},
	} {
		_, err := templates.Create(s.ctx, tt.template, metav1.CreateOptions{DryRun: dryly})
		s.attempt(who, "create a PodTemplate "+what, tt.refusal, err)
	}
	for name, labels := range map[string]map[string]string{"theirs": nil, "ours": held} {
		t := template(name, "Node", labels)
		t.OwnerReferences = nil // or the garbage collector deletes it
		_, err := s.cluster.Client.CoreV1().PodTemplates(holdNamespace).Create(s.ctx, t, metav1.CreateOptions{})
		s.must(err)
	}
	s.attempt(who, "delete another's PodTemplate", only, templates.Delete(s.ctx, "theirs", metav1.DeleteOptions{}))
	s.attempt(who, "delete a PodTemplate of placeholders", "", templates.Delete(s.ctx, "ours", metav1.DeleteOptions{}))
}

// heldPod is a placeholder as spot-handler makes it.
func heldPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "held", Namespace: holdNamespace, Labels: map[string]string{placeholder.Label: "i-0123456789abcdef0"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "PodTemplate", Name: "t", UID: "u"}},
		},
		Spec: corev1.PodSpec{
			PriorityClassName: "spot-handler-placeholder", ActiveDeadlineSeconds: new(int64(60)), TerminationGracePeriodSeconds: new(int64(0)),
			RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65535)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "placeholder", Image: "pause:3.10",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: {}, corev1.ResourceMemory: {}}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

// Whoever has the token of the Deployment buys as much as the limits of the NodePools leave, and one more
// NodeClaim in each: no further one once Karpenter has counted it. One of a pool that does not exist is
// deleted with its instance. Placeholders ask for no more than the chart's quota.
func TestMoneyOfAToken(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	const limit = 3 // nodes
	s.must(s.cluster.CreatePools(s.ctx, controlplane.PoolSpec{
		Name: "limited", CPUs: 8, Capacity: []string{controlplane.OnDemand}, Limits: map[string]string{"cpu": fmt.Sprint(8 * limit)},
	}))
	s.accounts(inBothModes)
	pool, err := s.cluster.Dynamic.Resource(controlplane.NodePools).Get(s.ctx, "limited", metav1.GetOptions{})
	s.must(err)
	thief := s.person(queueAccount, "")
	s.claimsAreHeld(thief, pool)
	claims := thief.dynamic.Resource(controlplane.NodeClaims)

	bought := 0
	for ; bought <= limit+1; bought++ {
		_, err := claims.Create(s.ctx, replacementOf(pool, fmt.Sprint("stolen-", bought)), metav1.CreateOptions{})
		if err != nil {
			s.attempt(thief, "create one beyond the limits", "its NodePool uses more than its limits", err)
			break
		}
		var status map[string]any
		s.within("Karpenter's count of it", time.Minute, func() bool {
			u, err := s.cluster.Dynamic.Resource(controlplane.NodePools).Get(s.ctx, pool.GetName(), metav1.GetOptions{})
			s.must(err)
			status, _, _ = unstructured.NestedMap(u.Object, "status", "resources")
			return status["cpu"] == fmt.Sprint(8*(bought+1))
		}, func() string { return fmt.Sprintf("it counts %v after %d", status, bought+1) })
	}
	if bought != limit+1 {
		s.Errorf("%d NodeClaims of 8 CPUs with a limit of %d: want one more than fit, %d", bought, 8*limit, limit+1)
	}

	ghost := replacementOf(pool, "ghost")
	ghost.SetLabels(map[string]string{karpenter.ReplacesLabel: "i-0123456789abcdef0", "karpenter.sh/nodepool": "none"})
	ghost.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: "none", UID: "none"}})
	_, err = claims.Create(s.ctx, ghost, metav1.CreateOptions{})
	s.must(err)
	s.within("end of a NodeClaim of no pool", 2*time.Minute, func() bool {
		_, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).Get(s.ctx, "ghost", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, func() string { return "it exists" })

	templates := s.cluster.Client.CoreV1().PodTemplates(holdNamespace)
	owner, err := templates.Create(s.ctx, &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "t"}, Template: corev1.PodTemplateSpec{Spec: heldPod().Spec},
	}, metav1.CreateOptions{})
	s.must(err)
	hold := func(name, cpu, memory string) error {
		pod := heldPod()
		pod.Name, pod.OwnerReferences[0].UID = name, owner.UID
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		}
		_, err := thief.CoreV1().Pods(holdNamespace).Create(s.ctx, pod, metav1.CreateOptions{})
		return err
	}
	s.eventually("a quota", func() bool {
		quota, err := s.cluster.Client.CoreV1().ResourceQuotas(holdNamespace).Get(s.ctx, "spot-handler", metav1.GetOptions{})
		return err == nil && len(quota.Status.Hard) == 3
	})
	s.attempt(thief, "hold 999 CPUs and 1 TiB", "", hold("most", "999", "1Ti"))
	s.attempt(thief, "hold 1,001 CPUs", "exceeded quota", hold("cpu", "2", "0"))
	s.attempt(thief, "hold more than 4 TiB", "exceeded quota", hold("memory", "0", "3073Gi"))
	s.attempt(thief, "hold all that is left", "", hold("rest", "1", "3Ti"))
}
