package webhook

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"

	"spot-handler/handler/notify"
)

// An answer that another attempt would not change ends the matter; the next webhook is not
// held up by it.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		answer *http.Response
		says   string
	}{
		"Slack's word":       {answer(400, "invalid_payload\n"), "400: invalid_payload"},
		"repeats the secret": {answer(404, "no hook at /services/T000/B000/topsecret"), "404\""},
		"the secret alone":   {answer(404, "topsecret"), "404\""},
		"redirect":           {answer(302, "", "Location", secretURL), "redirects are not followed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &receiver{answer: func(n int) (*http.Response, error) {
					if n == 1 {
						return tt.answer, nil
					}
					return answer(204, ""), nil
				}}
				w, log := startSender(t, r, nil)
				node, rec := interrupted("node-1")
				w.Notify(notify.Noticed(node, rec))
				w.Notify(notify.Canceled(node, rec))
				synctest.Wait()
				if w.count(resultRejected) != 1 || w.count(resultDelivered) != 1 {
					t.Errorf("%d rejected, %d delivered, want 1 and 1", w.count(resultRejected), w.count(resultDelivered))
				}
				if !strings.Contains(log.String(), tt.says) || strings.Contains(log.String(), "topsecret") {
					t.Errorf("log: %s", log)
				}
			})
		})
	}
}

// A request says that it carries JSON and who sends it, unless the operator's headers say otherwise.
func TestHeadersOfRequest(t *testing.T) {
	for name, tt := range map[string]struct {
		file                   string
		kind, agent, host, own string
	}{
		"none":        {"", "application/json", "spot-handler/test", "hooks.example.com", ""},
		"one more":    {"X-Token: secret", "application/json", "spot-handler/test", "hooks.example.com", "secret"},
		"all of them": {"Content-Type: text/plain\nUser-Agent: us\nHost: inside\n", "text/plain", "us", "inside", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := &receiver{}
			w, _ := newSender(t, r, nil)
			if tt.file != "" {
				w.opts.Endpoint.HeadersFile = filepath.Join(t.TempDir(), "headers")
				if err := os.WriteFile(w.opts.Endpoint.HeadersFile, []byte(tt.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.post(t.Context(), []byte("{}")); err != nil {
				t.Fatal(err)
			}
			h := r.headers[0]
			if h.Get("Content-Type") != tt.kind || h.Get("User-Agent") != tt.agent || r.hosts[0] != tt.host || h.Get("X-Token") != tt.own {
				t.Errorf("host %q, headers %v; want %+v", r.hosts[0], h, tt)
			}
		})
	}
}

// While the Secret cannot be read nothing counts as delivered; once it can be, the webhook is sent.
func TestUnreadableSecret(t *testing.T) {
	for name, file := range map[string]func(*Endpoint) *string{
		"URL":     func(e *Endpoint) *string { return &e.URLFile },
		"headers": func(e *Endpoint) *string { return &e.HeadersFile },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &receiver{}
				w, log := newSender(t, r, nil)
				at := filepath.Join(t.TempDir(), "not-yet")
				*file(&w.opts.Endpoint) = at
				ended := make(chan struct{})
				ctx, stop := context.WithCancel(t.Context())
				go func() { _ = w.Run(ctx); close(ended) }()
				defer func() { stop(); <-ended }()
				node, rec := interrupted("node-1")
				w.Notify(notify.Noticed(node, rec))
				time.Sleep(time.Second)
				synctest.Wait()
				if n := len(r.got()); n != 0 || w.count(resultDelivered) != 0 || w.count(resultRejected) != 0 {
					t.Errorf("%d requests, %d delivered, %d rejected, though the file is missing", n, w.count(resultDelivered), w.count(resultRejected))
				}
				text := map[string]string{"URL": secretURL, "headers": "X-Token: secret"}[name]
				if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := len(r.got()); n != 1 || w.count(resultDelivered) != 1 {
					t.Errorf("%d requests, %d delivered, want one of each\n%s", n, w.count(resultDelivered), log)
				}
			})
		})
	}
}

