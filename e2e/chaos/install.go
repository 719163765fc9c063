package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/controlplane"
)

// Where the chart is installed, and as whom its replicas run.
const (
	namespace = "spot-handler"
	account   = "spot-handler-queue"
	user      = "system:serviceaccount:" + namespace + ":" + account
)

// installed are the kinds of the chart's objects that the replicas live by: their rights, and
// what else holds and helps them in the API server. The processes themselves are ours.
var installed = []string{
	"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "FlowSchema", "PriorityLevelConfiguration",
}

func install(ctx context.Context, cluster *controlplane.Cluster, progress io.Writer) error {
	if err := cluster.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	helms, err := chart.Helms(ctx, progress)
	if err != nil {
		return err
	}
	objects, err := helms[len(helms)-1].Render(ctx, chart.Release{Values: chart.Values("queue", nil)})
	if err != nil {
		return err
	}
	for _, o := range objects {
		if !slices.Contains(installed, o.GetKind()) {
			continue
		}
		resource, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
		if _, err := cluster.Dynamic.Resource(resource).Namespace(o.GetNamespace()).Create(ctx, &o, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return waitAllowed(ctx, cluster)
}

// waitAllowed waits until the API server grants what the roles say: a process that lacks a
// right at its start ends.
func waitAllowed(ctx context.Context, cluster *controlplane.Cluster) error {
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "patch", Resource: "nodes"},
		{Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace},
	} {
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			answer, err := cluster.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &right},
			}, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed, err
		})
		if err != nil {
			return fmt.Errorf("wait until %s may %s %s: %w", account, right.Verb, right.Resource, err)
		}
	}
	return nil
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
