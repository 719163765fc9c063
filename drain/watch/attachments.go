package watch

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

var attachmentResource = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}

// watchAttachments watches VolumeAttachments: a volume that is still attached to the old node holds up the
// pod's replacement. The API cannot select those of one node, so there is one watch for all.
func (c *Cluster) watchAttachments(ctx context.Context, report func(plan.Event)) {
	ctx, stop := context.WithCancel(ctx)
	w := rewatch.New(rewatch.Options[*unstructured.Unstructured, *attachment]{
		Source: rewatch.Of(c.opts.Dynamic.Resource(attachmentResource), func(*metav1.ListOptions) {}),
		Keep:   asAttachment,
		Changed: func(before, after *attachment) {
			one := after
			if one == nil {
				one = before
			}
			report(plan.AttachmentSeen{Name: one.Name, Node: one.node, Volume: one.volume, Gone: after == nil})
		},
		Synced: func() { report(plan.AttachmentsListed{}) },
		Refused: func(err error) { // nobody waits for volumes any more
			c.opts.Logger.Warn().Err(err).Msg("watch VolumeAttachments; drains do not wait for volumes")
			report(plan.AttachmentsForbidden{})
			stop()
		},
		Logger: c.opts.Logger,
	})
	go w.Run(ctx)
}

// attachment is what is kept of each of the cluster's VolumeAttachments.
type attachment struct {
	metav1.ObjectMeta // name, UID and resource version

	node   string
	volume string // the PersistentVolume; empty for one that a pod names itself
}

func asAttachment(u *unstructured.Unstructured) *attachment {
	a := &attachment{ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()}}
	a.node, _, _ = unstructured.NestedString(u.Object, "spec", "nodeName")
	a.volume, _, _ = unstructured.NestedString(u.Object, "spec", "source", "persistentVolumeName")
	return a
}
