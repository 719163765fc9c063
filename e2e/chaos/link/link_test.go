package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// serve answers "yes", and counts.
func serve(t *testing.T, encrypted bool) (*Link, *http.Client, *atomic.Int32) {
	t.Helper()
	var served atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		_, _ = io.WriteString(w, "yes "+r.Proto+" "+r.Header.Get("Stamp"))
	}))
	o := Options{Stamp: func(r *http.Request) { r.Header.Set("Stamp", "mine") }}
	if encrypted {
		server.EnableHTTP2 = true
		server.StartTLS()
		o.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
		o.TLS.RootCAs.AddCert(server.Certificate())
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	o.To = server.URL
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	transport := &http.Transport{ForceAttemptHTTP2: encrypted}
	if encrypted {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(l.CA()) {
			t.Fatal("no certificate")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	t.Cleanup(transport.CloseIdleConnections)
	return l, &http.Client{Transport: transport, Timeout: 10 * time.Second}, &served
}

func get(t *testing.T, c *http.Client, method, url string, within time.Duration) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

const enough = 10 * time.Second

func TestLink(t *testing.T) {
	for name, encrypted := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(name, func(t *testing.T) {
			l, c, served := serve(t, encrypted)
			ok := func() {
				t.Helper()
				if code, body, err := get(t, c, http.MethodPost, l.URL, enough); code != 200 || body != "yes "+name+" mine" {
					t.Fatalf("%d %q %v", code, body, err)
				}
			}
			ok()

			restore := l.Fail(Fault{Share: 1, Effect: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }})
			if code, _, _ := get(t, c, http.MethodGet, l.URL, enough); code != 429 {
				t.Errorf("code %d, want 429", code)
			}
			restore()
			ok()

			before := served.Load()
			restore = l.Fail(Fault{Share: 1, LoseReply: true})
			if code, _, err := get(t, c, http.MethodPost, l.URL, enough); err == nil {
				t.Errorf("answered with %d", code)
			}
			if served.Load() == before {
				t.Error("the request took no effect, want only its answer lost")
			}
			restore()
			ok()

			restore = l.Fail(Fault{Share: 1, Delay: 50 * time.Millisecond})
			began := time.Now()
			ok()
			if took := time.Since(began); took < 50*time.Millisecond {
				t.Errorf("took %s", took)
			}
			restore()

			before = served.Load()
			restore = l.Cut()
			if code, _, err := get(t, c, http.MethodPost, l.URL, 200*time.Millisecond); err == nil {
				t.Errorf("passed a cut with %d", code)
			}
			restore()
			// A connection from before the cut breaks; the client finds out and makes another.
			for deadline := time.Now().Add(enough); ; {
				if code, _, _ := get(t, c, http.MethodGet, l.URL, time.Second); code == 200 {
					break
				} else if time.Now().After(deadline) {
					t.Fatal("nothing passes after the cut")
				}
			}
			if n := served.Load() - before; n != 1 {
				t.Errorf("%d requests arrived, want that of after the cut only", n)
			}
		})
	}
}

// A link that is closed during a cut, or that somebody cuts meanwhile, is closed at once.
func TestCloseOfALinkThatIsCut(t *testing.T) {
	l, c, _ := serve(t, true)
	if code, _, err := get(t, c, http.MethodGet, l.URL, enough); code != 200 {
		t.Fatalf("%d %v", code, err)
	}
	l.Cut()
	l.gate.stayOpen() // so Close begins
	l.Cut()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		l.Server.Close()
	}()
	select {
	case <-closed:
	case <-time.After(enough):
		t.Fatal("the link is not closed")
	}
}
