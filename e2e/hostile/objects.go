package hostile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// object is one of any kind.
type object interface {
	metav1.Object
	runtime.Object
}

// draft is an object of that name, as the tenant is about to write it.
type draft func(t *Tenant, d dice, name string) object

// large are kinds of which each object is about as large as the API server takes it.
var large = map[string]draft{
	"ReplicaSet": func(_ *Tenant, d dice, name string) object {
		return &appsv1.ReplicaSet{
			ObjectMeta: d.meta(name),
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32), Selector: ours, Template: d.template(nil)},
		}
	},
	"Deployment": func(t *Tenant, d dice, name string) object {
		meta := d.meta(name)
		template := d.template(&meta)
		template.Labels["app"] = name
		d.unselected(&template.ObjectMeta)
		template.Spec.Affinity, template.Spec.NodeSelector = nil, t.aNode(d)
		deployment := deployment(meta, template)
		deployment.Spec.Paused = !d.plain && d.IntN(2) == 0
		d.hold(&deployment.Spec.Template.ObjectMeta)
		if d.plain { // its pod is not surged either
			deployment.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		}
		return deployment
	},
	"StatefulSet": func(_ *Tenant, d dice, name string) object {
		set := &appsv1.StatefulSet{ObjectMeta: d.meta(name)}
		set.Spec = appsv1.StatefulSetSpec{Replicas: new(int32), ServiceName: "none", Selector: ours, Template: d.template(&set.ObjectMeta)}
		return set
	},
	"DaemonSet": func(_ *Tenant, d dice, name string) object {
		set := &appsv1.DaemonSet{ObjectMeta: d.meta(name)}
		set.Spec = appsv1.DaemonSetSpec{Selector: ours, Template: d.template(&set.ObjectMeta)}
		set.Spec.Template.Spec.NodeSelector = map[string]string{"no-such-node": "x"}
		return set
	},
	"Pod": func(t *Tenant, d dice, name string) object { return t.pod(d, name, d.size) },
	"PodDisruptionBudget": func(_ *Tenant, d dice, name string) object {
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: d.meta(name),
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: d.selector()},
		}
		if d.plain {
			d.fill(&budget.ObjectMeta, d.size)
		} else { // the API server reads it for each eviction in the namespace
			d.label(&budget.ObjectMeta, d.size/10)
		}
		return budget
	},
	"PersistentVolumeClaim": func(_ *Tenant, d dice, name string) object {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: d.meta(name)}
		d.fill(&claim.ObjectMeta, d.size)
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{pick(d, corev1.ReadWriteOnce, corev1.ReadWriteMany)}
		claim.Spec.VolumeName = pick(d, "", "no-such-volume")
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(pick(d, "1", "9E", "1m"))}
		return claim
	},
	"Service": func(_ *Tenant, d dice, name string) object {
		service := &corev1.Service{ObjectMeta: d.meta(name), Spec: corev1.ServiceSpec{
			Type:                          corev1.ServiceTypeLoadBalancer,
			LoadBalancerClass:             new("service.k8s.aws/nlb"),
			AllocateLoadBalancerNodePorts: new(bool),
			Ports:                         []corev1.ServicePort{{Name: "p", Port: 1}},
		}}
		service.Annotations["service.beta.kubernetes.io/aws-load-balancer-target-group-attributes"] =
			"deregistration_delay.timeout_seconds=" + pick(d, "3600", "-1", d.odd())
		if d.plain || d.IntN(2) == 0 {
			d.fill(&service.ObjectMeta, d.size)
			return service
		}
		service.Spec.Selector = ours.MatchLabels
		for i := range d.size / 90 {
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(2 + i)})
		}
		return service
	},
	"Ingress": func(_ *Tenant, d dice, name string) object {
		ingress := &networkingv1.Ingress{ObjectMeta: d.meta(name)}
		ingress.Spec.IngressClassName = new("alb")
		if d.plain {
			d.fill(&ingress.ObjectMeta, d.size*9/10)
			d.size /= 10
		}
		for i := range d.size / 190 {
			rule := networkingv1.IngressRule{Host: fmt.Sprintf("h%d.example.com", i)}
			rule.HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path:     "/",
				PathType: new(networkingv1.PathTypePrefix),
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: fmt.Sprint("service-", d.IntN(1000)),
					Port: networkingv1.ServiceBackendPort{Number: 1},
				}},
			}}}
			ingress.Spec.Rules = append(ingress.Spec.Rules, rule)
		}
		return ingress
	},
	"Event": func(t *Tenant, d dice, name string) object { return t.event(d, name, d.size*8/10) },
	"ResourceQuota": func(_ *Tenant, d dice, name string) object {
		quota := &corev1.ResourceQuota{ObjectMeta: d.meta(name), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
		for i := range mostSelected {
			quota.Spec.Hard[corev1.ResourceName(fmt.Sprintf("count/r%05d.hostile.example.com", i))] = resource.MustParse("1")
		}
		d.fill(&quota.ObjectMeta, d.size*8/10)
		return quota
	},
}

