// Package console is what the commands for people share, as opposed to those that run as
// daemons: which cluster they talk to, as kubectl finds it, and how they print what they found.
//
// It decides nothing, and knows nothing of interruptions.
package console

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Cluster says which cluster a command talks to, and as whom.
type Cluster struct {
	Kubeconfig, Context, Namespace string
	// DaemonNamespace is where spot-handler is installed; empty if that is to be found.
	DaemonNamespace string
}

// Define declares the flags, with the names and the meaning that they have with kubectl.
func (c *Cluster) Define(flags *pflag.FlagSet) {
	flags.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig `file` (default: $KUBECONFIG, else ~/.kube/config, else the pod's service account)")
	flags.StringVar(&c.Context, "context", "", "`name` of the kubeconfig's context (default: its current one)")
	flags.StringVarP(&c.Namespace, "namespace", "n", "", "look at pods of this `namespace` only (default: of all)")
}

// DefineDaemon declares the flag of commands that read the settings of spot-handler.
func (c *Cluster) DefineDaemon(flags *pflag.FlagSet) {
	flags.StringVar(&c.DaemonNamespace, "daemon-namespace", "", "`namespace` that spot-handler is installed in (default: that of the accounts which the chart's ClusterRoleBindings name)")
}

// Config is how to reach the cluster, with the caller's own rights.
func (c *Cluster) Config(userAgent string) (*rest.Config, error) {
	conf, err := c.kubeconfig().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster by --kubeconfig, --context or KUBECONFIG: %w", err)
	}
	conf.UserAgent = userAgent
	conf.QPS, conf.Burst = -1, 0 // the server sets the pace, as for kubectl
	return conf, nil
}

// Contexts are the names of the kubeconfig's contexts, in their order; none if it cannot be read.
func (c *Cluster) Contexts() []string {
	raw, err := c.kubeconfig().RawConfig()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(raw.Contexts))
}

func (c *Cluster) kubeconfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
}
