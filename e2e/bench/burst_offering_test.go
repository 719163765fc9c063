package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/offerings"
)

// BenchmarkCordonBurstOfAnOffering compares bursts of which the losses are remembered, and written to
// the ConfigMap when 5 s have passed, with bursts of nodes of no offering, of which nothing is
// remembered. They take turns, and which is first.
func BenchmarkCordonBurstOfAnOffering(b *testing.B) {
	for b.Loop() {
		f := newField(b, memoryBurst)
		_, raw := f.rawRound("warm-up", sameConcurrency)
		var with, without []burst
		for i := range 4 {
			for _, f.unremembered = range []bool{i%2 == 0, i%2 == 1} {
				if f.unremembered {
					without = append(without, f.daemonRound(fmt.Sprintf("off-%d", i), raw))
				} else {
					with = append(with, f.daemonRound(fmt.Sprintf("on-%d", i), raw))
				}
			}
		}
		of := fmt.Sprintf("%d notices, losses remembered, beside not: ", memoryBurst)
		for _, r := range []row{
			{what: of + "all cordoned", unit: "s", values: figures(with, func(r burst) float64 { return r.all }), peer: true, limit: figures(without, func(r burst) float64 { return r.all })},
			{what: of + "notice to cordon, p99", unit: "s", values: figures(with, func(r burst) float64 { return r.p99 }), peer: true, limit: figures(without, func(r burst) float64 { return r.p99 })},
			{what: of + "processor time until all are cordoned", unit: "s", values: figures(with, func(r burst) float64 { return r.cpu }), peer: true, limit: figures(without, func(r burst) float64 { return r.cpu })},
		} {
			report(r)
		}
	}
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

// figures are those of all rounds.
func figures(all []burst, of func(burst) float64) (values []float64) {
	for _, r := range all {
		values = append(values, of(r))
	}
	return values
}
