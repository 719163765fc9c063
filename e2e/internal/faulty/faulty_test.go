package faulty

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// server answers with the query's answer, and counts what takes effect. The path is the action, and the query's
// instance the one that is named.
type server struct {
	*Server
	effects atomic.Int64
}

func start(t *testing.T, o Options) *server {
	t.Helper()
	s := &server{}
	s.Server = Start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Serve(w, r, r.URL.Path, []string{r.FormValue("instance")}, func(w http.ResponseWriter, _ *http.Request) {
			s.effects.Add(1)
			fmt.Fprint(w, "served")
		})
	}), o)
	t.Cleanup(s.Close)
	return s
}

// ask returns the answer's text, or its status if that is an error.
func (s *server) ask(ctx context.Context, method, path string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, nil)
	if err != nil {
		return "", err
	}
	// Without connections that are kept, as net/http repeats a GET on one that breaks.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		return fmt.Sprint(answer.StatusCode), err
	}
	return string(text), err
}

// want asks for each path in turn.
func (s *server) want(t *testing.T, path string, answers ...string) {
	t.Helper()
	for i, want := range answers {
		got, err := s.ask(t.Context(), http.MethodPost, path)
		if err != nil || got != want {
			t.Errorf("request %d for %s: got %q, %v, want %q", i+1, path, got, err, want)
		}
	}
}

func status(code int) Effect {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestWhichRequestsFail(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		fault Fault
		fails []string
	}{
		{"all", Fault{}, []string{"/a", "/a/b", "/ab", "/c", "/c?instance=i-1"}},
		{"an action", Fault{Action: "/a"}, []string{"/a"}},
		{"what is below a path", Fault{Action: "/a/"}, []string{"/a/b"}},
		{"an instance", Fault{Instance: "i-1"}, []string{"/c?instance=i-1"}},
		{"an instance, and an action", Fault{Action: "/a", Instance: "i-1"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{})
			test.fault.Effect = status(http.StatusTeapot)
			end := s.Fail(test.fault)
			for _, path := range []string{"/a", "/a/b", "/ab", "/c", "/c?instance=i-1"} {
				want := "served"
				for _, fails := range test.fails {
					if fails == path {
						want = "418"
					}
				}
				s.want(t, path, want)
			}
			end()
			end() // again changes nothing
			s.want(t, "/a", "served")
			s.want(t, "/c?instance=i-1", "served")
		})
	}
}

func TestFaultsInTurn(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	s.Fail(Fault{Effect: status(503), Times: 2, Action: "/a"})
	s.Fail(Fault{Effect: status(429), Times: 1})
	s.want(t, "/a", "503", "503", "429", "served", "served")
	if n, effects := s.Requests("/a"), s.effects.Load(); n != 5 || effects != 2 {
		t.Errorf("%d requests, of which %d had an effect, want 5, 2", n, effects)
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	s.Fail(Fault{Effect: status(503), Share: 0.5})
	failed := 0
	for range 100 {
		if got, _ := s.ask(t.Context(), http.MethodPost, "/a"); got == "503" {
			failed++
		}
	}
	if failed < 20 || failed > 80 {
		t.Errorf("%d of 100 requests failed, want about half", failed)
	}
}

func TestReset(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	s.Fail(Fault{Effect: Reset})
	if _, err := s.ask(t.Context(), http.MethodGet, "/a"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want a reset connection", err)
	}
}

func TestLoseReply(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]Fault{
		"connection breaks": {LoseReply: true},
		"answered":          {LoseReply: true, Effect: status(503)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Options{})
			s.Fail(fault)
			got, err := s.ask(t.Context(), http.MethodPost, "/a")
			if wrong := got == "served" || fault.Effect != nil && got != "503" || fault.Effect == nil && err == nil; wrong {
				t.Errorf("got %q, %v", got, err)
			}
			if n := s.effects.Load(); n != 1 {
				t.Errorf("%d requests took effect, want 1", n)
			}
			if got, err := s.ask(t.Context(), http.MethodGet, "/a"); got != "served" {
				t.Errorf("a GET: got %q, %v, want it served", got, err)
			}
		})
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	s.Fail(Fault{Delay: 200 * time.Millisecond})
	began := time.Now()
	s.want(t, "/a", "served")
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("took %s, want a delay", took)
	}
}

// waiting asks, and returns once the request has arrived.
func (s *server) waiting(ctx context.Context, path string) <-chan string {
	got := make(chan string, 1)
	before := s.Requests(path)
	go func() {
		text, err := s.ask(ctx, http.MethodPost, path)
		got <- fmt.Sprint(text, err)
	}()
	for s.Requests(path) == before {
		time.Sleep(time.Millisecond)
	}
	return got
}

func TestUnanswered(t *testing.T) {
	t.Parallel()
	t.Run("until the client leaves", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{})
		s.Fail(Fault{Delay: Unanswered, Times: 1})
		ctx, leave := context.WithCancel(t.Context())
		got := s.waiting(ctx, "/a")
		leave()
		if text := <-got; !strings.Contains(text, context.Canceled.Error()) {
			t.Errorf("got %s, want no answer", text)
		}
		s.want(t, "/a", "served")
	})
	t.Run("until the fault ends, though it was for one request", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{})
		s.Fail(Fault{Delay: Unanswered, Times: 1})
		got := s.waiting(t.Context(), "/a")
		s.ClearFaults()
		if text := <-got; text != "served<nil>" {
			t.Errorf("got %s, want it served", text)
		}
	})
	t.Run("until the server closes", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{})
		s.Fail(Fault{Delay: Unanswered})
		got := s.waiting(t.Context(), "/a")
		s.Close()
		if text := <-got; strings.Contains(text, "served") {
			t.Errorf("got %s, want an error", text)
		}
	})
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := start(t, Options{TLS: true})
	s.Fail(Fault{Effect: Reset, Times: 1})
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.CA()) {
		t.Fatal("the certificate is no PEM")
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	if answer, err := client.Post(s.URL, "", nil); err == nil {
		answer.Body.Close()
		t.Errorf("got %s, want a reset stream", answer.Status)
	}
	answer, err := client.Post(s.URL, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.ProtoMajor != 2 {
		t.Errorf("spoke %s, want HTTP/2", answer.Proto)
	}
}
