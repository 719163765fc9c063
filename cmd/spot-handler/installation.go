package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/cmd/spot-handler/internal/audit"
	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
)

// ourLabel selects the objects of spot-handler, as the chart labels them. Anybody can give it to
// an object of theirs, so it proves nothing.
const ourLabel = "app.kubernetes.io/name=spot-handler"

// ourBindings selects the ClusterRoleBindings of the accounts that act. Only administrators make
// those, so what runs in the namespace of the accounts that they name is ours.
const ourBindings = ourLabel + ",app.kubernetes.io/component in (imds, drain, queue)"

// installed is a pod of spot-handler, and the settings that it was given of all that a forecast needs.
type installed struct {
	name string
	audit.Daemon
	settings
	// wrong says why it cannot run with its settings; then they are empty.
	wrong error
}

// installation are the pods of the Deployments and DaemonSets of spot-handler in its one namespace:
// that in which it is installed. Each was made by its owner, by UID.
func (c *caller) installation(ctx context.Context) (pods []installed, err error) {
	in, err := c.installedIn(ctx)
	if in.namespace == "" || err != nil {
		return nil, err
	}
	list, owners := cluster.Lister{Client: c.whole.core, Namespace: in.namespace}, map[types.UID]string{} // as kubectl names them
	for _, kind := range []string{"deployment", "daemonset", "replicaset"} {                              // the last are made by the first
		err := cluster.Each(ctx, list, cluster.Resource("apps", kind+"s"), ourLabel, func(o *metav1.PartialObjectMetadata) {
			owner := kind + "/" + o.Name
			if kind == "replicaset" {
				owner = ""
				if by := metav1.GetControllerOf(o); by != nil {
					owner = owners[by.UID]
				}
			}
			owners[o.UID] = owner
		})
		if err != nil {
			return nil, err
		}
	}
	err = cluster.EachOf(ctx, list, cluster.Resource("", "pods"), ourLabel, slimDaemon, func(pod *corev1.Pod) {
		by := metav1.GetControllerOf(pod)
		if by == nil || owners[by.UID] == "" || pod.DeletionTimestamp != nil {
			return
		}
		cfg, err := settingsOf(pod)
		if errors.Is(err, errNotOurs) {
			return
		}
		daemon := daemonOf(pod, owners[by.UID], cfg)
		daemon.Named = in.accounts[daemon.Account] || c.daemonNamespace != "" && daemon.Account != "default"
		pods = append(pods, installed{pod.Name, daemon, cfg, err})
	})
	return pods, err
}

// slimDaemon keeps of a pod what daemonOf and settingsOf read.
func slimDaemon(pod *corev1.Pod) *corev1.Pod {
	slim := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:         pod.Namespace,
		Name:              pod.Name,
		Labels:            pod.Labels,
		OwnerReferences:   pod.OwnerReferences,
		DeletionTimestamp: pod.DeletionTimestamp,
	}}
	slim.Spec.NodeName = pod.Spec.NodeName
	slim.Spec.ServiceAccountName = pod.Spec.ServiceAccountName
	slim.Status.Conditions = pod.Status.Conditions
	for _, c := range pod.Spec.Containers {
		slim.Spec.Containers = append(slim.Spec.Containers, corev1.Container{Args: c.Args, Env: c.Env})
	}
	return slim
}

// place is a namespace, and the accounts in it that ourBindings name, if those were asked for.
type place struct {
	namespace string
	accounts  map[string]bool
}

// installedIn is the namespace that the operator names with --daemon-namespace, else that of the
// accounts that ourBindings name; empty if nobody is bound.
func (c *caller) installedIn(ctx context.Context) (place, error) {
	if named := c.daemonNamespace; len(validation.IsDNS1123Label(named)) == 0 {
		return place{namespace: named}, nil
	} else if named != "" {
		return place{}, fmt.Errorf("%w: --daemon-namespace=%q: want the name of a namespace", errUsage, named)
	}
	bound := map[string]map[string]bool{}
	of := cluster.Resource("rbac.authorization.k8s.io", "clusterrolebindings")
	err := cluster.Each(ctx, cluster.Lister{Client: c.whole.core}, of, ourBindings, func(b *struct {
		cluster.Meta `json:"metadata"`
		Subjects     []struct{ Kind, Namespace, Name string }
	}) {
		for _, s := range b.Subjects {
			if s.Kind != "ServiceAccount" || s.Namespace == "" {
				continue
			}
			if bound[s.Namespace] == nil {
				bound[s.Namespace] = map[string]bool{}
			}
			bound[s.Namespace][s.Name] = true
		}
	})
	if err != nil {
		return place{}, fmt.Errorf("find where spot-handler is installed, which --daemon-namespace says too: %w", err)
	}
	list := slices.Sorted(maps.Keys(bound))
	switch len(list) {
	case 0:
		return place{}, nil
	case 1:
		return place{list[0], bound[list[0]]}, nil
	}
	return place{}, fmt.Errorf("%w: spot-handler is installed in the namespaces %s: say which with --daemon-namespace",
		errUsage, strings.Join(list, ", "))
}

// remembered is what the installation keeps of lost offerings; nothing without one. Its pools have
// these nodes.
func (c *caller) remembered(ctx context.Context, of []*corev1.Node) (*offerings.Memory, error) {
	in, err := c.installedIn(ctx)
	if in.namespace == "" || err != nil {
		return offerings.New(), err
	}
	return offerings.Read(ctx, newResource[corev1.ConfigMap, corev1.ConfigMapList](c.whole.core, "configmaps", in.namespace), of)
}

