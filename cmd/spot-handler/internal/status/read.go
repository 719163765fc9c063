package status

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/drain/watch"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/karpenter"
)

// Reader reads a cluster with the permissions of the caller. It changes nothing.
type Reader struct {
	Nodes   NodeReader
	Core    rest.Interface // core/v1
	Policy  rest.Interface // policy/v1
	Dynamic dynamic.Interface
	// Offerings reads what is remembered of them.
	Offerings func(ctx context.Context) (*offerings.Memory, error)

	// Namespace, if it is set, is the only one whose pods the status of a node shows.
	Namespace string
	// Watch has the status shown again and again, until ctx ends, which is no error.
	Watch bool
}

// NodeReader reads Nodes, one or all.
type NodeReader interface {
	nodes.Client
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Node, error)
}

const (
	// atOnce is how many requests are under way at the same time.
	atOnce = 8
	// mostNodes is of how many nodes the pods are read: that is a request for each. Their
	// deadlines are the nearest.
	mostNodes = 200
	// mostHeld is how many of the replacements that are held are listed.
	mostHeld = 100
)

// List shows the status of all interruptions, from the Nodes as they are stored. An error says that
// the Nodes could not be read.
func (r Reader) List(ctx context.Context, show func(List) error) error {
	stored := r.allNodes
	if r.Watch {
		// The watch would try forever what the caller is not allowed to do.
		if _, err := r.Nodes.List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		watching, cancel := context.WithCancel(ctx)
		index, ended := nodes.New(r.Nodes, "", zerolog.Nop()), make(chan struct{})
		go func() { defer close(ended); _ = index.Run(watching) }()
		defer func() { cancel(); <-ended }()
		if index.Wait(ctx) != nil {
			return nil // ctx has ended
		}
		stored = func(context.Context) ([]*corev1.Node, error) { return index.All(), nil }
	}
	lost, missed, asked := offerings.New(), error(nil), time.Time{}
	read := func() (List, error) {
		all, err := stored(ctx)
		if time.Since(asked) >= everyOfferings && err == nil {
			lost, missed = r.Offerings(ctx)
			asked = time.Now()
		}
		list := r.listOf(ctx, all)
		if list.Offerings = lost.LastDay(); missed != nil {
			list.Unread = append(list.Unread, missed.Error())
		}
		return list, err
	}
	if !r.Watch {
		return once(show, read)
	}
	return repeat(ctx, everyList, show, read)
}

func (r Reader) allNodes(ctx context.Context) (all []*corev1.Node, err error) {
	list, err := nodes.List(ctx, r.Nodes, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// listOf is the status of the interruptions of these Nodes, which are all that there are.
func (r Reader) listOf(ctx context.Context, all []*corev1.Node) List {
	var mu sync.Mutex
	var unread []string
	pods := map[string][]*corev1.Pod{}
	var requests errgroup.Group
	requests.SetLimit(atOnce)
	live := slices.DeleteFunc(Of(time.Now(), all, nil), func(i Interruption) bool { return i.Over || i.Phase == "" })
	for _, i := range live[:min(len(live), mostNodes)] {
		requests.Go(func() error {
			theirs, err := watch.PodsOn(ctx, r.Core, i.Node)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				unread = append(unread, err.Error())
			} else {
				pods[i.Node] = theirs
			}
			return nil
		})
	}
	_ = requests.Wait() // what failed is in unread
	if more := len(live) - mostNodes; more > 0 {
		unread = append(unread, fmt.Sprintf("pods of %d more nodes, whose deadlines are later", more))
	}
	slices.Sort(unread)
	return List{
		Interruptions: Of(time.Now(), all, pods),
		Held:          heldOf(time.Now(), all),
		Unread:        console.Some(unread, 3), // each node has much the same
	}
}

// Held are the replacements that stay on demand until they can go back to the NodePools that they stand in for.
type Held struct {
	Replacements int     `json:"replacements"`
	NodeHours    float64 `json:"nodeHours"` // since their Nodes joined, in tenths
	// Oldest are mostHeld of them at most.
	Oldest []HeldReplacement `json:"oldest"`
}

// HeldReplacement is one of them.
type HeldReplacement struct {
	Node      string    `json:"node"`
	NodeClaim string    `json:"nodeClaim"`
	For       string    `json:"for"` // the NodePool that it stands in for
	Since     time.Time `json:"since"`
	// Until is when it goes back to spot at the earliest, and Why is why not earlier; zero and empty until the
	// leader has decided.
	Until time.Time `json:"until,omitzero"`
	Why   string    `json:"why,omitempty"`
}

func heldOf(now time.Time, all []*corev1.Node) *Held {
	var h Held
	age := time.Duration(0)
	for _, node := range all {
		if pool := node.Annotations[karpenter.StandsInAnnotation]; pool != "" {
			age += now.Sub(node.CreationTimestamp.Time)
			says := karpenter.HeldOf(node)
			held := HeldReplacement{
				Node:  node.Name,
				For:   interruption.Clip(pool),
				Since: node.CreationTimestamp.UTC(),
				Until: says.Until,
				Why:   says.Why,
			}
			if owner := karpenter.OwnerClaim(node); owner != nil {
				held.NodeClaim = owner.Name
			}
			h.Oldest = append(h.Oldest, held)
		}
	}
	if h.Replacements = len(h.Oldest); h.Replacements == 0 {
		return nil
	}
	h.NodeHours = math.Round(10*age.Hours()) / 10
	slices.SortFunc(h.Oldest, func(a, b HeldReplacement) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node)) })
	h.Oldest = h.Oldest[:min(len(h.Oldest), mostHeld)]
	return &h
}

