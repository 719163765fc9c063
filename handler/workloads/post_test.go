package workloads

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
)

// Whatever a pod answers, two attempts suffice, and only a valid answer counts.
func TestAnswers(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"when":"now"}`) }))
	t.Cleanup(elsewhere.Close)
	say := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status); fmt.Fprint(w, text) }
	}
	for name, tt := range map[string]struct {
		handler  http.HandlerFunc
		when     plan.When
		result   string
		attempts int
	}{
		"nothing":         {say(204, ""), "", resultDelivered, 1},
		"white space":     {say(200, " \n"), "", resultDelivered, 1},
		"an empty object": {say(200, "{}"), "", resultDelivered, 1},
		"now":             {say(200, `{"when":"now"}`), plan.WhenNow, resultAnswered, 1},
		"hold":            {say(202, `{"when":"hold","why":"busy"}`), plan.WhenHold, resultAnswered, 1},
		"last":            {say(200, `{"when": "last"}`), plan.WhenLast, resultAnswered, 1},
		"another word":    {say(200, `{"when":"never"}`), "", resultUnusable, 1},
		"no JSON":         {say(200, `OK`), "", resultUnusable, 1},
		"two answers":     {say(200, `{"when":"now"}{"when":"last"}`), "", resultUnusable, 1},
		"4 KiB":           {say(200, `{"when":"now"}`+strings.Repeat(" ", longestAnswer-len(`{"when":"now"}`))), plan.WhenNow, resultAnswered, 1},
		"a byte more":     {say(200, `{"when":"now"}`+strings.Repeat(" ", longestAnswer+1-len(`{"when":"now"}`))), "", resultUnusable, 1},
		"a megabyte":      {say(200, `{"when":"now"}`+strings.Repeat(" ", 1<<20)), "", resultUnusable, 1},
		"not found":       {say(404, `{"when":"now"}`), "", resultRefused, 1},
		"not well":        {say(503, `{"when":"now"}`), "", resultFailed, 2},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, "", resultRefused, 1},
		"never": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "", resultFailed, 2},
		"never to the end": {func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"when":`)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "", resultUnusable, 1},
		"a megabyte before": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, "", resultFailed, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			attempts := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				attempts++
				mu.Unlock()
				_, _ = io.ReadAll(r.Body) // or the server does not see that the client has gone
				tt.handler(w, r)
			}))
			defer server.Close()
			notifier, _ := newNotifier(t, nil)
			notifier.timeout = time.Second
			target, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			got := notifier.post(t.Context(), target, []byte("{}"))
			mu.Lock()
			defer mu.Unlock()
			if got.when != tt.when || got.result != tt.result || attempts != tt.attempts {
				t.Errorf("%q, %s after %d attempts, want %q, %s after %d", got.when, got.result, attempts, tt.when, tt.result, tt.attempts)
			}
		})
	}
}

// A proxy that an operator sets for the API server and AWS does not apply to pods.
func TestNoProxy(t *testing.T) {
	if transport := newClient().Transport.(*http.Transport); transport.Proxy != nil {
		t.Error("pods are notified through a proxy")
	}
}

