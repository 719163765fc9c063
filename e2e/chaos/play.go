package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/chaos/link"
	"spot-handler/e2e/chaos/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// stage is where a round is played.
type stage struct {
	dir      string // of the logs, and of what the replicas read
	cluster  *controlplane.Cluster
	queue    *sqsemu.Queue
	replicas []*replica
	markers  []*replica        // in mode imds, by the numbers of their nodes
	metadata []*imdsemu.Server // of those
	observer *observer
	heard    *receivers
	audited  int64 // bytes of the audit log that have been read
	say      func(format string, args ...any)

	round plan.Round
	nodes []string // by their numbers in the round

	mu       sync.Mutex
	losses   map[string]*evidence.Loss // by node
	messages []evidence.Message
	sent     map[string]letter // the last about a node
	comeBack map[string]bool   // nodes whose instances EC2 only stops
	cordoned map[string]bool   // nodes that were, by an operator before anybody else
	failed   []error           // of steps
	late     map[string]bool   // messages that are kept as if their Nodes were yet to come
}

// play carries out the round's steps, each at its time, and returns when the last is over.
func (s *stage) play(ctx context.Context) error {
	s.losses, s.sent, s.comeBack, s.cordoned = map[string]*evidence.Loss{}, map[string]letter{}, map[string]bool{}, map[string]bool{}
	s.messages, s.failed = nil, nil
	began := time.Now()
	var steps sync.WaitGroup
	for _, step := range s.round.Steps {
		steps.Go(func() {
			if pause(ctx, time.Until(began.Add(step.At))) != nil {
				return
			}
			s.say("%5.1fs %s", time.Since(began).Seconds(), step.What)
			if err := s.take(ctx, step); err != nil && ctx.Err() == nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.failed = append(s.failed, fmt.Errorf("%s: %w", step, err))
			}
		})
	}
	steps.Wait()
	if len(s.failed) > 0 {
		return fmt.Errorf("play a round: %w", s.failed[0])
	}
	return ctx.Err()
}

// take carries out one step.
func (s *stage) take(ctx context.Context, step plan.Step) error {
	switch {
	case step.Announces(), step.What == plan.Repeat, step.What == plan.SecondID:
		s.announce(step)
		return nil
	case step.What == plan.Duplicate:
		s.queue.Duplicate(step.Count)
		return nil
	case step.What == plan.Cancel:
		return s.cancel(ctx, s.nodes[step.Node])
	case step.What == plan.Cordon:
		return s.cordon(ctx, s.nodes[step.Node])
	case step.IsFault():
		return s.fault(ctx, step)
	}
	return s.own(ctx, step)
}

// fault breaks something for as long as the step says, and notes that for the evidence.
func (s *stage) fault(ctx context.Context, step plan.Step) error {
	span := evidence.Span{What: string(step.What), From: time.Now(), Paused: step.What == plan.Pause}
	defer func() {
		span.To = time.Now()
		s.observer.span(span)
	}()
	if step.What == plan.FreezeAPI {
		thaw, err := s.cluster.Freeze("kube-apiserver")
		if err != nil {
			return err
		}
		defer thaw()
		_ = pause(ctx, step.For)
		return nil
	}
	r := s.leader(ctx)
	if step.Replica != plan.Leader {
		r = s.replicas[step.Replica]
	}
	what := step.What
	if other := ofMarkers[what]; other != "" && len(s.markers) > 0 {
		what, r, span.Queue = other, s.markers[step.At.Milliseconds()/100%int64(len(s.markers))], true
	}
	span.Replica = strconv.Itoa(r.number)
	through := map[plan.What]*link.Link{
		plan.CutAPI: r.api, plan.SlowAPI: r.api, plan.ThrottleAPI: r.api, plan.FailAPI: r.api, plan.LoseAPI: r.api,
		plan.CutQueue: r.queue, plan.SlowQueue: r.queue, plan.ThrottleQueue: r.queue, plan.FailQueue: r.queue, plan.LoseQueue: r.queue,
	}[what]
	span.Queue = span.Queue || through == r.queue
	var restore func()
	switch what {
	case plan.Kill, plan.Terminate:
		r.kill(step.For, what == plan.Terminate)
		_ = pause(ctx, step.For)
		return nil
	case plan.Pause:
		restore = r.pause()
	case plan.CutAPI, plan.CutQueue:
		restore = through.Cut()
	case plan.SlowAPI, plan.SlowQueue:
		restore = through.Fail(link.Fault{Share: step.Share, Delay: step.For / 4})
	case plan.LoseAPI, plan.LoseQueue:
		restore = through.Fail(link.Fault{Share: step.Share, LoseReply: true})
	case plan.ThrottleAPI, plan.FailAPI, plan.ThrottleQueue, plan.FailQueue:
		restore = through.Fail(link.Fault{Share: step.Share, Effect: refusals[what]})
	default:
		return fmt.Errorf("no such fault: %s", step.What)
	}
	defer restore()
	_ = pause(ctx, step.For)
	return nil
}