// Node shows the status of one node. An error says that the Node could not be read.
func (r Reader) Node(ctx context.Context, name string, in InForce, show func(Node) error) error {
	read := func() (Node, error) { return r.node(ctx, name, in) }
	if !r.Watch {
		return once(show, read)
	}
	return repeat(ctx, everyNode, show, read)
}

func (r Reader) node(ctx context.Context, name string, in InForce) (Node, error) {
	node, err := r.Nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Node{}, fmt.Errorf("read node %s: %w", name, err)
	}
	var unread []string
	miss := func(err error) {
		if err != nil {
			unread = append(unread, err.Error())
		}
	}
	events, err := r.eventsOf(ctx, node)
	miss(err)
	t := sources{now: time.Now(), node: node, in: in, events: events, namespace: r.Namespace}
	if rec, err := nodes.Record(node); err == nil && !rec.Phase.Over() {
		t.refusals, err = r.refusals(ctx, node)
		miss(err)
		clients := watch.Clients{Pods: r.Core, Budgets: r.Policy, Dynamic: r.Dynamic}
		t.survey, err = watch.Survey(ctx, clients, name, in.interruption(rec, t.now), in.Policy)
		miss(err)
		t.surveyed = err == nil
		t.peers = r.peers(ctx, node, rec)
	}
	s := t.status()
	s.Unread = unread
	return s, nil
}

// peers are all other Nodes, where they matter: a node waits for its turn behind some.
func (r Reader) peers(ctx context.Context, node *corev1.Node, rec interruption.Record) []*corev1.Node {
	if rec.Kind != interruption.RebalanceRecommendation || rec.Phase != interruption.Waiting {
		return nil
	}
	all, _ := r.allNodes(ctx) // without them it is the only one
	return slices.DeleteFunc(all, func(n *corev1.Node) bool { return n.Name == node.Name })
}

// eventsOf are the Events about a Node, oldest first.
func (r Reader) eventsOf(ctx context.Context, node *corev1.Node) ([]corev1.Event, error) {
	list := cluster.Lister{
		Client:    r.Core,
		Namespace: metav1.NamespaceDefault,
		Fields:    "involvedObject.kind=Node,involvedObject.name=" + node.Name,
	}
	events, err := eventsIn(ctx, list, "node "+node.Name, func(*corev1.Event) bool { return true })
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return events, err
}

// refusals are the Events that say why evictions from the node were refused.
func (r Reader) refusals(ctx context.Context, node *corev1.Node) ([]corev1.Event, error) {
	list := cluster.Lister{Client: r.Core, Namespace: r.Namespace, Fields: "reason=" + notify.ReasonEvictionBlocked}
	return eventsIn(ctx, list, "refused pods", func(e *corev1.Event) bool { return e.Annotations[notify.AnnotationNode] == node.Name })
}

func eventsIn(ctx context.Context, list cluster.Lister, of string, wanted func(*corev1.Event) bool) (events []corev1.Event, err error) {
	err = cluster.EachOf(ctx, list, corev1.SchemeGroupVersion.WithResource("events"), "", func(e *corev1.Event) *corev1.Event {
		if !wanted(e) {
			return nil
		}
		return cluster.Event(e)
	}, func(e *corev1.Event) { events = append(events, *e) })
	if err != nil {
		err = fmt.Errorf("the Events of %s: %w", of, err)
	}
	return events, err
}

const (
	// everyList and everyNode are how often the status is worked out again. Nodes are watched; pods
	// are read each time, from the API server's cache.
	everyList = time.Second
	everyNode = 2 * time.Second
	// everyOfferings is how often lost offerings are read, which are written as often at most.
	everyOfferings = time.Minute
)

// once shows what is read now.
func once[T any](show func(T) error, read func() (T, error)) error {
	value, err := read()
	if err != nil {
		return err
	}
	return show(value)
}

// repeat shows what is read now and at every tick, until that fails or ctx ends.
func repeat[T any](ctx context.Context, every time.Duration, show func(T) error, read func() (T, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		value, err := read()
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = show(value)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
