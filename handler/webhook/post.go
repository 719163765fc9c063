package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cenkalti/backoff/v5"
)

const contentTypeJSON = "application/json"

// Endpoint is where webhooks go, and with which headers. The files are those of a mounted
// Secret. They are read for each attempt, as the kubelet replaces them.
type Endpoint struct {
	URLFile     string // empty: no webhooks
	HeadersFile string // may be empty
}

// URL returns the URL as it is now; nil without a file. Its errors name the file, never what is in it.
func (e Endpoint) URL() (*url.URL, error) { return read("URL", e.URLFile, nil, parseURL) }

// Header returns the headers as they are now. Its errors name the file, never what is in it.
func (e Endpoint) Header() (http.Header, error) {
	return read("headers", e.HeadersFile, http.Header{}, parseHeaders)
}

// read parses what is in a file; without a file it returns otherwise.
func read[T any](what, file string, otherwise T, parse func(string) (T, error)) (parsed T, err error) {
	if file == "" {
		return otherwise, nil
	}
	text, err := os.ReadFile(file)
	if err == nil {
		parsed, err = parse(string(text))
	}
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		err = path.Err // the path is added below
	}
	if err != nil {
		err = fmt.Errorf("read %s: %s: %w", what, file, err)
	}
	return parsed, err
}

// parseURL reads the URL of a webhook. Its errors do not repeat the text, as such URLs
// are secrets.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return nil, errors.New("want an http or https URL")
	}
	return u, nil
}

// ParseProxy reads the URL of a proxy. Its errors do not repeat the text, which may hold
// a password.
func ParseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err == nil && u.Host != "" {
		switch u.Scheme {
		case "http", "https", "socks5", "socks5h":
			return u, nil
		}
	}
	return nil, errors.New("want a URL such as http://proxy.example.com:3128; http, https, socks5 and socks5h are known")
}

// headerName is what RFC 9110 calls a token.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// parseHeaders reads headers: a line `Name: value` for each, as curl takes them from a
// file, or one JSON object of texts. Empty lines and those that begin with # are ignored.
// Its errors name lines and headers, never values.
func parseHeaders(text string) (http.Header, error) {
	header := http.Header{}
	add := func(name, value string) error {
		value = strings.TrimSpace(value)
		if name = strings.TrimSpace(name); !headerName.MatchString(name) || strings.ContainsFunc(value, unicode.IsControl) {
			return errors.New("no valid name or value of a header")
		}
		header.Add(name, value)
		return nil
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		var object map[string]string
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			return nil, errors.New("want a JSON object of texts")
		}
		for name, value := range object {
			if err := add(name, value); err != nil {
				return nil, err
			}
		}
		return header, nil
	}
	number := 0
	for line := range strings.Lines(text) {
		number++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("line %d: want Name: value", number)
		}
		if err := add(name, value); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return header, nil
}

// isJSON reports whether a body with these headers has to be JSON.
func isJSON(header http.Header) bool {
	kind := header.Get("Content-Type")
	return kind == "" || strings.Contains(strings.ToLower(kind), "json")
}

// attemptTimeout bounds one attempt, from the name server's answer to the receiver's.
// Receivers of webhooks are expected to answer within seconds.
const attemptTimeout = 10 * time.Second

// answerRead is how much of an answer is read: enough to use the connection again.
const answerRead = 64 << 10

// refusedError is a failure that another attempt would not change.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// newClient makes the client of a Sender. It follows no redirect: a POST that is sent
// on may become a GET, and would take the headers' secrets to another host.
func newClient(proxy *url.URL) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone() // with the proxy of the environment
	if proxy != nil {
		transport.Proxy = http.ProxyURL(proxy)
	}
	transport.MaxIdleConnsPerHost = senders
	return &http.Client{
		Transport:     transport,
		Timeout:       attemptTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post makes one attempt. Its errors contain no part of the URL or of a header, as both are
// secrets. It reads the endpoint each time: a rotated Secret needs no restart.
func (w *Sender) post(ctx context.Context, body []byte) error {
	target, noURL := w.opts.Endpoint.URL()
	header, noHeader := w.opts.Endpoint.Header()
	if err := errors.Join(noURL, noHeader); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return errors.New("make request: the URL cannot be used") // its text would tell the URL
	}
	if req.Header = header; header.Get("Host") != "" {
		req.Host = header.Get("Host")
	}
	if header.Get("Content-Type") == "" {
		header.Set("Content-Type", contentTypeJSON)
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", w.opts.UserAgent)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		var withURL *url.Error
		for errors.As(err, &withURL) {
			err = withURL.Err
		}
		return fmt.Errorf("post: %w", err)
	}
	defer resp.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, answerRead)) // the status says enough
	return readAnswer(resp, target, string(answer))
}

// readAnswer says whether to try again: on 429 and 5xx, and where the request
// did not arrive in time.
func readAnswer(resp *http.Response, target *url.URL, answer string) error {
	status := resp.StatusCode
	if status >= 200 && status < 300 {
		return nil
	}
	text := fmt.Sprintf("post: answered with status %d", status)
	if word := wordOf(answer, target); word != "" {
		text += ": " + word
	}
	switch {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests, status >= 500:
		if pause := retryAfter(resp.Header.Get("Retry-After"), time.Now()); pause > 0 {
			return fmt.Errorf("%s: %w", text, &backoff.RetryAfterError{Duration: pause})
		}
		return errors.New(text)
	case status >= 300 && status < 400:
		text += ": redirects are not followed, give the URL that they end at"
	}
	return &refusedError{text}
}

// answerWord is what errors quote of an answer: words such as Slack's "invalid_payload" and
// "no_service". Anything longer might repeat the URL or a header.
// https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
var answerWord = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

func wordOf(answer string, target *url.URL) string {
	answer = strings.TrimSpace(answer)
	if len(answer) > 40 || !answerWord.MatchString(answer) || strings.Contains(target.String(), answer) {
		return ""
	}
	return answer
}

// retryAfter reads the header of that name: seconds or a date; 0 is none.
// https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(0, seconds), int(giveUpAfter.Seconds()))) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
