package release

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"spot-handler/e2e/chart"
)

// registry takes what is pushed to it, as far as the distribution specification asks that of
// clients like Helm.
// https://github.com/opencontainers/distribution-spec/blob/main/spec.md#push
type registry struct {
	mu        sync.Mutex
	blobs     map[string][]byte // by digest
	manifests map[string][]byte // by repository, and tag or digest
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	body, _ := io.ReadAll(q.Body)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(body))
	repository, blob, isBlob := strings.Cut(q.URL.Path, "/blobs/")
	name, tag, isManifest := strings.Cut(q.URL.Path, "/manifests/")
	switch {
	case q.URL.Path == "/v2/":
	case isBlob && q.Method == http.MethodPost:
		w.Header().Set("Location", repository+"/blobs/uploads/1")
		w.WriteHeader(http.StatusAccepted)
	case isBlob && q.Method == http.MethodPut && q.URL.Query().Get("digest") == digest:
		r.blobs[digest] = body
		w.WriteHeader(http.StatusCreated)
	case isBlob && q.Method == http.MethodHead && r.blobs[blob] != nil:
		w.Header().Set("Content-Length", fmt.Sprint(len(r.blobs[blob])))
	case isManifest && q.Method == http.MethodPut:
		r.manifests[name+":"+tag], r.manifests[name+":"+digest] = body, body
		w.Header().Set("Docker-Content-Digest", digest)
		w.WriteHeader(http.StatusCreated)
	case isManifest && r.manifests[name+":"+tag] != nil:
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(r.manifests[name+":"+tag]))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// The chart arrives under its version, and what is printed names it by its digest.
func TestPushChart(t *testing.T) {
	dist := t.TempDir()
	helms, err := chart.Helms(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := helms[1].Run(t.Context(), "", "package", filepath.Join(checkout(t), "deploy", "chart"), "--version=9.8.7", "--destination="+dist); err != nil {
		t.Fatal(err)
	}
	r := &registry{blobs: map[string][]byte{}, manifests: map[string][]byte{}}
	server := httptest.NewServer(r)
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")

	push := func(version string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(".github", "push-chart"), version, dist, host+"/team/charts", "--plain-http")
		cmd.Dir, cmd.Stderr = checkout(t), t.Output()
		cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+dist)
		out, err := cmd.Output()
		return string(out), err
	}
	out, err := push("v9.8.7")
	if err != nil {
		t.Fatal(err)
	}
	manifest := r.manifests["/v2/team/charts/spot-handler:9.8.7"]
	if want := fmt.Sprintf("%s/team/charts/spot-handler@sha256:%x\n", host, sha256.Sum256(manifest)); manifest == nil || out != want {
		t.Errorf("prints %q, want %q", out, want)
	}
	var content struct {
		Layers []struct{ MediaType, Digest string }
	}
	if err := json.Unmarshal(manifest, &content); err != nil {
		t.Fatal(err)
	}
	packed := read(t, filepath.Join(dist, "spot-handler-9.8.7.tgz"))
	if l := content.Layers; len(l) != 1 || l[0].Digest != fmt.Sprintf("sha256:%x", sha256.Sum256(packed)) || r.blobs[l[0].Digest] == nil {
		t.Errorf("layers %+v are not the package", l)
	}
	if out, err := push("v9.8.8"); err == nil || out != "" {
		t.Errorf("a chart that is not there: %q, %v", out, err)
	}
}
