package stories

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// posted is a webhook as it arrived.
type posted struct{ path, token, body string }

// receiver takes webhooks. While it is down it leaves the first without an answer, and
// answers 500 to the others.
type receiver struct {
	down atomic.Bool

	mu      sync.Mutex
	refused int
	taken   []posted
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down.Load() {
		if r.refused++; r.refused == 1 {
			r.mu.Unlock()
			<-req.Context().Done()
			r.mu.Lock()
			return
		}
		http.Error(w, "down", http.StatusInternalServerError)
		return
	}
	r.taken = append(r.taken, posted{req.URL.Path, req.Header.Get("X-Token"), string(body)})
}

func (r *receiver) all() (refused int, taken []posted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused, slices.Clone(r.taken)
}

// tunnel is an HTTP proxy with a password, which leads every connection to one address:
// the name that the client asks for exists nowhere else.
func tunnel(s *story, address string) (proxy string, asked func() []string) {
	var mu sync.Mutex
	var hosts []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") == "" {
			http.Error(w, "", http.StatusProxyAuthRequired)
			return
		}
		mu.Lock()
		hosts = append(hosts, r.Host)
		mu.Unlock()
		there, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, "", http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusOK)
		here, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			there.Close()
			return
		}
		go func() { _, _ = io.Copy(there, buffered); there.Close() }()
		_, _ = io.Copy(here, there)
		here.Close()
	}))
	s.Cleanup(server.Close)
	return strings.Replace(server.URL, "http://", "http://user:proxy-password@", 1), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(hosts)
	}
}

// mount does with a Secret what the kubelet does: a directory for each version, and a
// link that is moved from one to the next.
func (s *story) mount(secret *corev1.Secret, dir string) {
	s.Helper()
	version := "..version_" + secret.ResourceVersion
	s.must(os.MkdirAll(filepath.Join(dir, version), 0o700))
	for name, data := range secret.Data {
		s.must(os.WriteFile(filepath.Join(dir, version, name), data, 0o600))
		if link := filepath.Join(dir, name); os.Symlink(filepath.Join("..data", name), link) != nil {
			_, err := os.Lstat(link) // there from the version before
			s.must(err)
		}
	}
	s.must(os.Symlink(version, filepath.Join(dir, "..data_tmp")))
	s.must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
}

func textOf(s *story, body string) string {
	s.Helper()
	var payload struct{ Text string }
	s.must(json.Unmarshal([]byte(body), &payload))
	return payload.Text
}

// A webhook whose URL and header are in a Secret goes out through a proxy: one on the
// notice and one on the outcome, though there are two replicas and two messages. While
// the receiver hangs, and answers 500 after that, the drain goes on. The Secret is rotated without a restart, and
// nothing of it is in any log.
func TestWebhookThroughProxyFromSecret(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1})
	s.must(err)
	s.service("web", 3, nil)
	_, err = s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: "spare"})
	s.must(err)

	slack := &receiver{}
	slack.down.Store(true)
	server := httptest.NewTLSServer(slack) // its certificate is for example.com
	s.Cleanup(server.Close)
	proxy, asked := tunnel(s, server.Listener.Addr().String())
	authority := filepath.Join(s.TempDir(), "ca.pem")
	s.must(os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))

	secret, err := s.cluster.Client.CoreV1().Secrets("default").Create(s.ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "spot-handler-webhook"},
		StringData: map[string]string{"url": "https://example.com/services/first-secret\n", "headers": "X-Token: first-token\n"},
	}, metav1.CreateOptions{})
	s.must(err)
	mounted := s.TempDir()
	s.mount(secret, mounted)

	sqs, queue := s.sqs()
	var replicas []*daemon.Daemon
	for range 2 {
		replicas = append(replicas, s.run(daemon.Options{
			Args: []string{"queue", "--queue-url=" + queue.URL(), "--log-level=debug", "--webhook-proxy=" + proxy,
				"--webhook-url-file=" + mounted + "/url", "--webhook-headers-file=" + mounted + "/headers"},
			SQS: sqs.URL, Env: []string{"SSL_CERT_FILE=" + authority},
		}))
	}
	interrupt := func(node *corev1.Node, event string) interruption.Record {
		body := daemon.EventBridge(daemon.SpotInterruption, event, controlplane.InstanceID(node.Name), time.Now())
		queue.Send(body)
		queue.Send(body)
		return s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase.Over() })
	}

	rec := interrupt(nodes[0], "event-1")
	if rec.Phase == interruption.DeadlineReached || rec.Pods == nil || rec.Pods.Graceful != 3 {
		t.Errorf("record %s, want 3 graceful", rec)
	}
	s.eventually("an attempt after the one that hung", func() bool { refused, _ := slack.all(); return refused > 1 })
	if _, taken := slack.all(); len(taken) > 0 {
		t.Fatalf("taken while down: %v", taken)
	}
	slack.down.Store(false)
	arrived := func(n int) []posted {
		s.eventually(fmt.Sprintf("%d webhooks", n), func() bool { _, taken := slack.all(); return len(taken) >= n })
		_, taken := slack.all()
		return taken
	}
	first := arrived(2)
	// While the receiver is away each replica tries again in its own time: the notice of
	// the one that took the message may come after the outcome, which is the leader's.
	slices.SortFunc(first, func(a, b posted) int { return -strings.Compare(textOf(s, a.body), textOf(s, b.body)) })
	for i, p := range first {
		want := []string{"SpotInterruption on " + nodes[0].Name + ": ", "Drained on " + nodes[0].Name + ": 3 pods: 3 graceful"}[i]
		if !strings.HasPrefix(textOf(s, p.body), want) || p.path != "/services/first-secret" || p.token != "first-token" {
			t.Errorf("webhook %d is %v, want %q", i+1, p, want)
		}
	}

	secret.StringData = map[string]string{"url": "https://example.com/services/second-secret", "headers": "X-Token: second-token"}
	secret, err = s.cluster.Client.CoreV1().Secrets("default").Update(s.ctx, secret, metav1.UpdateOptions{})
	s.must(err)
	s.mount(secret, mounted)
	spare, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1, Prefix: "other"})
	s.must(err)
	interrupt(spare[0], "event-2")
	for i, p := range arrived(4)[2:] {
		if !strings.Contains(textOf(s, p.body), " on "+spare[0].Name+": ") || p.path != "/services/second-secret" || p.token != "second-token" {
			t.Errorf("webhook %d is %v", i+3, p)
		}
	}

	s.eventually("count of the four", func() bool {
		n := 0.0
		for _, d := range replicas {
			n += s.metric(d, `spot_handler_webhooks_total{result="delivered"}`)
		}
		return n >= 4 // the answer to the last may be on its way
	})
	var delivered float64
	for _, d := range replicas {
		delivered += s.metric(d, `spot_handler_webhooks_total{result="delivered"}`)
		if code := d.Stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		for _, line := range d.Lines("") {
			text := fmt.Sprint(line)
			for _, word := range []string{"first-secret", "second-secret", "first-token", "second-token", "proxy-password"} {
				if strings.Contains(text, word) {
					t.Errorf("%s is in the log: %s", word, text)
				}
			}
		}
	}
	if _, taken := slack.all(); delivered != 4 || len(taken) != 4 {
		t.Errorf("%v counted and %d taken, want 4: %v", delivered, len(taken), taken)
	}
	if hosts := asked(); len(hosts) == 0 || slices.ContainsFunc(hosts, func(h string) bool { return h != "example.com:443" }) {
		t.Errorf("the proxy was asked for %v", hosts)
	}
}

