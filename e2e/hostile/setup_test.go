package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
)

// shop is another tenant's Deployment with a budget, and with a pod on each of the nodes that are lost.
func (r *round) shop(ctx context.Context) ([]*corev1.Node, []corev1.Pod) {
	nodes, err := r.cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: lost, Labels: map[string]string{"node-lifecycle": "spot"}})
	r.must(err)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var event struct{ Subject string }
		_ = json.NewDecoder(q.Body).Decode(&event)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.heard[event.Subject].IsZero() {
			r.heard[event.Subject] = time.Now()
		}
	}))
	r.Cleanup(receiver.Close)
	half, one := intstr.FromString("50%"), intstr.FromInt32(1)
	_, err = r.cluster.RunDeployment(ctx, controlplane.DeploymentSpec{
		Namespace: shop, Name: shop, Replicas: lost, Grace: 5 * time.Second, MaxSurge: &half, MaxUnavailable: &one, BudgetMaxUnavailable: &one,
		Annotations: map[string]string{
			"spot-handler/notice": receiver.URL[strings.LastIndexByte(receiver.URL, ':')+1:], "e2e.spot-handler/ip": "127.0.0.1",
		},
	})
	r.must(err)
	ready, err := r.cluster.WaitReady(ctx, shop, shop, lost)
	r.must(err)
	_, err = r.cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: spare, Prefix: "spare", CPUs: 32})
	r.must(err)
	others, err := r.cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: 1, Prefix: "rehearsed"})
	r.must(err)
	r.rehearsed = others[0].Name
	var pods []corev1.Pod
	for _, p := range ready {
		pods = append(pods, *p)
	}
	return nodes, pods
}

// hangs serves receivers that never answer, and returns their port.
func (r *round) hangs(ctx context.Context) (port string) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		select {
		case <-q.Context().Done():
		case <-ctx.Done():
		}
	}))
	r.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL[strings.LastIndexByte(server.URL, ':')+1:]
}

// install installs the chart. Its pods are only there to be seen: the processes are ours. It returns
// the names of the accounts, and what the chart says of memory, by component.
func (r *round) install(ctx context.Context) (accounts, limits map[string]string) {
	r.must(r.cluster.CreateNamespace(ctx, namespace))
	release := chart.Release{Values: chart.Values(r.mode, map[string]any{"flags.workloadNotices": true})}
	objects, err := chart.Create(ctx, r.cluster.Dynamic, release, append([]string{"Deployment", "DaemonSet"}, chart.Around...), r.Output())
	r.must(err)
	accounts, limits = map[string]string{}, map[string]string{}
	for _, o := range objects {
		if kind := o.GetKind(); kind != "Deployment" && kind != "DaemonSet" {
			continue
		}
		component := map[string]string{"DaemonSet": "imds"}[o.GetKind()]
		if component == "" {
			component = r.leads()
		}
		accounts[component], limits[component] = podOf(r, o)
	}
	for component, account := range accounts {
		r.must(chart.WaitAllowed(ctx, r.cluster.Client, namespace, account, component != "imds"))
	}
	return accounts, limits
}

// leads is the mode of the process that drains.
func (r *round) leads() string {
	if r.mode == "imds" {
		return "drain"
	}
	return "queue"
}

// podOf is the account of a workload's pods, and the limit that Go is given for its memory.
func podOf(r *round, workload unstructured.Unstructured) (account, limit string) {
	inner, _, err := unstructured.NestedMap(workload.Object, "spec", "template")
	r.must(err)
	var template corev1.PodTemplateSpec
	r.must(runtime.DefaultUnstructuredConverter.FromUnstructured(inner, &template))
	c := template.Spec.Containers[0]
	for _, e := range c.Env {
		if e.Name != "GOMEMLIMIT" {
			continue
		}
		limit = e.Value
		if e.ValueFrom != nil {
			limit = fmt.Sprint(c.Resources.Limits.Memory().Value())
		}
	}
	return template.Spec.ServiceAccountName, limit
}

// daemonsOn starts the processes: one that drains, and on some nodes, or on all where there is no
// queue, one that marks. It returns the metadata services of those.
func (r *round) daemonsOn(ctx context.Context, nodes []*corev1.Node, server *sqsemu.Server, queue *sqsemu.Queue, accounts, limits map[string]string) map[string]*imdsemu.Server {
	dir := r.TempDir()
	start := func(name, component, pod string, o daemon.Options) {
		o.Kubeconfig = filepath.Join(dir, name+".kubeconfig")
		r.must(r.cluster.WriteKubeconfig(ctx, o.Kubeconfig, namespace, accounts[component], pod))
		if limits[component] != "" {
			o.Env = append(o.Env, "GOMEMLIMIT="+limits[component])
		}
		log, err := os.Create(filepath.Join(r.cluster.Dir, name+".daemon"))
		r.must(err)
		r.Cleanup(func() { _ = log.Close() })
		o.Log = log
		one, err := daemon.Start(o)
		r.must(err)
		r.Cleanup(one.Kill)
		r.daemons[name] = one
	}
	o := daemon.Options{Args: []string{r.leads(), "--pod-namespace=" + namespace, "--workload-notices", "--notice-networks=127.0.0.0/8"}}
	marking := len(nodes)
	if r.mode != "imds" {
		o.Args, o.SQS, marking = append(o.Args, "--queue-url="+queue.URL()), server.URL, 5
	}
	start(r.leads(), r.leads(), "", o)

	// The DaemonSet is for spot nodes alone.
	pods, err := r.cluster.WaitPods(ctx, namespace, "app.kubernetes.io/component=imds", func(pods []*corev1.Pod) bool {
		return len(pods) >= lost && !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !controlplane.Ready(p) })
	})
	r.must(err)
	instances := map[string]*imdsemu.Server{}
	for _, n := range nodes[:marking] {
		i := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == n.Name })
		if i < 0 {
			r.must(fmt.Errorf("no pod of the DaemonSet is on node %s", n.Name))
		}
		metadata := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(n.Name)})
		r.Cleanup(metadata.Close)
		instances[n.Name] = metadata
		start("imds "+n.Name, "imds", pods[i].Name, daemon.Options{Args: []string{"imds", "--drain=false", "--node-name=" + n.Name}, IMDS: metadata.URL})
	}
	for _, one := range r.daemons {
		r.must(one.WaitReady(ctx))
	}
	return instances
}
