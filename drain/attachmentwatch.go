package drain

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/rs/zerolog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

var attachmentResource = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}

const byNode = "node"

// attachmentWatch watches VolumeAttachments while a node with pods with volumes is drained:
// a volume that is still attached to the old node holds up the pod's successor. The API
// cannot select those of one node, so there is one watch for all.
type attachmentWatch struct {
	dynamic dynamic.Interface
	notify  func(node string)
	logger  zerolog.Logger

	mu         sync.Mutex
	users      map[string]struct{} // nodes
	stop       context.CancelFunc  // nil: not watched
	store      cache.Indexer
	controller cache.Controller
	forbidden  bool
}

func newAttachmentWatch(opts Options) *attachmentWatch {
	return &attachmentWatch{dynamic: opts.Dynamic, notify: opts.Notify, logger: opts.Logger, users: map[string]struct{}{}}
}

// use watches on behalf of the node, until leave.
func (a *attachmentWatch) use(ctx context.Context, node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return // the node's drain has ended
	}
	a.users[node] = struct{}{}
	if a.stop != nil || a.forbidden {
		return
	}
	ctx, a.stop = context.WithCancel(context.WithoutCancel(ctx))
	tell := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		node, _ := nodeAndVolume(obj)
		a.mu.Lock()
		_, uses := a.users[node]
		a.mu.Unlock()
		if uses {
			a.notify(node)
		}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: dynamicWatch(a.dynamic, attachmentPages{a.dynamic.Resource(attachmentResource)}, func(*metav1.ListOptions) {}, a.refused, a.logger),
		ObjectType:    &unstructured.Unstructured{},
		Transform:     asAttachment,
		Indexers: cache.Indexers{byNode: func(obj any) ([]string, error) {
			node, _ := nodeAndVolume(obj)
			return []string{node}, nil
		}},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: tell, DeleteFunc: tell},
	})
	a.store, a.controller = store.(cache.Indexer), controller
	go controller.RunWithContext(ctx)
	go onSync(ctx, controller, func() {
		for _, node := range a.using() {
			a.notify(node)
		}
	})
}

// leave ends the watch with its last user.
func (a *attachmentWatch) leave(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.users, node)
	if len(a.users) > 0 {
		return
	}
	a.forbidden = false // ask again the next time
	if a.stop != nil {
		a.stop()
		a.stop, a.store, a.controller = nil, nil, nil
	}
}

// using lists the nodes on whose behalf it watches.
func (a *attachmentWatch) using() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.users))
}

// of lists the PersistentVolumes that are attached to the node; known is false until the
// watch has shown them. If we have no right to read them there are none: the pods have
// gone, which is what counts.
func (a *attachmentWatch) of(node string) (volumes []string, known bool) {
	a.mu.Lock()
	_, uses := a.users[node]
	store, controller := a.store, a.controller
	a.mu.Unlock()
	switch {
	case !uses || store == nil:
		return nil, true
	case !controller.HasSynced():
		return nil, false
	}
	found, err := store.ByIndex(byNode, node)
	if err != nil {
		return nil, true // without the index there is no watch at all
	}
	for _, obj := range found {
		if _, volume := nodeAndVolume(obj); volume != "" {
			volumes = append(volumes, volume)
		}
	}
	return volumes, true
}

// refused ends the watch: nobody waits for volumes any more.
func (a *attachmentWatch) refused(err error) {
	a.mu.Lock()
	again := a.forbidden
	a.forbidden = true
	if a.stop != nil {
		a.stop()
		a.stop, a.store, a.controller = nil, nil, nil
	}
	a.mu.Unlock()
	if again {
		return
	}
	a.logger.Warn().Err(err).Msg("watch VolumeAttachments; drains do not wait for volumes")
	for _, node := range a.using() {
		a.notify(node)
	}
}

// attachmentPages lists VolumeAttachments page by page and keeps of each page only what asAttachment
// reads. It serves API servers that do not stream them at the start of a watch: in one answer 10,000
// take 80 MB.
type attachmentPages struct{ dynamic.ResourceInterface }

const attachmentPage = 250

// List does not pass on the caller's resource version: the API server never pages what it answers
// from its cache, and what we read instead is never older.
func (p attachmentPages) List(ctx context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	o.Limit, o.ResourceVersion, o.ResourceVersionMatch = attachmentPage, "", ""
	all := &unstructured.UnstructuredList{}
	for {
		page, err := p.ResourceInterface.List(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			all.Items = append(all.Items, unstructured.Unstructured{Object: map[string]any{
				"metadata": map[string]any{"name": item.GetName(), "uid": string(item.GetUID()), "resourceVersion": item.GetResourceVersion()},
				"spec":     item.Object["spec"],
			}})
		}
		all.SetResourceVersion(page.GetResourceVersion())
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return all, nil
		}
	}
}

// attachment is what is kept of each of the cluster's VolumeAttachments.
type attachment struct {
	metav1.ObjectMeta // name, UID and resource version

	node   string
	volume string // the PersistentVolume; empty for one that a pod names itself
}

func asAttachment(obj any) (any, error) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	a := &attachment{ObjectMeta: metav1.ObjectMeta{Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion()}}
	a.node, _, _ = unstructured.NestedString(u.Object, "spec", "nodeName")
	a.volume, _, _ = unstructured.NestedString(u.Object, "spec", "source", "persistentVolumeName")
	return a, nil
}

// nodeAndVolume reads the node and the PersistentVolume of what is kept.
func nodeAndVolume(obj any) (node, volume string) {
	if a, ok := obj.(*attachment); ok {
		return a.node, a.volume
	}
	return "", ""
}
