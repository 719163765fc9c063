package manual

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// kubelet answers the API server for the nodes that have its address: it has the pods' logs, and
// notes what somebody wants to run in one. kwok does everything else of a kubelet.
type kubelet struct {
	server *httptest.Server
	log    *output // of spot-handler, which all pods have

	mu  sync.Mutex
	ran []string // as namespace/pod command…
}

func startKubelet(t *testing.T, log *output) *kubelet {
	t.Helper()
	k := &kubelet{log: log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.logs)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.exec)
	k.server = httptest.NewTLSServer(mux)
	t.Cleanup(func() {
		k.server.CloseClientConnections() // of logs that are followed
		k.server.Close()
	})
	return k
}

// at gives a Node the kubelet's address.
func (k *kubelet) at(node *corev1.Node) {
	address := k.server.Listener.Addr().(*net.TCPAddr)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.IP.String()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(address.Port)
}

// logs are those of spot-handler since its start, and if they are followed, until the client goes.
func (k *kubelet) logs(w http.ResponseWriter, r *http.Request) {
	text := k.log.String()
	if n, err := strconv.Atoi(r.URL.Query().Get("tailLines")); err == nil {
		lines := strings.SplitAfter(text, "\n")
		text = strings.Join(lines[max(0, len(lines)-1-n):], "")
	}
	fmt.Fprint(w, text)
	if r.URL.Query().Get("follow") == "true" {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// noStreams is the answer to who wants to run something: the streams of that are a protocol of their
// own.
const noStreams = "this kubelet runs nothing in a container"

func (k *kubelet) exec(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ran = append(k.ran, r.PathValue("namespace")+"/"+r.PathValue("pod")+" "+strings.Join(r.URL.Query()["command"], " "))
	http.Error(w, noStreams, http.StatusNotImplemented)
}
