package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
)

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
	target, header, err := w.opts.Endpoint.Read()
	if err != nil {
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

// readAnswer tells from an answer whether to try again: on 429 and 5xx, and where the request
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
