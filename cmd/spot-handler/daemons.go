package main

import (
	"context"
	"errors"

	"spot-handler/cmd/spot-handler/internal/audit"
	"spot-handler/drain"
)

// daemons are the pods of spot-handler that run in the cluster, for those who judge them. An error
// may be about some of them.
func (c *caller) daemons(ctx context.Context) ([]audit.Daemon, error) {
	pods, err := c.installation(ctx)
	if err != nil {
		return nil, err // some of them would look as if there were no more
	}
	daemons, wrong := []audit.Daemon{}, []error{}
	for _, pod := range pods {
		if pod.wrong != nil {
			wrong = append(wrong, pod.wrong)
			continue
		}
		daemons = append(daemons, daemonOf(pod))
	}
	return daemons, errors.Join(wrong...)
}

func daemonOf(pod installed) audit.Daemon {
	cfg := pod.settings
	_, ready := drain.Ready(pod.Pod)
	d := audit.Daemon{
		Owned: audit.Owned{Namespace: pod.Namespace, Object: pod.owner}, Account: pod.Spec.ServiceAccountName, Named: pod.named,
		Node:  pod.Spec.NodeName,
		Ready: !cfg.dryRun && ready,
		Fleet: cfg.fleet(), Queue: cfg.mode == modeQueue, Own: cfg.mode == modeIMDS, Drains: reconciles(cfg),
		Nodes: cfg.nodes,
	}
	if pod.Labels["helm.sh/chart"] != "" {
		d.Release, d.Component = pod.Labels["app.kubernetes.io/instance"], pod.Labels["app.kubernetes.io/component"]
	}
	leases := cfg.leaseNamespace
	if leases == "" {
		leases = pod.Namespace
	}
	for toStart, list := range map[bool][]permission{true: permissionsOf(cfg, leases), false: wishesOf(cfg)} {
		for _, p := range list {
			d.Permissions = append(d.Permissions, audit.Permission{Verb: p.verb, Group: p.group, Resource: p.resource, Namespace: p.namespace, ToStart: toStart})
		}
	}
	return d
}
