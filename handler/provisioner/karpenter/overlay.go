package karpenter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/handler/offerings"
)

const (
	// surcharge is by how much an offering that was lost looks dearer to Karpenter: most others of its
	// size come before it, and it still looks cheaper than on-demand capacity, so that Karpenter does
	// not take that instead.
	surcharge = "+50%"

	// overlayWeight is the highest there is: for as long, it counts over the operator's own overlays.
	overlayWeight = 10000

	// maxOverlays bounds how many there are: when one changes, Karpenter looks at all of them, for each
	// instance type of each pool.
	maxOverlays = 50

	// overlaysEvery is how often the offerings that were lost are compared with the overlays, in memory.
	overlaysEvery = 2 * time.Second

	// ManagedLabel on a NodeOverlay says that it is ours.
	ManagedLabel = "app.kubernetes.io/managed-by=spot-handler"
)

// nodeOverlayResource is alpha: Karpenter has it since 1.7, and heeds it with the feature gate
// NodeOverlay.
// https://karpenter.sh/docs/concepts/nodeoverlays/
var nodeOverlayResource = schema.GroupVersionResource{Group: karpenterGroup, Version: "v1alpha1", Resource: "nodeoverlays"}

// raisePrices has Karpenter prefer other spot capacity to what was lost lately, for the pods that it
// places by itself: a NodeOverlay for each offering raises its price for as long. The overlays outlive
// ctx: the next process finds them by their label. Until the first loss there is one call, a list.
func (b *Backend) raisePrices(ctx context.Context) {
	var has map[string]bool // the overlays that there are, by name; nil: not known
	away := false           // Karpenter has none, or RBAC forbids it
	for pause := overlaysEvery; smithytime.SleepWithContext(ctx, pause) == nil; {
		pause = overlaysEvery
		lost := b.opts.Offerings.Lost()
		if _, known := b.opts.Offerings.LastLoss(""); !known || away && len(lost) == 0 {
			continue // not known: what an earlier process has left may be needed
		}
		var err error
		if has == nil {
			has, err = b.listOverlays(ctx)
		}
		if err == nil {
			err = b.syncOverlays(ctx, overlaysFor(lost), has)
		}
		if _, away = unavailable(err); err != nil && ctx.Err() == nil {
			has, pause = nil, recheck
			event := b.log.Warn()
			if away {
				event = b.log.Debug()
			}
			event.Err(err).Msg("prices of lost offerings not raised")
		}
	}
}

// overlaysFor are the overlays, by name, that the losses call for.
func overlaysFor(lost []offerings.Loss) map[string]*unstructured.Unstructured {
	want := map[string]*unstructured.Unstructured{}
	for _, of := range lost {
		name := strings.ToLower("spot-handler-" + of.Type + "-" + of.Zone)
		if len(want) == maxOverlays || len(validation.IsDNS1123Subdomain(name)) > 0 { // labels of a node can be any
			continue
		}
		require := func(key, value string) any {
			return map[string]any{"key": key, "operator": "In", "values": []any{value}}
		}
		label, value, _ := strings.Cut(ManagedLabel, "=")
		want[name] = &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": nodeOverlayResource.GroupVersion().String(),
			"kind":       "NodeOverlay",
			"metadata":   map[string]any{"name": name, "labels": map[string]any{label: value}},
			"spec": map[string]any{
				"requirements": []any{
					require(corev1.LabelInstanceTypeStable, of.Type), require(corev1.LabelTopologyZone, of.Zone), require(capacityTypeLabel, spot),
				},
				"priceAdjustment": surcharge, "weight": int64(overlayWeight),
			},
		}}
	}
	return want
}

func (b *Backend) listOverlays(ctx context.Context) (map[string]bool, error) {
	has := map[string]bool{}
	err := eachPage(ctx, b.opts.Dynamic, nodeOverlayResource, ManagedLabel, func(u *unstructured.Unstructured) { has[u.GetName()] = true })
	return has, err
}

// syncOverlays creates the overlays that are wanted, deletes the others, and keeps has up to date. One
// that fails does not stop the others.
func (b *Backend) syncOverlays(ctx context.Context, want map[string]*unstructured.Unstructured, has map[string]bool) (errs error) {
	client := b.opts.Dynamic.Resource(nodeOverlayResource)
	for name, overlay := range want {
		if has[name] {
			continue
		}
		if _, err := client.Create(ctx, overlay, metav1.CreateOptions{FieldManager: fieldManager}); err != nil {
			errs = errors.Join(errs, fmt.Errorf("create NodeOverlay %q: %w", name, err))
			continue
		}
		has[name] = true
	}
	for name := range has {
		if want[name] != nil {
			continue
		}
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !isMissing(err) {
			errs = errors.Join(errs, fmt.Errorf("delete NodeOverlay %q: %w", name, err))
			continue
		}
		delete(has, name)
	}
	return errs
}
