// Package selection says which nodes a command is about: those that are named, or those that
// flags describe.
package selection

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/handler/nodes"
)

// Selection selects nodes. All that is set has to hold.
type Selection struct {
	Names                              []string
	Pool, InstanceType, Zone, Selector string

	// Any selects all nodes where nothing is asked for, which is an error otherwise.
	Any bool

	selector labels.Selector
}

// Define declares the flags. The names are a command's arguments.
func (s *Selection) Define(flags *pflag.FlagSet) {
	flags.StringVar(&s.Pool, "pool", "", "nodes of this `pool`: of Karpenter, EKS or eksctl")
	flags.StringVar(&s.InstanceType, "instance-type", "", "nodes of this instance `type`")
	flags.StringVar(&s.Zone, "zone", "", "nodes in this `zone`")
	flags.StringVarP(&s.Selector, "selector", "l", "", "nodes that this label `selector` selects, such as team=blue")
}

// Take takes a command's arguments for names of nodes, and checks what was asked for.
func (s *Selection) Take(args []string) error {
	s.Names = args
	described := s.Pool != "" || s.InstanceType != "" || s.Zone != "" || s.Selector != ""
	switch {
	case len(args) > 0 && described:
		return errors.New("name nodes, or describe them by --pool, --instance-type, --zone and --selector, but not both")
	case len(args) == 0 && !described && !s.Any:
		return errors.New("no nodes: name some, or describe them by --pool, --instance-type, --zone or --selector")
	}
	var err error
	if s.selector, err = labels.Parse(s.Selector); err != nil {
		return fmt.Errorf("--selector: %w", err)
	}
	return nil
}

// Of returns the nodes that are selected, by name. It is an error if one that was named is not
// there, or none is selected.
func (s *Selection) Of(all []*corev1.Node) ([]*corev1.Node, error) {
	var found []*corev1.Node
	missing := slices.Clone(s.Names)
	for _, node := range all {
		if s.matches(node) {
			found = append(found, node)
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == node.Name })
		}
	}
	switch {
	case len(missing) > 0:
		return nil, fmt.Errorf("no such node: %s", strings.Join(missing, ", "))
	case len(found) == 0:
		return nil, errors.New("no node is selected")
	}
	slices.SortFunc(found, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

func (s *Selection) matches(node *corev1.Node) bool {
	if len(s.Names) > 0 {
		return slices.Contains(s.Names, node.Name)
	}
	is := func(want, value string) bool { return want == "" || want == value }
	return is(s.Pool, nodes.PoolOf(node).Name) && is(s.InstanceType, node.Labels[corev1.LabelInstanceTypeStable]) &&
		is(s.Zone, node.Labels[corev1.LabelTopologyZone]) && (s.selector == nil || s.selector.Matches(labels.Set(node.Labels)))
}
