package reality

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sim"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// play plays the scene on a real control plane, and returns it as it began, for the simulator, and what became of all.
func play(t *testing.T, scene sim.Scene, karpenter bool) (sim.Scene, sim.Fates) {
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	r := &real{T: t, Cluster: controlplane.ForTest(t, controlplane.Options{Karpenter: karpenter}), scene: scene, karpenter: karpenter}
	r.build(ctx)
	scene = r.scene
	server := sqsemu.Start()
	t.Cleanup(server.Close)
	queue := server.Queue("spot-handler")
	d, err := daemon.Start(daemon.Options{
		Args:       append([]string{"queue", "--queue-url=" + queue.URL(), "--leader-elect=false"}, scene.Flags...),
		Kubeconfig: r.Kubeconfig, SQS: server.URL, Log: t.Output(),
	})
	r.must(err)
	t.Cleanup(d.Kill)
	r.must(d.WaitReady(ctx))

	r.began = time.Now().Truncate(time.Second).Add(2 * time.Second).Add(-begins) // deadlines are whole seconds
	r.scene.Pods = r.standing(ctx)
	until := ends(scene)
	account := r.follow(ctx, sim.NewAccount(r.scene, until))
	var all sync.WaitGroup
	for nth, l := range scene.Losses {
		r.lose(ctx, &all, queue, nth, l)
	}
	all.Wait()
	r.wait(ctx, until)
	return r.scene, account()
}

// wait returns at that time of the scene, and says whether the scene is still being played.
func (r *real) wait(ctx context.Context, at time.Duration) bool {
	select {
	case <-time.After(time.Until(r.began.Add(at))):
		return true
	case <-ctx.Done():
		return false
	}
}

// at does something at that time of the scene, if it is not over by then.
func (r *real) at(ctx context.Context, all *sync.WaitGroup, at time.Duration, do func()) {
	if at > ends(r.scene) {
		return
	}
	all.Go(func() {
		if r.wait(ctx, at) {
			do()
		}
	})
}

// lose has everything happen that EC2 does to a node, as planLoss of the simulator.
func (r *real) lose(ctx context.Context, all *sync.WaitGroup, queue *sqsemu.Queue, nth int, l sim.Loss) {
	if l.Warned > 0 {
		r.announce(ctx, all, queue, nth, l, interruption.RebalanceRecommendation, l.At-l.Warned)
	}
	r.announce(ctx, all, queue, nth, l, l.Kind, l.At)
	if l.Cancel > 0 {
		r.at(ctx, all, l.Cancel, func() { r.cancel(ctx, l.Node) })
	}
	if !l.Takes {
		return
	}
	taken := l.At + l.Lead - l.Early
	r.at(ctx, all, taken, func() { // its kubelet is silent from now on
		r.changeNode(ctx, l.Node, `{"metadata":{"annotations":{"kwok.x-k8s.io/node":null}}}`)
	})
	r.at(ctx, all, taken+r.scene.CollectedAfter(l.Node), func() {
		if err := r.Client.CoreV1().Nodes().Delete(ctx, l.Node, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			r.Errorf("delete node %s: %v", l.Node, err)
		}
	})
}

// announce has EC2 say something about a node, and EventBridge put it into the queue.
func (r *real) announce(ctx context.Context, all *sync.WaitGroup, queue *sqsemu.Queue, nth int, l sim.Loss, kind interruption.Kind, said time.Duration) {
	noticed, what := r.began.Add(said).Truncate(time.Second), daemon.SpotInterruption
	if kind == interruption.RebalanceRecommendation {
		what = daemon.Rebalance
	}
	for n := range l.Copies {
		event, at := fmt.Sprintf("%08x-%04x-4000-8000-%012x", r.scene.Seed&0xffffffff, nth, len(kind)), noticed
		if n > 0 && l.Renews {
			event, at = event[:len(event)-2]+"ff", at.Add(-2*time.Second)
		}
		r.at(ctx, all, said+l.Delay+time.Duration(n)*l.Again, func() {
			queue.Send(daemon.EventBridge(what, event, controlplane.InstanceID(l.Node), at))
		})
	}
}

func (r *real) cancel(ctx context.Context, node string) {
	n, err := r.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil || n.Annotations[interruption.Annotation] == "" {
		return
	}
	r.changeNode(ctx, node, `{"metadata":{"annotations":{"`+interruption.CancelAnnotation+`":"true"}}}`)
}

func (r *real) changeNode(ctx context.Context, node, patch string) {
	if _, err := r.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		r.Errorf("change node %s: %v", node, err)
	}
}

// follow has the account told of all pods and nodes. The function that it returns ends the account.
func (r *real) follow(ctx context.Context, a *sim.Account) func() sim.Fates {
	r.Helper()
	var mu sync.Mutex
	ended := false
	see := func(obj any, removed bool) {
		at := time.Since(r.began)
		mu.Lock()
		defer mu.Unlock()
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		switch o := obj.(type) {
		case *corev1.Pod:
			if !ended && o.Namespace == namespace {
				a.SeePod(at, o, removed)
			}
		case *corev1.Node:
			if !ended && !removed {
				a.SeeNode(at, o)
			}
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { see(obj, false) }, UpdateFunc: func(_, obj any) { see(obj, false) }, DeleteFunc: func(obj any) { see(obj, true) },
	}
	factory := informers.NewSharedInformerFactory(r.Client, 0)
	for _, informer := range []cache.SharedIndexInformer{factory.Core().V1().Pods().Informer(), factory.Core().V1().Nodes().Informer()} {
		_, err := informer.AddEventHandler(handler)
		r.must(err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return func() sim.Fates {
		mu.Lock()
		defer mu.Unlock()
		ended = true
		return a.Fates()
	}
}
