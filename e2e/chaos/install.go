package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
)

// Where the chart is installed, and as whom its replicas run.
const (
	namespace = "spot-handler"
)

// accountOf is whom the replicas run as, in a mode of the chart; markAccount is for what marks nodes.
func accountOf(mode string) string {
	if mode == "imds" {
		return "spot-handler-drain"
	}
	return "spot-handler-queue"
}

const markAccount = "spot-handler-imds"

func install(ctx context.Context, cluster *controlplane.Cluster, mode string, progress io.Writer) error {
	if err := cluster.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	if _, err := chart.Create(ctx, cluster.Dynamic, chart.Release{Values: chart.Values(mode, map[string]any{"flags.workloadNotices": true})}, chart.Around, progress); err != nil {
		return err
	}
	if mode == "imds" {
		if err := chart.WaitAllowed(ctx, cluster.Client, namespace, markAccount, false); err != nil {
			return err
		}
	}
	return chart.WaitAllowed(ctx, cluster.Client, namespace, accountOf(mode), true)
}

// tokenFile is where the replicas find their token. It is good for an hour, and written
// again before each round.
func tokenFile(dir string) string { return filepath.Join(dir, "token") }

func writeToken(ctx context.Context, cluster *controlplane.Cluster, path, account, pod string) error {
	config, err := cluster.ServiceAccountConfig(ctx, namespace, account, pod)
	if err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, []byte(config.BearerToken), 0o600); err != nil {
		return fmt.Errorf("write a token: %w", err)
	}
	return os.Rename(temporary, path)
}

// writeKubeconfig writes a replica's, whose server is its link.
func writeKubeconfig(dir string, replica int, token, server string, ca []byte) (string, error) {
	path := filepath.Join(dir, fmt.Sprintf("replica-%d.kubeconfig", replica))
	return path, controlplane.WriteKubeconfig(path, server, ca, clientcmdapi.AuthInfo{TokenFile: token})
}
