package main

import (
	"context"
	"errors"
	"testing"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/handler/nodes"
)

// noNodes is a cluster without Nodes.
type noNodes struct{ nodes.Client }

func (noNodes) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
}

func (noNodes) Watch(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if o.SendInitialEvents != nil {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "", nil) // as an old server: list instead
	}
	return watch.NewFake(), nil
}

// away is a source that gets no notices.
type away struct{ source }

func (away) Healthy() error { return errors.New("SQS is away") }

// A process is ready once it knows the Nodes and its source gets notices; without a source, once it knows the Nodes.
func TestReady(t *testing.T) {
	index := nodes.New(noNodes{}, "", zerolog.Nop())
	p := &process{index: index}
	if err := p.ready(); err == nil {
		t.Error("ready before it knows the Nodes")
	}
	go func() { _ = index.Run(t.Context()) }()
	if err := index.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.ready(); err != nil {
		t.Error(err)
	}
	p.source = away{}
	if err := p.ready(); err == nil || err.Error() != "SQS is away" {
		t.Errorf("%v, want what the source says", err)
	}
}
