package memapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// put writes a Node that says what it is.
func put(s *Server, name, is string) (version string) {
	s.Do(func() {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"is": is}}}
		version = s.Put(Nodes, node, "test").GetResourceVersion()
	})
	return version
}

// ask makes a request about Nodes.
func ask(t *testing.T, c *Client, path string) (code int, body io.ReadCloser) {
	t.Helper()
	return askFor(t, c, "nodes"+path)
}

// askFor makes a request about objects of the core group.
func askFor(t *testing.T, c *Client, path string) (code int, body io.ReadCloser) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.sim/api/v1/"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Body
}

// listed is what a list has, or its error.
func listed(t *testing.T, c *Client, query string) string {
	t.Helper()
	code, body := ask(t, c, query)
	text, _ := io.ReadAll(body)
	if code != http.StatusOK {
		return fmt.Sprint(code, " ", strings.Contains(string(text), "Too large resource version"))
	}
	list := &corev1.NodeList{}
	if err := json.Unmarshal(text, list); err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, node := range list.Items {
		have = append(have, node.Name+"="+node.Labels["is"])
	}
	return strings.Join(have, " ") + " at " + list.ResourceVersion
}

// stream are the events of a watch of Nodes, one a line.
func stream(t *testing.T, c *Client, query string) *[]string {
	t.Helper()
	return streamOf(t, c, "nodes"+query)
}

// streamOf are the events of a watch, one a line: the name of each object, and its label "is".
func streamOf(t *testing.T, c *Client, path string) *[]string {
	t.Helper()
	_, body := askFor(t, c, path)
	var got []string
	go func() {
		for lines := bufio.NewScanner(body); lines.Scan(); {
			var e struct {
				Type   string
				Object metav1.PartialObjectMetadata
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				panic(err)
			}
			got = append(got, strings.TrimSpace(e.Type+" "+e.Object.Name+" "+e.Object.Labels["is"]))
		}
	}()
	t.Cleanup(func() { body.Close() })
	return &got
}

// A server whose watch cache is behind answers from it only what may be old.
func TestFallBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		c := s.Client("test")
		put(s, "a", "old")
		put(s, "b", "old")
		time.Sleep(10 * time.Second)
		then := put(s, "d", "old")
		time.Sleep(10 * time.Second)
		put(s, "a", "new")
		s.Do(func() { s.Remove(Nodes, "b", "test") })
		now := put(s, "c", "new")
		s.Do(func() { s.FallBehind(5*time.Second, func(k *Kind) bool { return k == Nodes }) })

		old, current := "a=old b=old d=old at "+then, "a=new c=new d=old at "+now
		for _, test := range []struct {
			query, want string
			takes       time.Duration
		}{
			{"?resourceVersion=0", old, 0},
			{"?resourceVersion=0&limit=1", old, 0},
			{"?resourceVersion=" + then, old, 0},
			{"?resourceVersion=" + now, "504 true", cacheWaits},
			{"", current, cacheWaits}, // and then from etcd
		} {
			began := time.Now()
			if got := listed(t, c, test.query); got != test.want || time.Since(began) != test.takes {
				t.Errorf("list %s: %s after %s, want %s after %s", test.query, got, time.Since(began), test.want, test.takes)
			}
		}
		for query, want := range map[string]int{"/b": 404, "/b?resourceVersion=0": 200, "/c": 200, "/c?resourceVersion=0": 404} {
			if code, _ := ask(t, c, query); code != want {
				t.Errorf("get %s: %d, want %d", query, code, want)
			}
		}

		fromAny := stream(t, c, "?watch=true&resourceVersion=0")
		fromThen := stream(t, c, "?watch=true&resourceVersion="+then)
		fromNow := stream(t, c, "?watch=true&resourceVersion="+now)
		refused := stream(t, c, "?watch=true&sendInitialEvents=true&allowWatchBookmarks=true")
		time.Sleep(time.Minute + cacheWaits)
		put(s, "a", "newer")
		waits := stream(t, c, "?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersion=0")
		synctest.Wait()
		compare := func(what string, got *[]string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, *got); diff != "" {
				t.Errorf("%s:\n%s", what, diff)
			}
		}
		has := []string{"ADDED a old", "ADDED b old", "ADDED d old"}
		gets := []string{"MODIFIED a new", "DELETED b old", "ADDED c new", "MODIFIED a newer"}
		compare("while it is behind, from any version", fromAny, has...)
		compare("while it is behind, from a version that it has", fromThen)
		compare("while it is behind, from a later one", fromNow)
		compare("while it is behind, with the objects as they are now", refused, "ERROR")
		compare("while it is behind, with the objects as they were", waits, append(has, "BOOKMARK")...)

		s.Do(s.CatchUp)
		synctest.Wait()
		compare("from any version", fromAny, append(has, gets...)...)
		compare("from a version that it has", fromThen, gets...)
		compare("from a later one", fromNow, gets[3:]...)
		compare("with the objects as they were", waits, append(append(has, "BOOKMARK"), gets...)...)
		if got := listed(t, c, "?resourceVersion=0"); !strings.HasPrefix(got, "a=newer c=new d=old at ") {
			t.Errorf("list once it has caught up: %s", got)
		}
	})
}