// A DaemonSet that only marks notifies nobody: the drainer announces the notice and the outcome,
// once each, though both sources announce the interruption.
func TestWebhookOfMarkerAndDrainer(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	nodes, err := s.cluster.CreateBareNodes(s.ctx, controlplane.BareNodes{Count: 1})
	s.must(err)
	node := nodes[0]
	slack := &receiver{}
	proxy := httptest.NewServer(slack) // a proxy for http is asked for whole URLs
	s.Cleanup(proxy.Close)
	template := filepath.Join(s.TempDir(), "template")
	s.must(os.WriteFile(template, []byte(`{"what": {{ .Event | upper | toJson }}, "who": {{ env "WHO" | toJson }}, "node": {{ .NodeName | toJson }}}`), 0o600))

	sqs, queue := s.sqs()
	metadata := s.imds(node)
	url := filepath.Join(s.TempDir(), "url")
	s.must(os.WriteFile(url, []byte("http://hooks.example.com/hook"), 0o600))
	flags := []string{"--webhook-url-file=" + url, "--webhook-template-file=" + template}
	env := func(who string) []string { return []string{"WHO=" + who, "HTTP_PROXY=" + proxy.URL, "NO_PROXY="} }
	s.run(daemon.Options{Args: append([]string{"queue", "--queue-url=" + queue.URL(), alone}, flags...), SQS: sqs.URL, Env: env("drainer")})
	s.run(daemon.Options{
		Args: append([]string{"imds", "--node-name=" + node.Name, "--drain=false"}, flags...),
		IMDS: metadata.URL, Env: env("marker"),
	})

	at := time.Now().Truncate(time.Second)
	metadata.Interrupt("terminate", at.Add(2*time.Minute))
	s.waitRecord(node.Name, func(r interruption.Record) bool { return true })
	// The queue's word is that EC2 acts 10 s earlier: that is taken, and is no new notice.
	id := queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", controlplane.InstanceID(node.Name), at.Add(-10*time.Second)))
	s.eventually("deletion of the message", func() bool { return queue.Deleted(id) })
	s.eventually("two webhooks", func() bool { _, taken := slack.all(); return len(taken) >= 2 })

	_, taken := slack.all()
	var bodies []string
	for _, p := range taken {
		bodies = append(bodies, p.body)
	}
	want := []string{
		fmt.Sprintf(`{"what": "NOTICE", "who": "drainer", "node": %q}`, node.Name),
		fmt.Sprintf(`{"what": "OUTCOME", "who": "drainer", "node": %q}`, node.Name),
	}
	slices.Sort(bodies) // several are sent at the same time: in any order
	if !slices.Equal(bodies, want) {
		t.Errorf("webhooks %q, want %q", bodies, want)
	}
}
