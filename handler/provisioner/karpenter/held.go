package karpenter

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Held says why a replacement is on demand still.
type Held struct {
	Until time.Time `json:"until"` // when it goes back to spot at the earliest
	Why   string    `json:"why"`
}

// maxHeld bounds, in bytes, what is read back from a Node, whose kubelet may have written it.
const maxHeld = 4 << 10

// HeldOf reads what a Node says about why it is held. It is the zero value if that cannot be read.
func HeldOf(node *corev1.Node) Held {
	var h Held
	if text := node.Annotations[HeldAnnotation]; len(text) > maxHeld || json.Unmarshal([]byte(text), &h) != nil {
		return Held{}
	}
	h.Why = interruption.Clip(h.Why)
	return h
}

// show writes on the Node why it is held, if that is news.
func (k *keeper) show(ctx context.Context, claim *Claim, hold hold) error {
	node, err := k.nodeOf(ctx, claim)
	if err != nil || node == nil || hold.why == "" {
		return err
	}
	now := Held{Until: hold.until.UTC().Truncate(time.Second), Why: interruption.Clip(hold.why)}
	if was := HeldOf(node); was.Why == now.Why && was.Until.Sub(now.Until).Abs() <= heldCheck {
		return nil
	}
	text, _ := json.Marshal(now) // a time and a text
	quoted, _ := json.Marshal(string(text))
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, HeldAnnotation, quoted)
	_, err = k.b.opts.Nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch Node %q: %w", node.Name, err)
	}
	return nil
}
