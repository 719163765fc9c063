package main

import (
	"context"
	"fmt"
	"io"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"os"
	"path/filepath"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
)

// Where the chart is installed, and as whom its replicas run.
const (
	namespace = "spot-handler"
	account   = "spot-handler-queue"
)

func install(ctx context.Context, cluster *controlplane.Cluster, progress io.Writer) error {
	if err := cluster.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	if _, err := chart.Create(ctx, cluster.Dynamic, chart.Release{Values: chart.Values("queue", nil)}, chart.Around, progress); err != nil {
		return err
	}
	return chart.WaitAllowed(ctx, cluster.Client, namespace, account, true)
}

// tokenFile is where the replicas find their token. It is good for an hour, and written
// again before each round.
func tokenFile(dir string) string { return filepath.Join(dir, "token") }

func writeToken(ctx context.Context, cluster *controlplane.Cluster, dir string) error {
	config, err := cluster.ServiceAccountConfig(ctx, namespace, account, "")
	if err != nil {
		return err
	}
	temporary := tokenFile(dir) + ".new"
	if err := os.WriteFile(temporary, []byte(config.BearerToken), 0o600); err != nil {
		return fmt.Errorf("write a token: %w", err)
	}
	return os.Rename(temporary, tokenFile(dir))
}

// writeKubeconfig writes a replica's, whose server is its link.
func writeKubeconfig(dir string, replica int, server string, ca []byte) (string, error) {
	file := clientcmdapi.NewConfig()
	file.Clusters["cluster"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	file.AuthInfos[account] = &clientcmdapi.AuthInfo{TokenFile: tokenFile(dir)}
	file.Contexts[account] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: account}
	file.CurrentContext = account
	path := filepath.Join(dir, fmt.Sprintf("replica-%d.kubeconfig", replica))
	return path, clientcmd.WriteToFile(*file, path)
}
