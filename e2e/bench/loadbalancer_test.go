package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
)

const (
	balancedPods = 12 // three on each of serviceNodes, which fills them
	balancedRate = 1000
	balancedWait = 9 * time.Minute // for all to be over; half of that is needed
)

// lags are of load balancers: all follow the same EndpointSlices.
var lags = []time.Duration{10 * time.Second, 30 * time.Second, 120 * time.Second}

// balanced is a way for pods to leave a node, and how long each takes requests after its deletion.
type balanced struct {
	name        string
	flags       []string // of the daemon; nil: kubectl drains
	sleep       time.Duration
	recommended bool          // by EC2, instead of a notice
	enough      time.Duration // load balancers up to that lag must lose nothing
}

// balancedWays are measured side by side. A sleep of 90 s has a grace period that leaves a
// notice no time to wait for replacement pods; a recommendation has no deadline.
var balancedWays = []balanced{
	{name: "kubectl drain"},
	{name: "kubectl drain", sleep: 35 * time.Second},
	{name: "kubectl drain", sleep: 90 * time.Second},
	{name: "hold", flags: []string{"--drain-strategy=hold"}},
	{name: "hold", flags: []string{"--drain-strategy=hold"}, sleep: 35 * time.Second},
	{name: "hold", flags: []string{"--drain-strategy=hold"}, sleep: 90 * time.Second},
	{name: "surge", flags: []string{}},
	{name: "surge", flags: []string{}, sleep: 35 * time.Second, enough: 30 * time.Second},
	{name: "surge", flags: []string{}, sleep: 90 * time.Second, enough: 30 * time.Second},
	{name: "surge on a recommendation", flags: []string{}, sleep: 125 * time.Second, recommended: true, enough: 120 * time.Second},
}

// BenchmarkLoadBalancer interrupts one node of a service in each of the ways, side by side on
// one control plane with Karpenter, and counts the requests that load balancers send to pods
// that no longer take them. The EndpointSlices are the real controller's. A pod takes requests
// from when it is Ready until its preStop sleep is over, as the kubelet sends SIGTERM then, or
// until its node goes.
func BenchmarkLoadBalancer(b *testing.B) {
	for b.Loop() {
		measureLoadBalancer(b, balancedWays)
	}
}

func measureLoadBalancer(b *testing.B, ways []balanced) {
	cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
	results := make([]traffic, len(ways))
	var group sync.WaitGroup
	for i, w := range ways {
		group.Go(func() {
			budget := intstr.FromString("25%")
			s := service{
				B: b, cluster: cluster, name: fmt.Sprintf("balanced-%d", i), pods: balancedPods, cpu: "2", nodes: serviceNodes,
				ready: readyTime, sleep: w.sleep, grace: w.sleep + stopTime + 5*time.Second, budget: budget,
			}
			results[i] = s.loseBalanced(w)
		})
	}
	group.Wait()
	if b.Failed() {
		return
	}
	var missed float64
	for i, w := range ways {
		cells := []string{}
		for _, lag := range lags {
			lost, fewest := late{lag, balancedRate}.lost(results[i].views, results[i].stopped)
			cells = append(cells, fmt.Sprintf("%.0f s: %.0f, %d", lag.Seconds(), lost, fewest))
			if lag <= w.enough {
				missed += lost
			}
		}
		report(row{
			what: fmt.Sprintf("requests of %d/s lost, fewest of %d pods, by lag: %s, preStop sleep %.0f s", balancedRate, balancedPods, w.name, w.sleep.Seconds()),
			text: strings.Join(cells, "; "),
		})
	}
	report(row{what: "  lost by surge where the sleep outlasts the lag, 120 s on recommendations alone", values: []float64{missed}, none: true})
}

// loseBalanced takes one of the service's nodes, and returns what became of its traffic.
func (s service) loseBalanced(w balanced) traffic {
	ctx, cancel := context.WithTimeoutCause(s.Context(), balancedWait, errors.New("the pods did not leave in time"))
	defer cancel()
	node := s.setUp(ctx)[0]
	must(s.B, s.expose(ctx))
	t, err := s.followTraffic(ctx)
	must(s.B, err)
	must(s.B, t.waitReady(ctx, s.pods))

	var draining errgroup.Group
	deadline := time.Now().Add(noticeTime)
	if w.flags == nil {
		draining.Go(func() error { return s.kubectlDrain(ctx, node.Name) })
	} else {
		emulator := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(node.Name)})
		defer emulator.Close()
		d := start(s.B, daemon.Options{
			Args: append([]string{"imds", "--node-name=" + node.Name}, w.flags...), Kubeconfig: s.cluster.Kubeconfig, IMDS: emulator.URL,
		})
		must(s.B, d.WaitReady(ctx))
		defer d.Kill()
		deadline = time.Now().Add(noticeTime)
		if w.recommended {
			emulator.Rebalance(time.Now())
			deadline = time.Time{}
		} else {
			emulator.Interrupt("terminate", deadline)
		}
	}
	_, err = s.cluster.WaitPods(ctx, metav1.NamespaceDefault, controlplane.Selector(s.name), func(pods []*corev1.Pod) bool {
		left := !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node.Name })
		return left && len(slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !controlplane.Ready(p) })) == s.pods
	})
	must(s.B, err)
	must(s.B, draining.Wait())
	must(s.B, t.waitReady(ctx, s.pods))
	return t.until(deadline)
}

