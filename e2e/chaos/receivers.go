package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	drainplan "spot-handler/drain/plan"
	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/chaos/plan"
)

// loopback is where the pods that ask for notices are: kwok gives a pod the IP that it is annotated
// with.
const loopback = "127.0.0.1"

// noticing are the flags with which pods are notified there.
var noticing = []string{"--workload-notices", "--notice-networks=" + loopback + "/32"}

// receivers play those of all pods. The path says how one answers.
type receivers struct {
	server *httptest.Server

	mu      sync.Mutex
	notices []evidence.Notice
}

func newReceivers() *receivers {
	r := &receivers{}
	r.server = httptest.NewServer(r)
	return r
}

// close ends also those that hang.
func (r *receivers) close() {
	r.server.CloseClientConnections()
	r.server.Close()
}

// annotations of pods whose receivers answer so.
func (r *receivers) annotations(answer string) map[string]string {
	_, port, _ := strings.Cut(strings.TrimPrefix(r.server.URL, "http://"), ":")
	return map[string]string{drainplan.NoticeAnnotation: port + "/" + answer, "e2e.spot-handler/ip": loopback}
}

func (r *receivers) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var event struct {
		ID, Type, Subject string
		Data              struct{ Node string }
	}
	if err := json.NewDecoder(q.Body).Decode(&event); err != nil {
		http.Error(w, "no CloudEvent", http.StatusBadRequest)
		return
	}
	namespace, name, _ := strings.Cut(event.Subject, "/")
	r.mu.Lock()
	r.notices = append(r.notices, evidence.Notice{At: time.Now(), ID: event.ID, Type: event.Type, Namespace: namespace, Name: name, Node: event.Data.Node})
	r.mu.Unlock()
	switch answer := q.URL.Path[1:]; answer {
	case plan.Silence:
	case plan.Hang:
		<-q.Context().Done()
	case plan.Nonsense:
		fmt.Fprint(w, "now! {\x1b]0;x\a")
	default:
		fmt.Fprintf(w, `{"when":%q}`, answer)
	}
}

// take returns what has come since it was called last.
func (r *receivers) take() []evidence.Notice {
	r.mu.Lock()
	defer r.mu.Unlock()
	notices := r.notices
	r.notices = nil
	return notices
}
