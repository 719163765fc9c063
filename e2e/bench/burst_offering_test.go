package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/offerings"
)

const (
	// rememberedGoal is how many times as long a burst may take if its losses are remembered.
	rememberedGoal = 1.1
	// fewestPairs of bursts are measured: single ones differ by a half on a busy machine. If the goal
	// is missed then, chance may be why, and there are more, up to mostPairs. Odd numbers have a median.
	fewestPairs, mostPairs = 9, 31
	// beforeBurst: losses are written 5 s after the first of them, which then is within the burst.
	beforeBurst = 4 * time.Second
)

// BenchmarkCordonBurstOfAnOffering compares bursts of which the losses are remembered with bursts of
// nodes of no offering, of which nothing is remembered. A node is lost before each burst, so what is
// remembered is written to the ConfigMap within it. The two take turns, and which is first. The
// nodes have no pods: nothing is replaced, so nobody asks what was lost.
func BenchmarkCordonBurstOfAnOffering(b *testing.B) {
	for b.Loop() {
		f := newField(b, memoryBurst)
		f.lostBefore = true
		_, raw := f.rawRound("warm-up", sameConcurrency)
		var with, without []burst
		compare := func(what string, goal float64, of func(burst) float64) row {
			return row{
				what: fmt.Sprintf("%d notices, losses remembered, beside not: %s", memoryBurst, what), unit: "s",
				values: figures(with, of), peer: true, limit: figures(without, of), goal: goal, ofLimit: goal > 0,
			}
		}
		all := row{}
		for i := 0; i < fewestPairs || i < mostPairs && (i%2 == 0 || median(all.ratios()) > rememberedGoal); i++ {
			for _, f.unremembered = range []bool{i%2 == 0, i%2 == 1} {
				if f.unremembered {
					without = append(without, f.daemonRound(fmt.Sprintf("off-%d", i), raw))
				} else {
					with = append(with, f.daemonRound(fmt.Sprintf("on-%d", i), raw))
				}
			}
			all = compare("all cordoned", rememberedGoal, func(r burst) float64 { return r.all })
		}
		report(all)
		report(compare("notice to cordon, p99", 0, func(r burst) float64 { return r.p99 }))
		report(compare("processor time until all are cordoned", 0, func(r burst) float64 { return r.cpu }))
		b.Logf("all cordoned with %.2f, without %.2f, ratios %.2f", all.values, all.limit, all.ratios())
		if got := median(all.ratios()); got > rememberedGoal {
			b.Errorf("a burst of %d takes %.2f times as long if its losses are remembered, want at most %.2f", memoryBurst, got, rememberedGoal)
		}
	}
}

// loseBefore has the daemon deal with one more node. It returns beforeBurst after the cordon.
func (f *field) loseBefore(ctx context.Context, prefix string, queue *sqsemu.Queue) {
	f.Helper()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	node := f.create(ctx, prefix+"-before", 1)[0].Name
	watch, err := watchCordons(ctx, f.client)
	must(f.B, err)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, eventID(node), controlplane.InstanceID(node), time.Now()))
	seen, err := watch.waitCordoned(ctx, 1)
	must(f.B, err)
	must(f.B, watch.waitReleased(ctx, 1))
	f.remove(ctx, prefix+"-before") // else it would count in the burst
	pause(f.B, ctx, time.Until(seen[node].at.Add(beforeBurst)))
}

// writtenWithin reports whether the daemon has written its memory so many seconds from the time.
func writtenWithin(requests []request, from time.Time, seconds float64) bool {
	return slices.ContainsFunc(requests, func(r request) bool {
		after := r.StageTimestamp.Sub(from).Seconds()
		return r.Verb == "patch" && r.ObjectRef.Resource == "configmaps" && r.ObjectRef.Name == offerings.ConfigMap && after > 0 && after < seconds
	})
}

// forget empties the memory that daemons have kept.
func (f *field) forget(ctx context.Context) error {
	_, err := f.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Patch(ctx, offerings.ConfigMap, types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{})
	return err
}

// waitRemembered waits until the daemon has kept what was lost; if nothing is to be kept, it checks
// that nothing is.
func (f *field) waitRemembered(ctx context.Context, want bool) error {
	for {
		kept, err := f.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, offerings.ConfigMap, metav1.GetOptions{})
		switch got := err == nil && strings.Contains(kept.Data["offerings.json"], `"type":"m5.large"`); {
		case err != nil:
			return err
		case got != want && !want:
			return fmt.Errorf("losses of no offering are remembered: %v", kept.Data)
		case got == want:
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("losses are not remembered: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}
