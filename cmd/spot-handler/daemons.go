package main

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/cmd/spot-handler/internal/audit"
	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/drain"
)

// daemons are the pods of spot-handler that run in the cluster, for those who judge them.
func (c *caller) daemons(ctx context.Context) ([]audit.Daemon, error) {
	daemons := []audit.Daemon{}
	err := cluster.EachOf(ctx, cluster.Lister{Client: c.core}, corev1.SchemeGroupVersion.WithResource("pods"), daemonLabel, func(pod *corev1.Pod) *corev1.Pod {
		pod.ManagedFields = nil
		return pod
	}, func(pod *corev1.Pod) {
		if cfg, ok := settingsOf(*pod); ok && pod.DeletionTimestamp == nil {
			daemons = append(daemons, daemonOf(pod, cfg))
		}
	})
	if err != nil {
		return nil, err // some of them would look as if there were no more
	}
	return daemons, nil
}

func daemonOf(pod *corev1.Pod, cfg config) audit.Daemon {
	d := audit.Daemon{
		Namespace: pod.Namespace, Owner: "pod/" + pod.Name, Account: pod.Spec.ServiceAccountName,
		Node: pod.Spec.NodeName,
		Ready: !cfg.dryRun && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}),
		Fleet: cfg.fleet(), Queue: cfg.mode == modeQueue, Own: cfg.mode == modeIMDS, Drains: reconciles(cfg),
		Nodes: labels.Everything(),
	}
	if pod.Labels["helm.sh/chart"] != "" {
		d.Release, d.Component = pod.Labels["app.kubernetes.io/instance"], pod.Labels["app.kubernetes.io/component"]
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		d.Owner = strings.ToLower(owner.Kind) + "/" + owner.Name
	}
	if of := drain.DeploymentOf(pod); of.Name != "" {
		d.Owner = "deployment/" + of.Name
	}
	if cfg.nodes != nil { // else it does not start
		d.Nodes = cfg.nodes
	}
	leases := cfg.leaseNamespace
	if leases == "" {
		leases = pod.Namespace
	}
	for toStart, list := range map[bool][]permission{true: permissionsOf(cfg, leases), false: wishesOf(cfg)} {
		for _, p := range list {
			d.Rights = append(d.Rights, audit.Right{Verb: p.verb, Group: p.group, Resource: p.resource, Namespace: p.namespace, ToStart: toStart})
		}
	}
	return d
}
