package memapi

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The pods of a node are found as they come, go and are removed, in lists, in watches and in the server.
func TestPodsOfNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		c := s.Client("test")
		put := func(name, node string) {
			s.Do(func() {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
				pod.Spec.NodeName = node
				s.Put(Pods, pod, "test")
			})
		}
		const onNode = "pods?fieldSelector=spec.nodeName%3Da"
		put("second", "a")
		put("first", "a")
		put("other", "b")
		put("waits", "")
		seen := streamOf(t, c, onNode+"&watch=1")
		synctest.Wait()
		put("waits", "a")
		put("first", "a")
		put("other", "b")
		s.Do(func() { s.Remove(Pods, "shop/second", "test") })
		synctest.Wait()
		want := []string{"ADDED first", "ADDED second", "ADDED waits", "MODIFIED first", "DELETED second"}
		if diff := cmp.Diff(want, *seen); diff != "" {
			t.Errorf("watched (-want +got):\n%s", diff)
		}

		list := &corev1.PodList{}
		_, body := askFor(t, c, onNode)
		if err := json.NewDecoder(body).Decode(list); err != nil {
			t.Fatal(err)
		}
		var listed []string
		for _, pod := range list.Items {
			listed = append(listed, pod.Name)
		}
		var have []string
		s.Do(func() {
			for _, node := range []string{"a", "b", ""} {
				for _, pod := range PodsOn(s, node) {
					have = append(have, node+":"+pod.Name)
				}
			}
		})
		if got := strings.Join(listed, " "); got != "first waits" {
			t.Errorf("listed %s, want the first and the one that has come", got)
		}
		if diff := cmp.Diff([]string{"a:first", "a:waits", "b:other"}, have); diff != "" {
			t.Errorf("pods by node (-want +got):\n%s", diff)
		}
	})
}
