package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/chaos/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/handler/interruption"
)

// mark runs a process on each node that marks it, in mode imds, until stop is called. They are
// numbered after the replicas.
func (s *stage) mark(ctx context.Context) (stop func(), err error) {
	s.markers, s.metadata = nil, nil
	if s.round.Mode != "imds" {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	stop = func() {
		cancel()
		running.Wait()
		for i, r := range s.markers {
			r.close()
			s.metadata[i].Close()
		}
	}
	for i, node := range s.nodes {
		pod, err := s.podOn(ctx, node)
		if err != nil {
			stop()
			return nil, err
		}
		metadata := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(node)})
		number := plan.Replicas + i
		token := filepath.Join(s.dir, fmt.Sprintf("token-%d", number))
		if err := writeToken(ctx, s.cluster, token, markAccount, pod); err != nil {
			stop()
			return nil, err
		}
		r, err := newReplica(number, s.dir, token, s.cluster, metadata.URL, daemon.Options{
			Args: []string{"imds", "--drain=false", "--node-name=" + node}, IMDS: metadata.URL,
		})
		if err != nil {
			stop()
			return nil, err
		}
		s.markers, s.metadata = append(s.markers, r), append(s.metadata, metadata)
		running.Go(func() { _ = r.run(ctx) }) // fails only where nothing can be started, which the wait tells
	}
	err = poll(ctx, 2*time.Minute, func(ctx context.Context) (bool, error) {
		for _, r := range s.markers {
			if !r.ready(ctx) {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("wait for what marks nodes: %w", err)
	}
	return stop, nil
}

// podOn puts a pod of the account that marks on the node, as the DaemonSet would: tokens are bound
// to pods.
func (s *stage) podOn(ctx context.Context, node string) (string, error) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: markAccount + "-", Namespace: namespace},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: markAccount,
			Containers: []corev1.Container{{Name: "spot-handler", Image: "none"}},
			// As a pod of the DaemonSet it would stay; this one says so by name.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}, {Key: interruption.TaintKey, Operator: corev1.TolerationOpExists}},
		},
	}
	err := controlplane.Create(ctx, s.cluster.Client, pod)
	return pod.Name, err
}

// ofMarkers is what befalls a process that marks, in place of the way to a queue.
var ofMarkers = map[plan.What]plan.What{
	plan.CutQueue: plan.CutAPI, plan.SlowQueue: plan.SlowAPI, plan.ThrottleQueue: plan.ThrottleAPI, plan.FailQueue: plan.Kill, plan.LoseQueue: plan.LoseAPI,
}