// Another attempt is made where it can help: on 429 and 5xx, and if the request did not arrive in time.
func TestWhichAnswersAreTriedAgain(t *testing.T) {
	target := &url.URL{Scheme: "https", Host: "hooks.example.com"}
	for status, again := range map[int]bool{
		300: false, 301: false, 308: false, 399: false, 400: false, 401: false, 403: false, 404: false, 408: true, 410: false, 425: true,
		429: true, 499: false, 500: true, 501: true, 502: true, 503: true, 504: true,
	} {
		err := readAnswer(answer(status, ""), target, "")
		var refused *refusedError
		if err == nil || errors.As(err, &refused) == again {
			t.Errorf("%d: %v, want another attempt: %t", status, err, again)
		}
		if redirected := err != nil && strings.Contains(err.Error(), "redirects are not followed"); redirected != (status < 400) {
			t.Errorf("%d: %v", status, err)
		}
	}
	for _, status := range []int{200, 202, 204, 299} {
		if err := readAnswer(answer(status, ""), target, ""); err != nil {
			t.Errorf("%d: %v", status, err)
		}
	}
	for value, want := range map[string]time.Duration{"7": 7 * time.Second, "": 0, "0": 0, "soon": 0} {
		var pause *backoff.RetryAfterError
		err := readAnswer(answer(503, "", "Retry-After", value), target, "")
		if has := errors.As(err, &pause); has != (want > 0) || has && pause.Duration != want {
			t.Errorf("Retry-After %q: %v, want a pause of %v", value, err, want)
		}
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if got := retryAfter(now.Add(90*time.Second).Format(http.TimeFormat), now); got != 90*time.Second {
		t.Errorf("a date 90 s from now: a pause of %v", got)
	}
	if got := retryAfter(now.Add(-time.Second).Format(http.TimeFormat), now); got != 0 {
		t.Errorf("a date that is past: a pause of %v", got)
	}
}

// Of an answer a word is quoted, and nothing that could be more than that.
func TestWordOfAnswer(t *testing.T) {
	target := &url.URL{Scheme: "https", Host: "hooks.example.com", Path: "/topsecret"}
	long := strings.Repeat("a", 40)
	for answer, want := range map[string]string{
		" no_service\n": "no_service", long: long, long + "a": "", "topsecret": "", "two words": "", "No": "", "": "",
	} {
		if got := wordOf(answer, target); got != want {
			t.Errorf("%q: %q, want %q", answer, got, want)
		}
	}
}

// The proxy that was given is used, and that of the environment only without one.
func TestProxy(t *testing.T) {
	request := httptest.NewRequest(http.MethodPost, "https://hooks.example.com/", nil)
	given := &url.URL{Scheme: "http", Host: "proxy:3128"}
	got, err := newClient(given).Transport.(*http.Transport).Proxy(request)
	if err != nil || got == nil || got.Host != given.Host {
		t.Errorf("%v, %v; want %s", got, err, given)
	}
	if got, err := newClient(nil).Transport.(*http.Transport).Proxy(request); err != nil || got != nil && got.Host == given.Host {
		t.Errorf("%v, %v; want no proxy of ours", got, err)
	}
}

// What cannot be read is named once, with its cause.
func TestFileThatIsMissing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "headers")
	_, err := Endpoint{HeadersFile: file}.Header()
	if want := "read headers: " + file + ": no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// A text that isn't the URL of a proxy is refused without repeating it, as it may hold a password.
func TestParseProxyRefuses(t *testing.T) {
	for _, text := range []string{"", "secret:3128", "http://", "http://secret%zz", "http://secret\x7f", "ftp://secret:21", "://secret"} {
		if u, err := ParseProxy(text); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, %v; want an error that does not repeat it", text, u, err)
		}
	}
	for _, text := range []string{"http://user:secret@proxy:3128", " https://proxy ", "socks5://proxy:1080", "socks5h://proxy:1080"} {
		if _, err := ParseProxy(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
