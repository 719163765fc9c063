package provisioner

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func limited(limits, used corev1.ResourceList) *nodePool {
	p := &nodePool{read: time.Now()}
	p.Name = "fallback"
	p.Spec.Limits, p.Status.Resources = limits, used
	return p
}

func cpu(s string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(s)}
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
			got := newLedger().room(limited(tt.limits, tt.used), tt.ask)
			if (tt.over == "") != (got == "") || !strings.Contains(got, tt.over) {
				t.Errorf("room() = %q, want %q", got, tt.over)
			}
		})
	}
}

// What a burst asks for at once cannot be in the pool's status yet.
func TestLedgerHoldsABurstToTheLimit(t *testing.T) {
	l, p := newLedger(), limited(cpu("100"), cpu("60"))
	var granted atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			if l.reserve(p, fmt.Sprintf("claim-%d", i), cpu("4")) == "" {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 10 {
		t.Errorf("%d orders of 4 in a room of 40, want 10", granted.Load())
	}
	other := limited(cpu("4"), nil)
	other.Name = "other"
	if reason := l.room(other, cpu("4")); reason != "" {
		t.Errorf("another pool: %s", reason)
	}
}

func TestLedgerForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		take := func(claim string) string { return l.reserve(limited(cpu("4"), nil), claim, cpu("4")) }
		if reason := take("a"); reason != "" {
			t.Fatal(reason)
		}
		if reason := take("a"); reason != "" {
			t.Errorf("the same order again: %s", reason)
		}
		if take("b") == "" {
			t.Error("second order was entered without room for it")
		}
		l.launched("a")
		time.Sleep(settle)
		if take("b") == "" {
			t.Error("a launched node stopped to count before the pool's status could show it")
		}
		time.Sleep(time.Second)
		if reason := take("b"); reason != "" {
			t.Errorf("after the launch was counted: %s", reason)
		}
		l.forget("b")
		if reason := take("c"); reason != "" {
			t.Errorf("after b was forgotten: %s", reason)
		}
		time.Sleep(maxOrder + time.Second)
		if reason := take("d"); reason != "" {
			t.Errorf("after c was too old: %s", reason)
		}
	})
}