// small are kinds of which the number matters, or what is in them.
var small = map[string]draft{
	"small Pod":   func(t *Tenant, d dice, name string) object { return t.pod(d, name, 0) },
	"small Event": func(t *Tenant, d dice, name string) object { return t.event(d, name, pick(d, 1, 1000)) },
	"decoy":       (*Tenant).decoy,
	"Job": func(_ *Tenant, d dice, name string) object {
		template := d.template(nil)
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		return &batchv1.Job{ObjectMeta: d.meta(name), Spec: batchv1.JobSpec{Suspend: new(true), Template: template}}
	},
	"small Deployment": func(t *Tenant, d dice, name string) object { // whose pod is surged
		d.size, d.plain = 0, true
		template := d.template(nil)
		template.Annotations, template.Labels["app"] = nil, name
		template.Spec.NodeSelector = t.aNode(d)
		return deployment(metav1.ObjectMeta{Name: name}, template)
	},
	"ConfigMap": func(_ *Tenant, d dice, name string) object {
		return &corev1.ConfigMap{ObjectMeta: d.meta(name), Data: map[string]string{
			"a": strings.Repeat(pick(d, "\x1b[31m", "x\r\n", "\x00"), 20_000),
			"b": strings.Repeat("x", 700_000),
		}}
	},
	"HorizontalPodAutoscaler": func(_ *Tenant, d dice, name string) object {
		scaler := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: d.meta(name)}
		scaler.Spec.MaxReplicas = 1
		scaler.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "none"}
		return scaler
	},
}

// Large are the kinds of objects that the daemon or a command reads, and that can be large.
func Large() []string { return slices.Sorted(maps.Keys(large)) }

var ours = &metav1.LabelSelector{MatchLabels: map[string]string{"hostile": "0"}}

func (d dice) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:            name,
		Labels:          maps.Clone(ours.MatchLabels),
		Annotations:     d.annotations(),
		OwnerReferences: d.owners(d.IntN(3)),
	}
}

// aNode selects one of the nodes that are interrupted.
func (t *Tenant) aNode(d dice) map[string]string {
	return map[string]string{corev1.LabelHostname: pick(d, t.Nodes...)}
}

// deployment is of one pod, which has the label app.
func deployment(meta metav1.ObjectMeta, template corev1.PodTemplateSpec) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(1)),
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": meta.Name}},
		Template: template,
	}}
}

// template is large. Of a plain object the metadata can be instead, as kube-controller-manager writes
// templates as JSON whenever it looks at them, as at all DaemonSets when a node changes.
func (d dice) template(instead *metav1.ObjectMeta) corev1.PodTemplateSpec {
	p := corev1.PodTemplateSpec{}
	p.Labels, p.Annotations = maps.Clone(ours.MatchLabels), d.annotations()
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: "fake"}}
	if d.plain && instead != nil {
		d.fill(instead, d.size)
		d.size = 0
	}
	d.swell(&p.ObjectMeta, &p.Spec, d.size)
	return p
}