func (s service) kubectlDrain(ctx context.Context, node string) error {
	cmd := exec.CommandContext(ctx, s.cluster.Kubectl, "--kubeconfig="+s.cluster.Kubeconfig, "drain", node)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl drain: %w\n%s", err, out)
	}
	return nil
}

// expose makes a Service that selects the pods.
func (s service) expose(ctx context.Context) error {
	_, err := s.cluster.Client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": s.name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	return err
}

// preStopSleep is the hook that has the kubelet wait before SIGTERM.
func preStopSleep(d time.Duration) *corev1.Lifecycle {
	return &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: int64(d.Seconds())}}}
}

// traffic is what load balancers could know of a service, and what was so.
type traffic struct {
	views   []view
	stopped map[string]time.Time // when a pod that was deleted takes no more requests
}

// trafficWatch keeps it up to date, from the API server's watches.
type trafficWatch struct {
	mu      sync.Mutex
	slices  map[string][]string // ready pods, by EndpointSlice
	changed chan struct{}
	traffic
}

// followTraffic watches until ctx ends.
func (s service) followTraffic(ctx context.Context) (*trafficWatch, error) {
	t := &trafficWatch{slices: map[string][]string{}, changed: make(chan struct{}, 1), traffic: traffic{stopped: map[string]time.Time{}}}
	watch := func(selector string, of func(informers.SharedInformerFactory) cache.SharedInformer, see func(obj any, gone bool)) error {
		factory := informers.NewSharedInformerFactoryWithOptions(s.cluster.Client, 0, informers.WithNamespace(metav1.NamespaceDefault),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
		_, err := of(factory).AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { see(obj, false) },
			UpdateFunc: func(_, obj any) { see(obj, false) },
			DeleteFunc: func(obj any) { see(obj, true) },
		})
		factory.Start(ctx.Done())
		return err
	}
	return t, errors.Join(
		watch(discoveryv1.LabelServiceName+"="+s.name, func(f informers.SharedInformerFactory) cache.SharedInformer {
			return f.Discovery().V1().EndpointSlices().Informer()
		}, t.seeSlice),
		watch(controlplane.Selector(s.name), func(f informers.SharedInformerFactory) cache.SharedInformer {
			return f.Core().V1().Pods().Informer()
		}, t.seePod),
	)
}

func (t *trafficWatch) seeSlice(obj any, gone bool) {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slices[slice.Name] = nil
	for _, endpoint := range slice.Endpoints {
		if !gone && endpoint.TargetRef != nil && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) {
			t.slices[slice.Name] = append(t.slices[slice.Name], endpoint.TargetRef.Name)
		}
	}
	v := view{at: time.Now()}
	for _, pods := range t.slices {
		v.ready = append(v.ready, pods...)
	}
	t.views = append(t.views, v)
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// seePod notes when a pod that is deleted gets SIGTERM: at the end of its preStop sleep, or
// of its grace period. If it is gone before, it took no requests from then on.
func (t *trafficWatch) seePod(obj any, gone bool) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.DeletionTimestamp == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at, seen := t.stopped[pod.Name]
	if !seen {
		at = time.Now().Add(min(sleepOf(pod), time.Duration(*pod.DeletionGracePeriodSeconds)*time.Second))
	}
	if now := time.Now(); gone && now.Before(at) {
		at = now
	}
	t.stopped[pod.Name] = at
}

func sleepOf(pod *corev1.Pod) time.Duration {
	if hooks := pod.Spec.Containers[0].Lifecycle; hooks != nil {
		return time.Duration(hooks.PreStop.Sleep.Seconds) * time.Second
	}
	return 0
}

// waitReady waits until the EndpointSlices have n ready pods, and forgets what was before if
// none has been deleted.
func (t *trafficWatch) waitReady(ctx context.Context, n int) error {
	for {
		t.mu.Lock()
		last := len(t.views) - 1
		reached := last >= 0 && len(t.views[last].ready) == n
		if reached && len(t.stopped) == 0 {
			t.views = t.views[last:]
		}
		t.mu.Unlock()
		if reached {
			return nil
		}
		select {
		case <-t.changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d endpoints: %w", n, context.Cause(ctx))
		}
	}
}

// until is the traffic if the node of the pods that were deleted goes at the deadline; it stays
// if that is zero.
func (t *trafficWatch) until(deadline time.Time) traffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	for pod, at := range t.stopped {
		if !deadline.IsZero() && deadline.Before(at) {
			t.stopped[pod] = deadline
		}
	}
	return t.traffic
}
