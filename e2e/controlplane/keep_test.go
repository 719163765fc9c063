package controlplane_test

import (
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/controlplane/internal/supervisor"
	"spot-handler/e2e/internal/assets"
)

// A kept cluster is used by one test after the other, is empty for each, and leaves nothing
// when it is ended.
func TestKeptCluster(t *testing.T) {
	program, err := assets.Supervisor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end := func() int {
		ended, err := supervisor.EndKept(t.Context(), filepath.Dir(program))
		if err != nil {
			t.Error(err)
		}
		return ended
	}
	end() // of somebody who develops here
	t.Setenv(controlplane.KeepVariable, "1")
	t.Cleanup(controlplane.ReturnAll)
	var left remains
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			cluster := controlplane.Borrow(t, controlplane.Options{})
			if left.Dir == "" {
				left = remainsOf(cluster)
			} else if cluster.Dir != left.Dir {
				t.Errorf("another control plane: %s after %s", cluster.Dir, left.Dir)
			}
			if nodes, err := cluster.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(nodes.Items) > 0 {
				t.Errorf("nodes %v: %v", nodes, err)
			}
			if _, err := cluster.CreateBareNodes(t.Context(), controlplane.BareNodes{Count: 2}); err != nil {
				t.Fatal(err)
			}
			if name == "second" {
				if other := controlplane.Borrow(t, controlplane.Options{}); other.Dir == cluster.Dir {
					t.Error("two tests have the same cluster")
				}
			}
		})
	}
	if ended := end(); ended != 1 {
		t.Errorf("%d clusters have been ended, want 1", ended)
	}
	left.checkGone(t, 20*time.Second)
}
