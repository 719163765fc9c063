package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// volumesElsewhere: a volume cannot leave its zone, and the fallback pools have no nodes there.
func volumesElsewhere(s Snapshot) (found []Finding) {
	for of, theirs := range s.byOwner {
		for _, o := range s.Outlooks {
			stuck := slices.DeleteFunc(slices.Clone(theirs), func(p *Pod) bool {
				return p.Zone == "" || !slices.Contains(o.Barred, p.Zone) || !s.isOn(*p, o.Pool)
			})
			if len(stuck) == 0 {
				continue
			}
			found = append(found, Finding{
				Namespace: of.Namespace, Object: of.Object, Pods: len(stuck),
				What: fmt.Sprintf("has a volume in %s, where NodePool %s, the fallback of %s, has no nodes", stuck[0].Zone, strings.Join(o.Fallbacks, ", "), o.Pool),
				Why:  "its pods cannot run in another zone: once their node is lost, they wait for spot instances in this one",
				Fix:  allowZones(o),
			})
		}
	}
	return found
}

// zoneKeys are the labels by which volumes name the zone of their nodes: that of Kubernetes, and
// that of the driver of EBS.
// https://github.com/kubernetes-sigs/aws-ebs-csi-driver/blob/master/docs/install.md
var zoneKeys = []string{corev1.LabelTopologyZone, "topology.ebs.csi.aws.com/zone"}

// volumes reads which claims are bound to a zone.
func (r Reader) volumes(ctx context.Context, s *Snapshot) error {
	s.bound = map[string]string{}
	return r.lister(ctx)(schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}, "", func(u *unstructured.Unstructured) {
		v := &corev1.PersistentVolume{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, v); err != nil || v.Spec.ClaimRef == nil {
			return
		}
		if zone := onlyZone(v); zone != "" {
			s.bound[v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name] = zone
		}
	})
}

// onlyZone is the zone that a volume cannot leave, or empty.
func onlyZone(v *corev1.PersistentVolume) string {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return ""
	}
	zones := map[string]bool{}
	only := ""
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		here := false
		for _, e := range term.MatchExpressions {
			if slices.Contains(zoneKeys, e.Key) && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) > 0 {
				here = true
				for _, zone := range e.Values {
					zones[zone], only = true, zone
				}
			}
		}
		if !here {
			return "" // this term takes any
		}
	}
	if len(zones) != 1 {
		return ""
	}
	return only
}

// zoneOf is the zone that the pod's volumes are bound to, or empty.
func (s Snapshot) zoneOf(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		if zone := s.bound[pod.Namespace+"/"+v.PersistentVolumeClaim.ClaimName]; zone != "" {
			return zone
		}
	}
	return ""
}
