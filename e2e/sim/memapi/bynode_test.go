package memapi

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
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
		onNode := func(query string) io.ReadCloser {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
				"http://api.sim/api/v1/pods?fieldSelector=spec.nodeName%3Da"+query, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := c.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { answer.Body.Close() })
			return answer.Body
		}
		put("second", "a")
		put("first", "a")
		put("other", "b")
		put("waits", "")
		var seen []string
		body := onNode("&watch=1")
		go func() {
			for lines := bufio.NewScanner(body); lines.Scan(); {
				var e struct {
					Type   string
					Object metav1.PartialObjectMetadata
				}
				if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
					panic(err)
				}
				seen = append(seen, e.Type+" "+e.Object.Name)
			}
		}()
		synctest.Wait()
		put("waits", "a")
		put("first", "a")
		put("other", "b")
		s.Do(func() { s.Remove(Pods, "shop/second", "test") })
		synctest.Wait()
		want := []string{"ADDED first", "ADDED second", "ADDED waits", "MODIFIED first", "DELETED second"}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("watched (-want +got):\n%s", diff)
		}

		list := &corev1.PodList{}
		if err := json.NewDecoder(onNode("")).Decode(list); err != nil {
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
