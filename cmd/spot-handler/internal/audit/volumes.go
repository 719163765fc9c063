package audit

import (
	"fmt"
	"slices"
	"strings"
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