// A pod is notified at the IP in its status, and no annotation leads anywhere else.
func TestTarget(t *testing.T) {
	for _, tt := range []struct {
		annotation, ip string
		change         func(*Options, *corev1.Pod)
		want           string // empty: no request
	}{
		{"8080", "10.1.2.3", nil, "http://10.1.2.3:8080/"},
		{"8080/", "10.1.2.3", nil, "http://10.1.2.3:8080/"},
		{"1/spot/notice?to=me", "fd00::7", nil, "http://[fd00::7]:1/spot/notice?to=me"},
		{"65535//example.com/x", "10.1.2.3", nil, "http://10.1.2.3:65535//example.com/x"},
		{"80/@example.com:81/%2e%2e", "10.1.2.3", nil, "http://10.1.2.3:80/@example.com:81/%2e%2e"},
		{"0", "10.1.2.3", nil, ""},
		{"65536", "10.1.2.3", nil, ""},
		{"+80", "10.1.2.3", nil, ""},
		{"080", "10.1.2.3", nil, ""},
		{"http", "10.1.2.3", nil, ""},
		{"80@example.com/x", "10.1.2.3", nil, ""},
		{"80:81", "10.1.2.3", nil, ""},
		{"80?x", "10.1.2.3", nil, ""},
		{"80/\r\nHost: x", "10.1.2.3", nil, ""},
		{"80/#x", "10.1.2.3", nil, ""},
		{"80/" + strings.Repeat("x", longestPath+1), "10.1.2.3", nil, ""},
		{"80", "example.com", nil, ""},
		{"80", "127.0.0.1", nil, ""},
		{"80", "::ffff:127.0.0.1", nil, ""},
		{"80", "::1", nil, ""},
		{"80", "0.0.0.0", nil, ""},
		{"80", "169.254.169.254", nil, ""},
		{"80", "fd00:ec2::254", nil, ""},
		{"80", "fd00:ec2::23", nil, ""},
		{"80", "fd00:ec3::23", nil, "http://[fd00:ec3::23]:80/"},
		{"80", "64:ff9b::a9fe:a9fe", nil, ""},
		{"80", "64:ff9b:1::a9fe:a9fe", nil, ""},
		{"80", "64:ff9b:1:a9fe:a9:fe00::", nil, ""},
		{"80", "::a9fe:a9fe", nil, ""},
		{"80", "::ffff:169.254.169.254", nil, ""},
		{"80", "::ffff:0:a9fe:a9fe", nil, ""},
		{"80", "2002:a9fe:a9fe::1", nil, ""},
		{"80", "::ffff:10.1.2.3", nil, "http://10.1.2.3:80/"},
		{"80", "64:ff9b::a01:203", func(o *Options, _ *corev1.Pod) { o.Networks = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96")} }, "http://[64:ff9b::a01:203]:80/"},
		{"80", "10.9.9.9", nil, ""},
		{"80", "::ffff:10.9.9.9", nil, ""},
		{"80", "10.9.9.9", func(o *Options, _ *corev1.Pod) { o.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, ""},
		{"80", "10.9.9.9", func(o *Options, p *corev1.Pod) {
			p.Spec.HostNetwork, o.Networks = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, "http://10.9.9.9:80/"},
		{"80", "fe80::1%eth0", nil, ""},
		{"80", "fd00:ec3::23%eth0", nil, ""},
		{"80", "224.0.0.1", nil, ""},
		{"80", "10.1.2.3", func(o *Options, _ *corev1.Pod) { o.Networks = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")} }, ""},
		{"80", "10.2.2.3", func(o *Options, _ *corev1.Pod) { o.Networks = []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")} }, "http://10.2.2.3:80/"},
		{"80", "10.1.2.3", func(_ *Options, p *corev1.Pod) { p.Spec.HostNetwork = true }, ""},
		{"80", "10.1.2.3", func(o *Options, p *corev1.Pod) {
			p.Spec.HostNetwork, o.Networks = true, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, "http://10.1.2.3:80/"},
	} {
		pod := podOf("a")
		pod.Status.PodIP = tt.ip
		notifier, _ := newNotifier(t, func(o *Options) {
			o.Networks, o.IsNode = nil, func(addr netip.Addr) bool { return addr == netip.MustParseAddr("10.9.9.9") }
			if tt.change != nil {
				tt.change(o, pod)
			}
		})
		got, err := notifier.target(pod, tt.annotation)
		if text := fmt.Sprint(got); err == nil && text != tt.want || err != nil && tt.want != "" {
			t.Errorf("%s at %s: %s, %v, want %q", tt.annotation, tt.ip, text, err, tt.want)
		}
	}
}

// Nobody is notified at an address that Services have, unless that is named; where their networks
// cannot be read, they are read again.
func TestAddressesOfServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{at: map[string]time.Time{}, services: []string{"10.0.0.0/16", "fd00:1::/112"}, failures: 1}
		notifier := n.notifier(t, func(o *Options) { o.Networks = nil })
		for _, tt := range []struct {
			ip   string
			want bool
		}{{"10.0.0.1", false}, {"10.0.0.1", true}, {"10.1.0.1", false}, {"fd00:1::1", true}, {"fd00:2::1", false}} {
			if got := notifier.ofService(t.Context(), tt.ip); got != tt.want {
				t.Errorf("%s of a Service: %t, want %t", tt.ip, got, tt.want)
			}
			time.Sleep(notifier.services.Lifetime(io.EOF) + 1)
		}
		if n.lists != 2 {
			t.Errorf("%d requests, want one that fails and one that is kept", n.lists)
		}
		named := n.notifier(t, func(o *Options) { o.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
		if named.ofService(t.Context(), "10.0.0.1") {
			t.Error("a network that is named is refused")
		}
		pod := in("shop", "a", "node-a", "")
		pod.Status.PodIP = "10.0.0.1"
		notifier.Notify(t.Context(), interrupted(time.Now().Add(time.Minute)), []plan.Decision{asks(pod, time.Now())})
		notifier.Wait()
		if heard := n.taken(); len(heard) > 0 {
			t.Errorf("a Service has got %q", heard)
		}
	})
}

// A receiver can tell whose requests these are.
func TestHeadersOfRequest(t *testing.T) {
	headers := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { headers <- r.Header }))
	defer server.Close()
	notifier, _ := newNotifier(t, func(o *Options) { o.UserAgent = "spot-handler/v1" })
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if got := notifier.post(t.Context(), target, []byte("{}")); got.err != nil {
		t.Fatal(got.err)
	}
	h := <-headers
	if h.Get("User-Agent") != "spot-handler/v1" || h.Get("Content-Type") != "application/cloudevents+json; charset=utf-8" {
		t.Errorf("headers %v", h)
	}
}