func (d dice) text(size int) string {
	if d.plain {
		return strings.Repeat("\x1b", size/sixfold)
	}
	return strings.Repeat("x", size)
}

// event is about one of the tenant's pods, or of somebody else's, and says that it is ours.
func (t *Tenant) event(d dice, name string, size int) object {
	about := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: t.Namespace, Name: d.odd(), UID: types.UID(d.odd())}
	if len(t.Victims) > 0 && d.IntN(2) == 0 {
		p := pick(d, t.Victims...)
		about.Name, about.UID = p.Name, p.UID
	}
	now := metav1.Now()
	return &corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: name, Annotations: map[string]string{"spot-handler/node": pick(d, t.Nodes...)}},
		InvolvedObject:      about,
		Type:                "Warning",
		Reason:              pick(d, "EvictionBlocked", "PodLeft", d.odd()),
		Message:             d.odd() + d.text(size),
		ReportingController: "spot-handler",
		ReportingInstance:   "x",
		Source:              corev1.EventSource{Component: d.odd(), Host: d.odd()},
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1 << 30,
	}
}

// pod is one on a node that is interrupted, with receivers that hang, and peers.
func (t *Tenant) pod(d dice, name string, size int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: d.meta(name)}
	p.Labels = d.gangLabels()
	p.Labels["hostile"] = fmt.Sprint(d.IntN(90))
	p.Annotations["e2e.spot-handler/ip"] = "127.0.0.1"
	p.Annotations["spot-handler/notice"] = pick(d, t.Hanging, t.Hanging+"/never", d.odd())
	p.Spec.Containers = []corev1.Container{{Name: "app", Image: "fake"}}
	p.Spec.NodeName = pick(d, t.Nodes...)
	if size > 0 {
		d.swell(&p.ObjectMeta, &p.Spec, size/2) // kwok writes its status beside it
	}
	d.hold(&p.ObjectMeta)
	d.unselected(&p.ObjectMeta)
	return p
}

// hold has a plain pod stay as long as it can, which is not read where annotations are longer than what is
// read of them.
func (d dice) hold(of *metav1.ObjectMeta) {
	if d.plain {
		dropLong(of)
		of.Annotations["spot-handler/when"] = "last"
	}
}

// unselected makes sure that no large object selects a plain pod. Whenever a selected pod changes,
// kube-controller-manager goes through all that select it: with 200 StatefulSets, for half a minute.
func (d dice) unselected(of *metav1.ObjectMeta) {
	if d.plain {
		delete(of.Labels, "hostile")
	}
}

// decoy is a pod that says it is spot-handler.
func (t *Tenant) decoy(d dice, name string) object {
	p := &corev1.Pod{}
	p.Name, p.Annotations = name, d.annotations()
	p.Labels = map[string]string{
		"app.kubernetes.io/name":      "spot-handler",
		"app.kubernetes.io/instance":  "spot-handler",
		"app.kubernetes.io/component": pick(d, "queue", "imds", "drain"),
		"helm.sh/chart":               "spot-handler-1.0.0",
	}
	p.Spec.Containers = []corev1.Container{{Name: "spot-handler", Image: "registry.example.com/spot-handler:1", Args: []string{
		pick(d, "queue", "drain", "imds"),
		"--pod-namespace=kube-system" + pick(d, "", d.odd()),
		"--queue-url=" + d.odd(),
		"--webhook-url=http://127.0.0.1:1/" + d.odd(),
		"--webhook-template=" + d.odd(),
		"--webhook-headers-file=" + pick(d, "/dev/zero", "/dev/stdin", d.odd()),
		"--fallback-nodepool=a=" + d.odd(),
		"--margin=" + pick(d, "1h", "-1s", d.odd()),
		"--managed-nodes=" + d.odd(),
	}}}
	p.Spec.NodeName = pick(d, "", pick(d, t.Nodes...))
	return p
}
