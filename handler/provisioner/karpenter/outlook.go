package karpenter

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/room"
)

// Outlook is what awaits the spot nodes of a NodePool when EC2 takes them: what a [Backend]
// would do, judged before it has to. Of what their pods need only the zone counts.
type Outlook struct {
	Pool  string
	Zones map[string]int // its spot nodes in each

	// Named is the pool that the operator has named to replace these nodes, and By says where;
	// empty if nobody has.
	Named, By string
	// Missing says why there is no fallback pool, and Refused why the one that is named cannot
	// be used. Both are empty if there is one.
	Missing, Refused string
	// Fallbacks are the pools that would be asked, the best first.
	Fallbacks []string
	// SpotOnly says that the one that is named has no on-demand instances.
	SpotOnly bool
	// Barred are the zones of these nodes in which no fallback may have any.
	Barred []string
	// Elsewhere are zones in which this pool may have no nodes and others have spot nodes, and OwnZones
	// is the path of its own zones, as ZoneValues is.
	Elsewhere []string
	OwnZones  string
	// Instead is the best of the pools that would suit without being named, where the one that is
	// named is of no use; empty if there is none.
	Instead string

	// Largest is the offering that most of these nodes share, and Sharing is how many do.
	Largest offerings.Offering
	Sharing int
	// Unplaced is how many nodes of Largest would get no replacement if all were lost at once,
	// and Full says which limits leave no room. Raise is what they have to be in the first of
	// Fallbacks, so that it takes those too.
	Unplaced int
	Full     string
	Raise    corev1.ResourceList

	// CapacityTypes and ZoneValues are the paths at which a JSON patch adds a value to what the
	// first of Fallbacks, or the pool itself if there is none, requires of the labels for capacity
	// type and zone; empty if it does not list values.
	CapacityTypes, ZoneValues string
}

// Outlooks are those of all NodePools that have spot nodes or may have some, by name. Without
// Karpenter there are none. NodeClaims are read page by page, and only sums are kept. If they
// cannot be read, the error says so, and what follows from the pools alone is returned all the
// same. The flags are [Options.FallbackNodePools].
func Outlooks(ctx context.Context, client dynamic.Interface, flags map[string]string) ([]Outlook, error) {
	var all []*nodePool
	err := eachPage(ctx, client, nodePoolResource, "", func(u *unstructured.Unstructured) { all = append(all, decodePool(u)) })
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *nodePool) int { return cmp.Compare(a.Name, b.Name) })
	fleet, err := readFleet(ctx, client)
	var found []Outlook
	for _, pool := range all {
		if len(fleet.spot[pool.Name]) > 0 || constraintOn(capacityTypeLabel, pool.Spec.Template.Spec.Requirements).Allows(spot) {
			found = append(found, outlook(pool, all, fleet, flags))
		}
	}
	return found, err
}

// fleet is what the NodeClaims of a cluster come to.
type fleet struct {
	used map[string]corev1.ResourceList               // by pool, as the ledger counts
	spot map[string]map[offerings.Offering]*spotNodes // by pool
}

type spotNodes struct {
	count  int
	labels map[string]string   // of one of them
	size   corev1.ResourceList // of the largest
}

func readFleet(ctx context.Context, client dynamic.Interface) (fleet, error) {
	f := fleet{used: map[string]corev1.ResourceList{}, spot: map[string]map[offerings.Offering]*spotNodes{}}
	err := eachPage(ctx, client, nodeClaimResource, "", func(u *unstructured.Unstructured) { f.add(decodeClaim(u)) })
	if err != nil {
		return fleet{}, err
	}
	return f, nil
}

func (f fleet) add(claim *Claim) {
	pool := claim.Labels[nodePoolLabel]
	if f.used[pool] == nil {
		f.used[pool] = corev1.ResourceList{}
	}
	room.Add(f.used[pool], withNode(claim.size()))
	if claim.Labels[capacityTypeLabel] != spot || !claim.DeletionTimestamp.IsZero() {
		return
	}
	if f.spot[pool] == nil {
		f.spot[pool] = map[offerings.Offering]*spotNodes{}
	}
	of := offerings.Offering{Type: claim.Labels[corev1.LabelInstanceTypeStable], Zone: claim.Labels[corev1.LabelTopologyZone]}
	if f.spot[pool][of] == nil {
		f.spot[pool][of] = &spotNodes{labels: claim.Labels, size: corev1.ResourceList{}}
	}
	nodes := f.spot[pool][of]
	nodes.count++
	nodes.size = atLeast(atLeast(nodes.size, claim.Status.Capacity), claim.Status.Allocatable) // what an order counts for at most
}

