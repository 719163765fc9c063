// Package console is what the commands for people share, as opposed to those that run as
// daemons: which cluster they talk to, as kubectl finds it, and how they print what they found.
//
// It decides nothing, and knows nothing of interruptions.
package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"spot-handler/cmd/spot-handler/terminal"
)

// Format is how a command prints what it found.
type Format string

// The formats: one for people, two for programs.
const (
	TableFormat Format = "table"
	JSON        Format = "json"
	YAML        Format = "yaml"
)

// Formats lists the names of all formats.
func Formats() []string { return []string{string(TableFormat), string(JSON), string(YAML)} }

// Write prints a value as JSON or YAML.
func (f Format) Write(w io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	text = escaped(text)
	if err == nil && f == YAML {
		text, err = yaml.JSONToYAML(text)
		text = []byte("---\n" + strings.TrimSuffix(string(text), "\n"))
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", f, err)
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// plainWord is one that a shell takes as it stands.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Command is a line for a shell, whatever is in its words.
func Command(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		if quoted[i] = word; !plainWord.MatchString(word) {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// escaped is JSON with every character escaped that controls a terminal: encoding/json leaves DEL,
// the C1 controls and those of the direction of text as they are. They stand in strings only.
// In YAML the output puts U+FFFD in their place.
func escaped(text []byte) []byte {
	if bytes.IndexFunc(text, terminal.Controls) < 0 {
		return text
	}
	var b []byte
	for _, r := range string(text) {
		if terminal.Controls(r) {
			b = fmt.Appendf(b, `\u%04x`, r)
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

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
	flags.StringVarP(&c.Namespace, "namespace", "n", "", "read pods of this `namespace` only (default: of all)")
}

// DefineDaemon declares the flag of commands that read the settings of spot-handler.
func (c *Cluster) DefineDaemon(flags *pflag.FlagSet) {
	flags.StringVar(&c.DaemonNamespace, "daemon-namespace", "", "`namespace` that spot-handler is installed in (default: that of the accounts which the chart's ClusterRoleBindings name)")
}

// Config is how to reach the cluster, with the caller's own permissions.
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
