package controlplane_test

import (
	"bytes"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
)

// The next borrower gets the same API server, and finds nothing of the one before: neither
// what somebody holds, nor what controllers make of deletions, nor a node that was on its way.
func TestBorrowedClusterIsReturnedEmpty(t *testing.T) {
	t.Cleanup(controlplane.ReturnAll)
	var before *controlplane.Cluster
	var apiserver int
	mess := func(t *testing.T, cluster *controlplane.Cluster) {
		ctx := t.Context()
		if err := cluster.CreatePools(ctx, controlplane.PoolSpec{Name: "batch", Boot: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.CreateNode(ctx, "batch"); err != nil {
			t.Fatal(err)
		}
		two := controlplane.DeploymentSpec{Namespace: "team", Name: "web", Replicas: 2}
		if _, err := cluster.RunDeployment(ctx, two); err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.WaitReady(ctx, "team", "web", 2); err != nil {
			t.Fatal(err)
		}
		if _, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: 2}); err != nil {
			t.Fatal(err)
		}
		held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"example.com/nobody"}}}
		if _, err := cluster.Client.CoreV1().ConfigMaps("default").Create(ctx, held, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// No room for both: Karpenter launches a node, which is not there when the test ends.
		if _, err := cluster.RunDeployment(ctx, controlplane.DeploymentSpec{Name: "late", Replicas: 2, CPU: "7", Pool: "batch"}); err != nil {
			t.Fatal(err)
		}
		for claims := 0; claims < 2; time.Sleep(50 * time.Millisecond) {
			list, err := cluster.Dynamic.Resource(controlplane.NodeClaims).List(ctx, metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			claims = len(list.Items)
		}
	}
	for _, name := range []string{"first", "second", "third"} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			cluster := controlplane.Borrow(t, controlplane.Options{Karpenter: true, Audit: true})
			t.Logf("ready after %s", time.Since(began).Round(10*time.Millisecond))
			ctx := t.Context()
			if before == nil {
				before, apiserver = cluster, cluster.Processes[1]
			} else if cluster != before || cluster.Processes[1] != apiserver || len(cluster.Processes) != 6 {
				t.Errorf("another control plane: processes %v", cluster.Processes)
			}
			text, err := cluster.AuditText(0)
			if err != nil || bytes.Contains(text, []byte(`"name":"held"`)) {
				t.Errorf("the audit log is of the last borrower: %v", err)
			}
			if name != "first" {
				time.Sleep(6 * time.Second) // longer than the node that was promised takes to boot
			}
			if nodes, err := cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil || len(nodes.Items) > 0 {
				t.Errorf("nodes %v: %v", nodes, err)
			}
			if pods, err := cluster.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil || len(pods.Items) > 0 {
				t.Errorf("pods %v: %v", pods, err)
			}
			if claims, err := cluster.Dynamic.Resource(controlplane.NodeClaims).List(ctx, metav1.ListOptions{}); err != nil || len(claims.Items) > 0 {
				t.Errorf("claims %v: %v", claims, err)
			}
			if namespaces, err := cluster.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil || len(namespaces.Items) != 4 {
				t.Errorf("namespaces %v: %v", namespaces, err)
			}
			mess(t, cluster)
		})
	}
}