// inForce are settings, and where they were found.
type inForce struct {
	settings
	from string
}

// settings are those by which nodes are drained, as the installation was given them: first those
// of the pods that drain all nodes, then those of a pod on one of these. Without any, they are the
// defaults. An error says that the operator has to choose.
func (c *caller) settings(ctx context.Context, nodes ...string) (inForce, error) {
	pods, err := c.installation(ctx)
	if errors.Is(err, errUsage) {
		return inForce{}, err
	}
	why := "no pod of spot-handler was found that drains this node"
	if err != nil {
		why = err.Error()
	}
	for _, all := range []bool{true, false} {
		for _, pod := range pods {
			switch {
			case !all && !slices.Contains(nodes, pod.Node):
			case pod.wrong != nil:
				why = pod.wrong.Error()
			case pod.Drains && pod.Fleet == all:
				return inForce{pod.settings, "the settings of pod " + pod.Namespace + "/" + pod.name}, nil
			}
		}
	}
	cfg, _ := remoteConfig(modeQueue, nil, nil) // the defaults are not wrong
	return inForce{cfg, "the default settings, as " + why}, nil
}

// errNotOurs is the error of a pod that runs none of spot-handler's modes.
var errNotOurs = errors.New("not a pod of spot-handler")

// settingsOf reads the arguments and variables of a pod.
func settingsOf(pod *corev1.Pod) (settings, error) {
	for _, container := range pod.Spec.Containers {
		if len(container.Args) == 0 || !slices.Contains([]string{modeIMDS, modeDrain, modeQueue}, container.Args[0]) {
			continue
		}
		cfg, err := remoteConfig(container.Args[0], container.Args[1:], container.Env)
		if err != nil {
			err = fmt.Errorf("pod %s/%s cannot run with its settings: %w", pod.Namespace, pod.Name, err)
		}
		return cfg, err
	}
	return settings{}, errNotOurs
}

// remoteFlags are those that a forecast or an audit needs. All others of a pod in the cluster are
// left alone: among them are files and templates, which would be read and run here.
var remoteFlags = []string{
	"blocked-pods", "calm", "cordon-only", "drain", "drain-strategy", "dry-run", "fallback-nodepool", "fallback-selector",
	"leader-elect", "managed-nodes", "margin", "placeholder-image", "provisioner",
	"rebalance", "release-node", "replacement", "scheduled-lead",
}

// The most that is read of a pod's arguments and variables.
const (
	mostArgs  = 200
	mostBytes = 4096 // of one of them
)

// remoteConfig is what these arguments and variables of a pod say of remoteFlags, and the default of
// all else. It opens no file, and takes nothing from this process's own environment.
func remoteConfig(mode string, args []string, env []corev1.EnvVar) (settings, error) {
	if tooLong := func(text string) bool { return len(text) > mostBytes }; len(args) > mostArgs || slices.ContainsFunc(args, tooLong) {
		return settings{}, fmt.Errorf("more than %d arguments, or one of more than %d bytes", mostArgs, mostBytes)
	}
	cfg, flags := settings{mode: mode}, pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, g := range cfg.define() {
		g.VisitAll(func(f *pflag.Flag) {
			if slices.Contains(remoteFlags, f.Name) {
				flags.AddFlag(f)
			}
		})
	}
	args = slices.Clone(args)
	for i, arg := range args { // of a pod of an older version, which still runs
		if value, ok := strings.CutPrefix(arg, "--node-selector="); ok {
			args[i] = "--managed-nodes=" + value
		}
	}
	problems := fill(flags, args, func(name string) string {
		i := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == name && v.Value != "" && len(v.Value) <= mostBytes })
		if i < 0 {
			return ""
		}
		return env[i].Value
	})
	cfg.nodeName, cfg.queueURL = "any", "https://any" // which a mode needs, and a forecast does not
	problems = append(problems, cfg.check()...)
	cfg.nodeName, cfg.queueURL = "", ""
	if err := errors.Join(problems...); err != nil {
		return settings{}, errors.New(interruption.Clip(strings.ReplaceAll(err.Error(), "\n", "; ")))
	}
	return cfg, nil
}

// daemons are the pods of spot-handler that run in the cluster, for those that judge them. An error
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
		daemons = append(daemons, pod.Daemon)
	}
	return daemons, errors.Join(wrong...)
}

// daemonOf is the pod of this owner with its settings.
func daemonOf(pod *corev1.Pod, owner string, cfg settings) audit.Daemon {
	_, ready := plan.Ready(pod)
	d := audit.Daemon{
		Owned:       audit.Owned{Namespace: pod.Namespace, Object: owner},
		Account:     pod.Spec.ServiceAccountName,
		Node:        pod.Spec.NodeName,
		Ready:       !cfg.dryRun && ready,
		Fleet:       cfg.fleet(),
		Queue:       cfg.mode == modeQueue,
		Drains:      reconciles(cfg),
		Nodes:       cfg.nodes,
		Permissions: permissionsOf(cfg, pod.Namespace),
	}
	if pod.Labels["helm.sh/chart"] != "" {
		d.Release = pod.Labels["app.kubernetes.io/instance"]
	}
	return d
}
