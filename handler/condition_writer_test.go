package handler

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// one is a cluster of one Node, whose watch shows nothing; patches are answered in turn.
type one struct {
	node    *corev1.Node
	answers []error // the last one again and again
	patches int
}

func (o *one) List(context.Context, metav1.ListOptions) (*corev1.NodeList, error) {
	return &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Node{*o.node}}, nil
}

func (o *one) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), nil
}

// IsWatchListSemanticsUnSupported tells client-go not to ask for a stream.
func (o *one) IsWatchListSemanticsUnSupported() bool { return true }

func (o *one) Get(context.Context, string, metav1.GetOptions) (*corev1.Node, error) {
	return o.node, nil
}

func (o *one) Mark(context.Context, string, types.PatchType, []byte) error {
	return errors.New("not the status")
}

func (o *one) Patch(_ context.Context, _ string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	if len(sub) != 1 || sub[0] != "status" {
		return nil, errors.New("not the status")
	}
	err := o.answers[min(o.patches, len(o.answers)-1)]
	o.patches++
	patched := o.node.DeepCopy()
	patched.ResourceVersion = "8"
	return patched, err
}

// A condition is written once, however often its Node is shown, and whoever shows it does not wait.
// It is tried again where that can help; that it must not be written is said once.
func TestConditionIsWritten(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	busy := apierrors.NewInternalError(errors.New("busy"))
	forbidden := apierrors.NewForbidden(resource, "node-a", errors.New("no right"))
	for name, tt := range map[string]struct {
		answers           []error
		patches, warnings int
	}{
		"written":          {[]error{nil}, 1, 0},
		"server is busy":   {[]error{busy, busy, nil}, 3, 0},
		"forbidden":        {[]error{forbidden}, 4, 1}, // each time that it is shown
		"another has come": {[]error{apierrors.NewConflict(resource, "node-a", errors.New("another UID"))}, 4, 0},
		"node is gone":     {[]error{apierrors.NewNotFound(resource, "node-a")}, 4, 0},
		"no connection":    {[]error{&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadGateway}}, nil}, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				deadline := time.Now().Add(2 * time.Minute)
				rec := interruption.Record{Kind: interruption.SpotInterruption, Phase: interruption.Draining, Deadline: deadline}
				cluster := &one{answers: tt.answers, node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
					Name: "node-a", UID: "u", ResourceVersion: "7", Annotations: map[string]string{interruption.Annotation: rec.String()},
				}}}
				index := nodes.New(cluster, "", zerolog.Nop())
				go func() { _ = index.Run(t.Context()) }()
				if err := index.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				var log bytes.Buffer
				h := New(Options{Nodes: cluster, Index: index, Registerer: prometheus.NewRegistry(), Logger: zerolog.New(&log).Level(zerolog.WarnLevel)})
				defer h.queue.ShutDown()
				r := &reconciliation{Handler: h, node: cluster.node, rec: rec, known: h.memory.get("node-a")}
				h.writeCondition(t.Context(), "node-a") // begun late, when a reconciliation has found it in line
				for i := range 4 {
					began := time.Now()
					if done, err := r.show(t.Context()); done || err != nil {
						t.Errorf("done %v, %v", done, err)
					}
					if took := time.Since(began); took > 0 {
						t.Errorf("whoever shows a Node has waited %s", took)
					}
					synctest.Wait() // else it might be shown while it is written, and written once more
					if i%2 == 1 {
						time.Sleep(time.Minute)
					}
				}
				if warnings := strings.Count(log.String(), "\n"); cluster.patches != tt.patches || warnings != tt.warnings {
					t.Errorf("%d writes, %d warnings, want %d and %d\n%s", cluster.patches, warnings, tt.patches, tt.warnings, &log)
				}
			})
		})
	}
}

// The end of a condition is written once, though nothing else is known of its Node any more when
// that comes back; then nothing at all is.
func TestConditionEndsOnce(t *testing.T) {
	for name, end := range map[string]func(*corev1.Node){
		"cancelled":      func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" },
		"record removed": func(n *corev1.Node) { delete(n.Annotations, interruption.Annotation) },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				next := func() {
					t.Helper()
					if _, err := step(t, h); err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // until the condition is written
				}
				cancels(h, func() bool { return true })
				accept(t, h, notice(interruption.SpotInterruption))
				next() // they come with the record's progress
				next()
				f.change(end)
				began := f.written
				for range 4 {
					next()
				}
				if began != 0 || f.written != 1 {
					t.Errorf("written alone %d times when it began and %d times when it ended, want 0 and 1", began, f.written-began)
				}
				f.change(func(n *corev1.Node) { n.Status.Conditions = nil })
				next()
				h.conditions.written.Range(func(name, _ any) bool {
					t.Errorf("the last write for %s is remembered", name)
					return true
				})
				if len(h.memory.byNode) != 0 {
					t.Errorf("%d nodes remembered", len(h.memory.byNode))
				}
			})
		})
	}
}
