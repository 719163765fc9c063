package karpenter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"spot-handler/handler/provisioner"
)

func limited(limits, used corev1.ResourceList) *nodePool {
	p := &nodePool{}
	p.Name = "fallback"
	p.Spec.Limits, p.Status.Resources = limits, used
	return p
}

func cpu(s string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(s)}
}

// books is a ledger over an API server's claims of pool fallback.
type books struct {
	*testing.T
	*ledger
	client *dynamicfake.FakeDynamicClient
}

func newBooks(t *testing.T) *books {
	t.Helper()
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{nodeClaimResource: "NodeClaimList"})
	return &books{T: t, ledger: newLedger(client), client: client}
}

// made is a claim that asks for some CPUs, may come to size, and has come to capacity.
func (b *books) made(name, asks, size, capacity string) {
	b.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim"}}
	u.SetName(name)
	u.SetLabels(map[string]string{nodePoolLabel: "fallback"})
	set(asks, "spec", "resources", "requests", "cpu")(u)
	if size != "" {
		u.SetAnnotations(map[string]string{sizeAnnotation: fmt.Sprintf(`{"cpu":%q}`, size)})
	}
	if capacity != "" {
		set(capacity, "status", "capacity", "cpu")(u)
	}
	if _, err := b.client.Resource(nodeClaimResource).Create(b.Context(), u, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
}

func (b *books) gone(name string) {
	b.Helper()
	if err := b.client.Resource(nodeClaimResource).Delete(b.Context(), name, metav1.DeleteOptions{}); err != nil {
		b.Fatal(err)
	}
}

// take reserves, and says what speaks against that.
func (b *books) take(p *nodePool, name, size string) string {
	b.Helper()
	full, err := b.reserve(b.Context(), p, name, cpu(size))
	if err != nil {
		b.Fatal(err)
	}
	return full
}

func TestExceeded(t *testing.T) {
	nodes := corev1.ResourceList{"nodes": resource.MustParse("3")}
	for name, tt := range map[string]struct {
		limits, used, ask corev1.ResourceList
		over              string
	}{
		"no limits":             {nil, cpu("100"), cpu("4"), ""},
		"room":                  {cpu("104"), cpu("100"), cpu("4"), ""},
		"no room":               {cpu("104"), cpu("100"), cpu("4001m"), "cpu: 100 used"},
		"nothing used yet":      {cpu("1"), nil, cpu("2"), "cpu: 0 used"},
		"limit of zero":         {cpu("0"), nil, cpu("1m"), "limit 0"},
		"over what is not ours": {corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}, nil, cpu("4"), ""},
		"nodes":                 {nodes, nodes, cpu("1"), "nodes: 3 used"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBooks(t)
			got, err := b.refusal(t.Context(), limited(tt.limits, tt.used), "new", tt.ask)
			if err != nil || (tt.over == "") != (got == "") || !strings.Contains(got, tt.over) {
				t.Errorf("room() = %q, %v; want %q", got, err, tt.over)
			}
		})
	}
}

// The claims count, whoever made them: with what they have, or may come to.
func TestLedgerCountsClaims(t *testing.T) {
	b := newBooks(t)
	b.made("launched", "1", "8", "2")
	b.made("ours", "1", "4", "")
	b.made("theirs", "3", "", "")
	b.made("edited", "1", "many", "")
	p := limited(cpu("20"), cpu("5")) // a status that is behind
	if got := b.take(p, "new", "10500m"); !strings.Contains(got, "cpu: 10 used, 10500m asked for, limit 20") {
		t.Errorf("reserve() = %q, want 10 used", got)
	}
	if got := b.take(limited(cpu("20"), cpu("12")), "new", "9"); !strings.Contains(got, "12 used") {
		t.Errorf("reserve() = %q, want the status where it is higher", got)
	}
	if got := b.take(p, "new", "10"); got != "" {
		t.Errorf("reserve() = %q, want room", got)
	}
}

// A node whose claim was made by a process that died before it could say so finds it
// again, also where that was the last that there was room for.
func TestLedgerHasRoomForWhatIsThere(t *testing.T) {
	b := newBooks(t)
	b.made("mine", "4", "", "")
	p := limited(cpu("4"), nil)
	if full := b.take(p, "mine", "4"); full != "" {
		t.Errorf("reserve() = %q, want room for the claim that is there", full)
	}
	if b.take(p, "another", "1") == "" {
		t.Error("room for another")
	}
}

