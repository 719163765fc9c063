package hostile

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/controlplane"
)

// Tenant has the built-in role edit in one namespace, and writes what the API server takes: the
// largest and oddest objects of every kind that the daemon or a command reads. Its fields are set
// before it writes; its methods are safe for concurrent use.
type Tenant struct {
	Namespace string
	Nodes     []string     // that are interrupted; its pods are on them
	Canary    string       // the file that a hostile name has made where a shell has run it
	Hanging   string       // port of receivers that never answer
	Victims   []corev1.Pod // of others, about which it writes Events

	// Plain has large objects be one long text of escape characters, beside as much in small pieces
	// as is kept of an object, and pods stay as long as they can. The API server takes a second for each
	// of the others, and much memory.
	Plain bool

	client   kubernetes.Interface // with the tenant's permissions
	operator kubernetes.Interface // for what the role does not let it write
	seed     uint64

	mu      sync.Mutex
	written map[string]int
	refused map[string]string
}

// NewTenant gives the namespace, which it creates, to a tenant.
func NewTenant(ctx context.Context, cluster *controlplane.Cluster, namespace string, seed uint64) (*Tenant, error) {
	if err := cluster.CreateNamespace(ctx, namespace); err != nil {
		return nil, err
	}
	err := controlplane.Create(ctx, cluster.Client, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: namespace}},
	})
	if err != nil {
		return nil, err
	}
	config, err := cluster.ServiceAccountConfig(ctx, namespace, "default", "")
	if err != nil {
		return nil, err
	}
	config.WarningHandler = rest.NoWarnings{} // a hundred thousand for some of the objects
	config.ContentType, config.QPS = "application/vnd.kubernetes.protobuf", -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Tenant{
		Namespace: namespace,
		client:    client,
		operator:  cluster.Client,
		seed:      seed,
		written:   map[string]int{},
		refused:   map[string]string{},
	}, nil
}

// write writes one object of the kind, smaller if it is too large. What the API server refuses is
// part of what is tried.
func (t *Tenant) write(ctx context.Context, kind string, number int) {
	draw := large[kind]
	if draw == nil {
		draw = small[kind]
	}
	client := t.client
	if kind == "ResourceQuota" { // which the role edit only reads
		client = t.operator
	}
	name := fmt.Sprintf("%s-%d", strings.ToLower(strings.ReplaceAll(kind, " ", "-")), number)
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var err error
	for size := largest; size > largest/2; size = size * 9 / 10 {
		object := draw(t, dice{rand.New(rand.NewPCG(t.seed, uint64(number))), t.Canary, size, t.Plain}, name)
		object.SetNamespace(t.Namespace)
		err = controlplane.Create(ctx, client, object)
		if err == nil || !apierrors.IsRequestEntityTooLargeError(err) && !strings.Contains(err.Error(), "too large") {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		text := err.Error()
		t.refused[kind] = text[:min(len(text), 300)]
		return
	}
	if err == nil {
		t.written[kind]++
	}
}

// Fill writes as many of each kind, several at a time.
func (t *Tenant) Fill(ctx context.Context, each map[string]int) {
	var writes errgroup.Group
	writes.SetLimit(4)
	for i, kind := range slices.Concat(Large(), slices.Sorted(maps.Keys(small))) {
		for j := range each[kind] {
			this := 1000*i + j
			writes.Go(func() error {
				t.write(ctx, kind, this)
				return nil
			})
		}
	}
	_ = writes.Wait()
}

// GoOn writes more, of any kind, one after the other, until ctx ends.
func (t *Tenant) GoOn(ctx context.Context, every time.Duration) {
	kinds := slices.Concat(Large(), slices.Sorted(maps.Keys(small)))
	d := rand.New(rand.NewPCG(t.seed, 1<<62))
	for number := 1_000_000; ctx.Err() == nil; number++ {
		t.write(ctx, kinds[d.IntN(len(kinds))], number)
		select {
		case <-ctx.Done():
		case <-time.After(every):
		}
	}
}

// Written is how many objects of each kind the API server has taken.
func (t *Tenant) Written() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.written)
}

func (t *Tenant) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("the tenant wrote %v; refused, the last of each kind: %q", t.written, t.refused)
}
