package audit

import (
	"cmp"
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
	// Annotation says how targets drain, with Attributes such as a=1,b=2.
	Annotation, Attributes string
}

// targetsThatDrainTooLong: the load balancer lets connections to a target go on for longer than
// the target lives.
// https://docs.aws.amazon.com/elasticloadbalancing/latest/application/edit-target-group-attributes.html#deregistration-delay
func targetsThatDrainTooLong(s Snapshot, b Balanced) []Finding {
	selector := labels.SelectorFromSet(b.Selector) // one that is empty selects none
	targets := slices.DeleteFunc(slices.Clone(s.in[b.Namespace]), func(p *Pod) bool {
		return selector.Empty() || !selector.Matches(labels.Set(p.Labels))
	})
	lives := s.Grace
	what := "its targets, which are nodes, drain for %.0f s, and a notice leaves them %.0f s"
	if b.IP {
		what = "its targets drain for %.0f s, and its pods have %.0f s to end"
		for _, p := range targets {
			lives = min(lives, p.grace())
		}
	}
	delay, others := b.delay()
	if len(targets) == 0 || delay <= lives {
		return nil
	}
	attributes := append(others, fmt.Sprintf("%s=%.0f", delayAttribute, lives.Seconds()))
	return []Finding{{
		Pods: len(targets),
		What: fmt.Sprintf(what, delay.Seconds(), lives.Seconds()),
		Why:  "requests that take that long are cut off",
		Fix:  b.kubectl("annotate", "--overwrite", b.Annotation+"="+strings.Join(attributes, ",")),
	}}
}

// delay is how long a target drains, and the other attributes.
func (b Balanced) delay() (delay time.Duration, others []string) {
	delay = 300 * time.Second // AWS's default
	for pair := range strings.SplitSeq(b.Attributes, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		if key != delayAttribute && key != "" {
			others = append(others, key+"="+value)
		} else if seconds, err := strconv.Atoi(value); err == nil {
			delay = time.Duration(seconds) * time.Second
		}
	}
	return delay, others
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
	ingressPrefix     = "alb.ingress.kubernetes.io/"
	ingressAttributes = ingressPrefix + "target-group-attributes"
	ingressTargetType = ingressPrefix + "target-type"
	ingressClass      = "alb" // that its chart makes
	legacyClass       = "kubernetes.io/ingress.class"
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

// isALB reports whether the controller makes a load balancer of it: by its class, or by any
// annotation for the controller where the class has another name.
func (i *ingress) isALB() bool {
	for key := range i.Annotations {
		if strings.HasPrefix(key, ingressPrefix) {
			return true
		}
	}
	return cmp.Or(i.Spec.IngressClassName, i.Annotations[legacyClass]) == ingressClass
}

// balanced reads what the controller makes target groups of. Attributes of those that only a
// TargetGroupBinding names are in AWS, and not known.
func (r Reader) balanced(ctx context.Context, s *Snapshot) error {
	services := map[Owned]*service{}
	return errors.Join(optional(cluster.Each(ctx, r.Lists, cluster.Resource("", "services"), "", func(to *service) {
		services[Owned{to.Namespace, to.Name}] = to
		a, class := to.Annotations, to.Spec.LoadBalancerClass
		byController := class == serviceClass || a[serviceType] == "external" || a[serviceType] == "nlb-ip"
		if to.Spec.Type == string(corev1.ServiceTypeLoadBalancer) && byController {
			ip := a[serviceTargetType] == "ip" || a[serviceType] == "nlb-ip"
			s.Balanced = append(s.Balanced, Balanced{Owned{to.Namespace, "service/" + to.Name}, to.Spec.Selector, ip, serviceAttributes, a[serviceAttributes]})
		}
	})), optional(cluster.Each(ctx, r.Lists, cluster.Resource("networking.k8s.io", "ingresses"), "", func(i *ingress) {
		if !i.isALB() {
			return
		}
		backends := []backend{i.Spec.DefaultBackend}
		for _, rule := range i.Spec.Rules {
			for _, path := range rule.HTTP.Paths {
				backends = append(backends, path.Backend)
			}
		}
		for _, b := range backends {
			if to := services[Owned{i.Namespace, b.Service.Name}]; to != nil {
				s.balance(i, to)
			}
		}
	})))
}

// balance adds the targets that an Ingress makes of a Service, whose annotations override the
// Ingress's, unless these are known already.
func (s *Snapshot) balance(i *ingress, to *service) {
	b := Balanced{Owned{i.Namespace, "ingress/" + i.Name}, to.Spec.Selector, false, ingressAttributes, i.Annotations[ingressAttributes]}
	b.IP = cmp.Or(to.Annotations[ingressTargetType], i.Annotations[ingressTargetType]) == "ip"
	if own := to.Annotations[ingressAttributes]; own != "" {
		b.Object, b.Attributes = "service/"+to.Name, own
	}
	if !slices.ContainsFunc(s.Balanced, func(o Balanced) bool {
		return o.Owned == b.Owned && o.Annotation == b.Annotation && maps.Equal(o.Selector, b.Selector)
	}) {
		s.Balanced = append(s.Balanced, b)
	}
}