// elsewhere are the zones in which other pools have spot nodes, and this one may have none.
func (f fleet) elsewhere(pool *nodePool) (zones []string) {
	own := constraintOn(corev1.LabelTopologyZone, pool.Spec.Template.Spec.Requirements)
	for name, nodes := range f.spot {
		for of := range nodes {
			if name != pool.Name && of.Zone != "" && !own.Allows(of.Zone) {
				zones = append(zones, of.Zone)
			}
		}
	}
	return distinct(zones)
}

// outlook judges one pool.
func outlook(source *nodePool, all []*nodePool, f fleet, flags map[string]string) Outlook {
	o := Outlook{Pool: source.Name, Zones: map[string]int{}}
	lost := replacedNode{node: &corev1.Node{}, pool: source.Name, source: source, rec: interruption.Record{Kind: interruption.SpotInterruption}}
	var largest *spotNodes
	for of, nodes := range f.spot[source.Name] {
		o.Zones[of.Zone] += nodes.count
		if cmp.Or(cmp.Compare(nodes.count, o.Sharing), cmp.Compare(o.Largest.Type, of.Type), cmp.Compare(o.Largest.Zone, of.Zone)) > 0 {
			o.Largest, o.Sharing, largest = of, nodes.count, nodes
			lost.node.Labels = nodes.labels
		}
	}

	o.OwnZones, o.Elsewhere = pathOfValues(source, corev1.LabelTopologyZone), f.elsewhere(source)
	lost.named, lost.namedBy = fallbackFor(lost, flags)
	o.Named, o.By = lost.named, lost.namedBy
	list, rejected := lost.fallbacks(all)
	switch none := lost.refusal(rejected).Reason; {
	case len(list) > 0:
		o.SpotOnly = o.Named != "" && hasNoOnDemand(list[0].pool, lost) != ""
	case poolNamed(all, o.Named) != nil:
		o.Refused = none
	default:
		o.Missing = none
	}
	orders := lost.rank(list)
	for _, order := range orders {
		o.Fallbacks = append(o.Fallbacks, order.pool.Name)
	}
	if len(orders) == 0 {
		o.CapacityTypes = pathOfValues(source, capacityTypeLabel)
		lost.named = ""
		if list, _ := lost.fallbacks(all); len(list) > 0 {
			o.Instead = lost.rank(list)[0].pool.Name
		}
		return o
	}
	best := orders[0].pool
	o.CapacityTypes, o.ZoneValues = pathOfValues(best, capacityTypeLabel), pathOfValues(best, corev1.LabelTopologyZone)
	for _, zone := range slices.Sorted(maps.Keys(o.Zones)) {
		if zone != "" && !slices.ContainsFunc(orders, func(c claimOrder) bool {
			return constraintOn(corev1.LabelTopologyZone, c.pool.Spec.Template.Spec.Requirements).Allows(zone)
		}) {
			o.Barred = append(o.Barred, zone)
		}
	}
	if largest != nil {
		o.place(f, largest, orders)
	}
	return o
}

// pathOfValues is where a JSON patch adds a value that the label may have; empty if the pool
// does not list them.
func pathOfValues(pool *nodePool, label string) string {
	i := slices.IndexFunc(pool.Spec.Template.Spec.Requirements, func(r requirement) bool { return r.Key == label && r.Operator == "In" })
	if i < 0 {
		return ""
	}
	return fmt.Sprintf("/spec/template/spec/requirements/%d/values/-", i)
}

// place orders the nodes all together, each in the first pool that has room, and says for how
// many there is none.
func (o *Outlook) place(f fleet, lost *spotNodes, orders []claimOrder) {
	ordered := map[string]corev1.ResourceList{}
	for i := range lost.count {
		var against []string
		placed := slices.ContainsFunc(orders, func(o claimOrder) bool {
			more := withNode(lost.size)
			room.Add(more, ordered[o.pool.Name])
			if over := exceeded(o.pool, f.used[o.pool.Name], more); over != "" {
				against = append(against, over)
				return false
			}
			ordered[o.pool.Name] = more
			return true
		})
		if placed {
			continue
		}
		o.Unplaced, o.Full = lost.count-i, joinReasons(against)
		best := orders[0].pool
		all := corev1.ResourceList{}
		room.Add(all, ordered[best.Name])
		for range o.Unplaced {
			room.Add(all, withNode(lost.size))
		}
		o.Raise = best.over(f.used[best.Name], all)
		return
	}
}
