package observe

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
)

// Alertmanager is a running Alertmanager, with a pager that receives alerts of severity
// "critical", and an inbox for the rest.
type Alertmanager struct {
	*process
	receiver *httptest.Server

	mu  sync.Mutex
	got map[string][]Alert // by receiver
}

// Alert is an alert as it reaches people.
type Alert struct {
	Status              string
	Labels, Annotations map[string]string
}

// The receivers.
const (
	Pager = "pager"
	Inbox = "inbox"
)

// StartAlertmanager starts an Alertmanager with its data in dir, and waits until it
// answers.
func StartAlertmanager(ctx context.Context, tools Tools, dir string) (*Alertmanager, error) {
	a := &Alertmanager{got: map[string][]Alert{}}
	a.receiver = httptest.NewServer(a)
	config := fmt.Sprintf(`
route:
  receiver: %[2]s
  group_by: [alertname]
  group_wait: 1s
  group_interval: 1s
  routes:
    - { receiver: %[1]s, matchers: ['severity="critical"'] }
receivers:
  - { name: %[1]s, webhook_configs: [{ url: "%[3]s" }] }
  - { name: %[2]s, webhook_configs: [{ url: "%[3]s" }] }
`, Pager, Inbox, a.receiver.URL)
	p, err := start(ctx, "alertmanager", dir, config, func(file, address string) []string {
		return tools.alertmanager([]string{
			"--config.file=" + file, "--storage.path=" + filepath.Join(dir, "alertmanager"), "--web.listen-address=" + address,
			"--cluster.listen-address=", // alone
		})
	})
	if err != nil {
		a.receiver.Close()
		return nil, err
	}
	a.process = p
	return a, nil
}

// Close ends it.
func (a *Alertmanager) Close() {
	a.process.Close()
	a.receiver.Close()
}

// ServeHTTP receives a notification.
// https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
func (a *Alertmanager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var notification struct {
		Receiver string
		Alerts   []Alert
	}
	if err := json.NewDecoder(r.Body).Decode(&notification); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.got[notification.Receiver] = append(a.got[notification.Receiver], notification.Alerts...)
}

// Received returns the firing alerts of that name that the receiver got, in order.
func (a *Alertmanager) Received(receiver, name string) []Alert {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []Alert
	for _, alert := range a.got[receiver] {
		if alert.Status == "firing" && alert.Labels["alertname"] == name {
			found = append(found, alert)
		}
	}
	return found
}