// leader is the replica that says that it leads; the first if none does.
func (s *stage) leader(ctx context.Context) *replica {
	leads := make(chan *replica, len(s.replicas))
	var asked sync.WaitGroup
	for _, r := range s.replicas {
		asked.Go(func() {
			if r.leads(ctx) {
				leads <- r
			}
		})
	}
	asked.Wait()
	select {
	case r := <-leads:
		return r
	default:
		return s.replicas[0]
	}
}

// refusals are what the servers answer by themselves, or what stands in front of them.
var refusals = map[plan.What]http.HandlerFunc{
	plan.ThrottleAPI:   refusal(apierrors.NewTooManyRequests("too many requests, please try again later", 1)),
	plan.FailAPI:       refusal(apierrors.NewInternalError(errors.New("etcdserver: request timed out"))),
	plan.ThrottleQueue: sqsemu.Throttling,
	plan.FailQueue:     sqsemu.Unavailable,
}

// refusal is the API server's.
func refusal(err *apierrors.StatusError) http.HandlerFunc {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return func(w http.ResponseWriter, _ *http.Request) {
		if after, ok := apierrors.SuggestsClientDelay(err); ok {
			w.Header().Set("Retry-After", strconv.Itoa(after))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(int(status.Code))
		_ = json.NewEncoder(w).Encode(status)
	}
}

// cancel is what an operator does.
func (s *stage) cancel(ctx context.Context, node string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, interruption.CancelAnnotation)
	_, err := s.cluster.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return unlessGone(err) // it is too late then
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loss(node).Canceled = time.Now()
	return nil
}

// cordon is what an operator does too: the node stays cordoned, whatever we undo.
func (s *stage) cordon(ctx context.Context, name string) error {
	nodes := s.cluster.Client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, name, metav1.GetOptions{})
	if err != nil || node.Spec.Unschedulable {
		return unlessGone(err)
	}
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"unschedulable":true}}`, node.ResourceVersion)
	_, err = nodes.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if apierrors.IsConflict(err) {
		return nil // somebody was faster, perhaps with a cordon
	} else if err != nil {
		return unlessGone(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cordoned[name] = true
	return nil
}

// own is what the owner of a workload does.
func (s *stage) own(ctx context.Context, step plan.Step) error {
	name := s.round.Services[step.Service].Name
	deployments, budgets := s.cluster.Client.AppsV1().Deployments(roundNamespace), s.cluster.Client.PolicyV1().PodDisruptionBudgets(roundNamespace)
	allow := func(n int) error {
		_, err := budgets.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"maxUnavailable":%d}}`, n), metav1.PatchOptions{})
		return unlessGone(err)
	}
	change := func(patch string) error {
		_, err := deployments.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return unlessGone(err)
	}
	switch step.What {
	case plan.Roll:
		return change(fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"rolled":%q}}}}}`, step.At))
	case plan.Scale:
		return change(fmt.Sprintf(`{"spec":{"replicas":%d}}`, step.Count))
	case plan.Remove:
		background := metav1.DeletePropagationBackground
		return unlessGone(deployments.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}))
	case plan.Refuse:
		if err := allow(0); err != nil {
			return err
		}
		_ = pause(ctx, step.For)
		return allow(max(1, s.round.Services[step.Service].Unavailable))
	case plan.Loosen:
		return unlessGone(budgets.Delete(ctx, name, metav1.DeleteOptions{}))
	}
	return fmt.Errorf("no such step: %s", step.What)
}

// unlessGone: what an owner has deleted, or never had, cannot be changed.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// pause returns ctx's error if that ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