// What a burst asks for at once is in no list and no status yet.
func TestLedgerHoldsABurstToTheLimit(t *testing.T) {
	b, p := newBooks(t), limited(cpu("100"), cpu("60"))
	var granted atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if full, err := b.reserve(t.Context(), p, fmt.Sprintf("claim-%d", i), cpu("4")); full == "" && err == nil {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 10 {
		t.Errorf("%d orders of 4 in a room of 40, want 10", granted.Load())
	}
	if n := len(b.client.Actions()); n != 1 {
		t.Errorf("%d calls, want one list", n)
	}
	other := limited(cpu("4"), nil)
	other.Name = "other"
	if reason, err := b.refusal(t.Context(), other, "new", cpu("4")); reason != "" || err != nil {
		t.Errorf("another pool: %s, %v", reason, err)
	}
}

func TestLedgerForgets(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		b, p := newBooks(t), limited(cpu("4"), nil)
		if full := b.take(p, "a", "4"); full != "" {
			t.Fatal(full)
		}
		if full := b.take(p, "a", "4"); full != "" {
			t.Errorf("the same order again: %s", full)
		}
		if b.take(p, "b", "4") == "" {
			t.Error("second order was entered without room for it")
		}
		b.made("a", "4", "", "2")
		if b.take(p, "b", "2") == "" {
			t.Error("counted with its capacity before that was read")
		}
		time.Sleep(poolTTL)
		if full := b.take(p, "b", "2"); full != "" {
			t.Errorf("next to 2 of 4: %s", full)
		}
		b.forget("b")
		if full := b.take(p, "c", "2"); full != "" {
			t.Errorf("after b was forgotten: %s", full)
		}
		b.gone("a")
		time.Sleep(maxUnlisted + poolTTL) // nobody has made c, and no event came
		if full := b.take(p, "d", "4"); full != "" {
			t.Errorf("after c was too old: %s", full)
		}
	})
}

// Whatever the order of requests, launches, losses and restarts, what there is of a
// pool never exceeds its limit.
func TestLedgerProperty(t *testing.T) {
	for seed := range uint64(30) {
		bubble(t, fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			b, limit := newBooks(t), int64(10+r.IntN(60))
			there := map[string]int64{}
			p := limited(cpu(fmt.Sprint(limit)), nil)
			for step := range 60 {
				name := fmt.Sprint("claim-", r.IntN(30))
				switch r.IntN(6) {
				case 0, 1, 2:
					size := int64(1 + r.IntN(8))
					if _, again := there[name]; !again && b.take(p, name, fmt.Sprint(size)) == "" {
						capacity := ""
						if r.IntN(2) == 0 { // Karpenter takes none larger than was thought
							capacity = fmt.Sprint(1 + r.Int64N(size))
						}
						b.made(name, "1", fmt.Sprint(size), capacity)
						there[name] = size
					}
				case 3:
					if _, ok := there[name]; ok {
						b.gone(name)
						b.forget(name)
						delete(there, name)
					}
				case 4:
					time.Sleep(time.Duration(r.IntN(20)) * time.Second)
				case 5: // another process
					b.ledger = newLedger(b.client)
				}
				sum := resource.Quantity{}
				list, err := b.client.Resource(nodeClaimResource).List(context.Background(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for i := range list.Items {
					sum.Add(decodeClaim(&list.Items[i]).size()[corev1.ResourceCPU])
				}
				if sum.Cmp(resource.MustParse(fmt.Sprint(limit))) > 0 {
					t.Fatalf("step %d: %s of %d", step, sum.String(), limit)
				}
			}
		})
	}
}

// A replacement that is requested takes room within the limits from the next one, and a forecast takes
// none: here is room for one.
func TestOnlyRequestsTakeRoom(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		pool := fallbackPool(t, set(map[string]any{"cpu": "101"}, "spec", "limits"))
		c := newCluster(t, Options{}, sourcePool(), pool, sourceNodeClaim())
		first, second := record(), record()
		second.Instance = "i-another"
		for range 2 {
			list, err := c.b.Weigh(t.Context(), interruptedNode(), second, need())
			if err != nil || list[0].Pool != "fallback" || list[0].Against != "" {
				t.Fatalf("Weigh() = %+v, %v", list, err)
			}
		}
		wantState(t, c.request(&first), provisioner.StateRequested, "")
		wantState(t, c.request(&second), provisioner.StateFailed, "leaves no room")
	})
}
