// Command kubelet runs a kubelet whose containers are made up, to see what the rest of it does: how
// soon it writes files, for one. All but the container runtime, mounts and cgroups is the kubelet's
// own, with its own defaults. It serves nothing.
//
// It registers the Node hollow with the API server that KUBECONFIG names, prints its root directory,
// and runs until its standard input ends. It is a module of its own, as nothing else needs the
// kubelet's.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	cri "k8s.io/cri-client/pkg"
	"k8s.io/cri-client/pkg/fake"
	cadvisor "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubemark"
)

const node = "hollow"

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return fmt.Errorf("read KUBECONFIG: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	endpoint, err := fake.GenerateEndpoint()
	if err != nil {
		return fmt.Errorf("find a place for the runtime: %w", err)
	}
	containers := fake.NewFakeRemoteRuntime()
	if err := containers.Start(endpoint); err != nil {
		return fmt.Errorf("start the runtime: %w", err)
	}
	runtime, err := cri.NewRemoteRuntimeService(ctx, endpoint, 15*time.Second, noop.NewTracerProvider(), false)
	if err != nil {
		return fmt.Errorf("connect to the runtime: %w", err)
	}
	flags, settings := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{NodeName: node, MaxPods: 110})
	settings.EnableServer, settings.Address = false, "127.0.0.1"
	settings.FailCgroupV1 = false                 // it uses none
	settings.SyncFrequency.Duration = time.Minute // a kubelet's default, where kubemark has 10 s
	fmt.Println(flags.RootDirectory)
	go kubemark.NewHollowKubelet(flags, settings, client, client, &cadvisor.Fake{NodeName: node}, containers.ImageService, runtime,
		cm.NewStubContainerManagerWithDevicePluginResource(corev1.ResourceList{})).Run(ctx)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return os.RemoveAll(flags.RootDirectory)
}
