package webhook

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

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
