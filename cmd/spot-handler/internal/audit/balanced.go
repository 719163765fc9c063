package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/cmd/spot-handler/internal/cluster"
)

// Balanced is what AWS Load Balancer Controller makes targets of.
type Balanced struct {
	Owned // what has, or should have, the annotation
	// Selector selects the pods.
	Selector map[string]string
	// IP: the targets are pods, and not nodes.
	IP bool
	// Delay is how long a target drains.
	Delay time.Duration
	// Annotation says so, and Attributes are the others that it has.
	Annotation string
	Attributes []string
}

func eachTarget(check func(Snapshot, Balanced) []Finding) func(Snapshot) []Finding {
	return each(func(s Snapshot) []Balanced { return s.Balanced }, check)
}

// targetsThatDrainTooLong: the load balancer lets connections to a target go on for longer than
// the target lives.
// https://docs.aws.amazon.com/elasticloadbalancing/latest/application/edit-target-group-attributes.html#deregistration-delay
func targetsThatDrainTooLong(s Snapshot, b Balanced) []Finding {
	targets, lives := b.pods(s.labelled), s.Grace
	what := "its targets, which are nodes, drain for %.0f s, and a notice leaves them %.0f s"
	if b.IP {
		what = "its targets drain for %.0f s, and its pods have %.0f s to end"
		for _, p := range targets {
			lives = min(lives, p.grace())
		}
	}
	if len(targets) == 0 || b.Delay <= lives {
		return nil
	}
	attributes := append(slices.Clone(b.Attributes), fmt.Sprintf("%s=%.0f", delayAttribute, lives.Seconds()))
	return []Finding{{
		Pods: len(targets),
		What: fmt.Sprintf(what, b.Delay.Seconds(), lives.Seconds()),
		Why:  "requests that take that long are cut off",
		Fix:  b.kubectl("annotate", "--overwrite", b.Annotation+"="+strings.Join(attributes, ",")),
	}}
}

// label is one that pods of a namespace have: there can be thousands of both pods and targets.
type label struct{ namespace, key, value string }

// pods are those that the selector selects; one that is empty selects none.
func (b Balanced) pods(labelled map[label][]*Pod) (list []*Pod) {
	first := true
	for key, value := range b.Selector {
		if of := labelled[label{b.Namespace, key, value}]; first || len(of) < len(list) {
			list, first = of, false
		}
	}
	selector := labels.SelectorFromSet(b.Selector)
	return slices.DeleteFunc(slices.Clone(list), func(p *Pod) bool { return !selector.Matches(labels.Set(p.Labels)) })
}

const delayAttribute = "deregistration_delay.timeout_seconds"

// What AWS Load Balancer Controller calls things.
// https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/service/annotations/
// https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/ingress/annotations/
const (
	serviceAttributes = "service.beta.kubernetes.io/aws-load-balancer-target-group-attributes"
	serviceTargetType = "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"
	serviceType       = "service.beta.kubernetes.io/aws-load-balancer-type"
	serviceClass      = "service.k8s.aws/nlb"
	ingressAttributes = "alb.ingress.kubernetes.io/target-group-attributes"
	ingressTargetType = "alb.ingress.kubernetes.io/target-type"
	ingressController = "ingress.k8s.aws/alb"
	legacyClass       = "kubernetes.io/ingress.class"

	defaultDelay = 300 * time.Second // AWS's
)

// service is what is kept of a Service.
type service struct {
	cluster.Annotated `json:"metadata"`
	Spec              struct {
		Selector                map[string]string
		Type, LoadBalancerClass string
	}
}

// ingress is what is kept of an Ingress.
type ingress struct {
	cluster.Annotated `json:"metadata"`
	Spec              struct {
		IngressClassName string
		DefaultBackend   backend
		Rules            []struct {
			HTTP struct {
				Paths []struct{ Backend backend }
			}
		}
	}
}

type backend struct{ Service struct{ Name string } }

// balanced reads what the controller makes target groups of. Attributes of those that only a
// TargetGroupBinding names are in AWS, and not known.
func (r Reader) balanced(ctx context.Context, s *Snapshot) error {
	services := map[Owned]*service{}
	const network = "networking.k8s.io"
	classes := map[string]bool{"alb": true}
	return errors.Join(optional(cluster.Each(ctx, r.Lists, cluster.Resource("", "v1", "services"), "", func(to *service) {
		services[Owned{to.Namespace, to.Name}] = to
		a, class := to.Annotations, to.Spec.LoadBalancerClass
		if to.Spec.Type == string(corev1.ServiceTypeLoadBalancer) && (class == serviceClass || a[serviceType] == "external" || a[serviceType] == "nlb-ip") {
			ip := a[serviceTargetType] == "ip" || a[serviceType] == "nlb-ip"
			s.Balanced = append(s.Balanced, balancedBy(Owned{to.Namespace, "service/" + to.Name}, to.Spec.Selector, ip, serviceAttributes, a[serviceAttributes]))
		}
	})), optional(cluster.Each(ctx, r.Lists, cluster.Resource(network, "v1", "ingressclasses"), "", func(class *struct {
		cluster.Meta `json:"metadata"`
		Spec         struct{ Controller string }
	}) {
		classes[class.Name] = class.Spec.Controller == ingressController
	})), optional(cluster.Each(ctx, r.Lists, cluster.Resource(network, "v1", "ingresses"), "", func(i *ingress) {
		class := i.Spec.IngressClassName
		if class == "" {
			class = i.Annotations[legacyClass]
		}
		if !classes[class] {
			return
		}
		for _, name := range i.backends() {
			to, ok := services[Owned{i.Namespace, name}]
			if !ok {
				continue
			}
			a := maps.Clone(i.Annotations)
			if a == nil {
				a = map[string]string{}
			}
			object := "ingress/" + i.Name
			if to.Annotations[ingressAttributes] != "" {
				object = "service/" + name
			}
			maps.Copy(a, to.Annotations) // the Service's override the Ingress's
			b := balancedBy(Owned{i.Namespace, object}, to.Spec.Selector, a[ingressTargetType] == "ip", ingressAttributes, a[ingressAttributes])
			if !slices.ContainsFunc(s.Balanced, func(o Balanced) bool {
				return o.Owned == b.Owned && o.Annotation == b.Annotation && maps.Equal(o.Selector, b.Selector)
			}) {
				s.Balanced = append(s.Balanced, b)
			}
		}
	})))
}

// balancedBy reads the attributes that the annotation gives, such as a=1,b=2.
func balancedBy(of Owned, selector map[string]string, ip bool, annotation, attributes string) Balanced {
	b := Balanced{Owned: of, Selector: selector, IP: ip, Annotation: annotation, Delay: defaultDelay}
	for pair := range strings.SplitSeq(attributes, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		seconds, err := strconv.Atoi(value)
		switch {
		case key == delayAttribute && err == nil:
			b.Delay = time.Duration(seconds) * time.Second
		case key != "" && key != delayAttribute:
			b.Attributes = append(b.Attributes, key+"="+value)
		}
	}
	return b
}

// backends names the Services that an Ingress leads to.
func (i *ingress) backends() (names []string) {
	all := []backend{i.Spec.DefaultBackend}
	for _, rule := range i.Spec.Rules {
		for _, path := range rule.HTTP.Paths {
			all = append(all, path.Backend)
		}
	}
	for _, b := range all {
		if name := b.Service.Name; name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
