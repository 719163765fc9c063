package controlplane

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
)

// csiDriver does not exist: Attacher stands in for its parts.
const csiDriver = "e2e.spot-handler"

// AttachesVolumes is for BareNodes.Annotations: the control plane attaches and detaches
// volumes only for nodes with this annotation. On real nodes the kubelet asks for that.
var AttachesVolumes = map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}

// CreateClaim creates a PersistentVolumeClaim (in "default" by default), bound to a
// volume of the same name. Pods mount it as the claim of that name.
func (c *Cluster) CreateClaim(ctx context.Context, namespace, name string, mode corev1.PersistentVolumeAccessMode) error {
	namespace = cmp.Or(namespace, metav1.NamespaceDefault)
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes, none := []corev1.PersistentVolumeAccessMode{mode}, ""
	err := Create(ctx, c.Client, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: name},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: csiDriver, VolumeHandle: name},
			},
		},
	})
	if err != nil {
		return err
	}
	return Create(ctx, c.Client, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name, StorageClassName: &none,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	})
}

// Mount adds a claim to a pod.
func Mount(pod *corev1.PodSpec, claim string) {
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
}

// attacherFinalizer goes on attachments, as the real attacher's does: with it a deletion
// is a request to detach, and the attachment goes only when the finalizer is removed.
const attacherFinalizer = "external-attacher/e2e-spot-handler"

// WaitAttachments watches the VolumeAttachments until done returns true for those of the
// node, by their names.
func (c *Cluster) WaitAttachments(ctx context.Context, node string, done func(attachments []*storagev1.VolumeAttachment) bool) error {
	ctx, cancel := withWaitTimeout(ctx)
	defer cancel()
	factory := informers.NewSharedInformerFactory(c.Client, 0)
	attachments := factory.Storage().V1().VolumeAttachments()
	err := waitInformer(ctx, factory, attachments.Informer(), func() (bool, error) {
		var of []*storagev1.VolumeAttachment
		for _, object := range attachments.Informer().GetStore().List() {
			if a, ok := object.(*storagev1.VolumeAttachment); ok && a.Spec.NodeName == node {
				of = append(of, a)
			}
		}
		return done(of), nil
	})
	if err != nil {
		return fmt.Errorf("wait for volume attachments of node %q: %w", node, err)
	}
	return nil
}

// Attach marks an attachment's volume as attached, as the driver's attacher would.
func (c *Cluster) Attach(ctx context.Context, attachment string) error {
	api := c.Client.StorageV1().VolumeAttachments()
	for subresource, patch := range map[string]string{
		"":       `{"metadata":{"finalizers":["` + attacherFinalizer + `"]}}`,
		"status": `{"status":{"attached":true}}`,
	} {
		if _, err := api.Patch(ctx, attachment, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource); err != nil {
			return fmt.Errorf("attach %q: %w", attachment, err)
		}
	}
	return nil
}

// Detach marks the volume of an attachment that is being deleted as detached.
func (c *Cluster) Detach(ctx context.Context, attachment string) error {
	_, err := c.Client.StorageV1().VolumeAttachments().Patch(ctx, attachment, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("detach %q: %w", attachment, err)
	}
	return nil
}
