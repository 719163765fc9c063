package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSelection(t *testing.T) {
	node := func(name, pool, kind, zone string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"karpenter.sh/nodepool": pool, corev1.LabelInstanceTypeStable: kind, corev1.LabelTopologyZone: zone,
		}}}
	}
	all := []*corev1.Node{
		node("c", "batch", "large", "1a"), node("a", "batch", "small", "1a"), node("b", "web", "large", "1b"),
	}
	for name, tt := range map[string]struct {
		args []string
		want string // the names, or a part of the error
	}{
		"one by name":       {[]string{"b"}, "b"},
		"several, in order": {[]string{"c", "a"}, "a c"},
		"no such node":      {[]string{"c", "x", "y"}, "no such node: x, y"},
		"a pool":            {[]string{"--pool=batch"}, "a c"},
		"an offering":       {[]string{"--instance-type=large", "--zone=1a"}, "c"},
		"labels":            {[]string{"--selector", "karpenter.sh/nodepool notin (batch)"}, "b"},
		"nothing selected":  {[]string{"--zone=1c"}, "no node is selected"},
		"nothing asked for": {nil, "no nodes: name some"},
		"both":              {[]string{"a", "--pool=batch"}, "not both"},
		"no selector":       {[]string{"--selector", "in in in"}, "--selector"},
	} {
		var s selection
		flags := titled("")
		s.define(flags)
		err := flags.Parse(tt.args)
		if err == nil {
			err = s.parse(flags.Args())
		}
		var found []*corev1.Node
		if err == nil {
			found, err = s.choose(all)
		}
		var names []string
		for _, n := range found {
			names = append(names, n.Name)
		}
		if err != nil {
			names = []string{err.Error()}
		}
		if got := strings.Join(names, " "); got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
