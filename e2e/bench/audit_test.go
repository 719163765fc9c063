package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// request is one line of the audit log.
type request struct {
	AuditID, Verb, UserAgent, RequestURI string
	ObjectRef                            struct{ Resource, Subresource, Name string }
	ResponseStatus                       struct{ Code int }
	RequestReceivedTimestamp             time.Time
	StageTimestamp                       time.Time
}

// auditEnd is the present length of the log, to read from later.
func auditEnd(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("read audit log: %w", err)
	}
	return info.Size(), nil
}

// daemonRequests are those that the daemon has made of the API server since the log
// was so long.
func daemonRequests(path string, from int64) ([]request, error) {
	return requestsOf("spot-handler/", path, from)
}

// requestsOf are those of a program, by the beginning of its user agent, each once: a
// watch has a line for its start and one for its end.
func requestsOf(agent, path string, from int64) ([]request, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	defer file.Close()
	if end, err := file.Seek(0, io.SeekEnd); err != nil || end < from {
		return nil, fmt.Errorf("read audit log: it was rotated: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read audit log: %w", err)
	}
	var found []request
	agent = `"userAgent":"` + agent
	seen := map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), []byte(agent)) {
			continue // before it is parsed: most lines are the control plane's
		}
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("read audit log: %w", err)
		}
		if !seen[r.AuditID] {
			seen[r.AuditID] = true
			found = append(found, r)
		}
	}
	return found, lines.Err()
}

// requestCount is what the daemon has asked of the API server in a burst. Events are
// not in the audit log, so not in it either.
type requestCount struct {
	// accept is the way from the notice to the cordon: on each node all requests up to
	// the first patch that succeeds, and every read of the node, as only Accept reads
	// one.
	accept int

	// meanwhile is how many other requests began before the last node was cordoned:
	// those that the way to the cordon had to share the API server with.
	meanwhile int

	// after has all others, by what they do.
	after map[string]int
}

func count(requests []request) requestCount {
	cordoned := map[string]time.Time{}
	for _, r := range requests {
		if r.isNodePatch() && r.ResponseStatus.Code == 200 {
			if at, ok := cordoned[r.ObjectRef.Name]; !ok || r.StageTimestamp.Before(at) {
				cordoned[r.ObjectRef.Name] = r.StageTimestamp
			}
		}
	}
	var last time.Time
	for _, at := range cordoned {
		if at.After(last) {
			last = at
		}
	}
	c := requestCount{after: map[string]int{}}
	for _, r := range requests {
		if r.isNodePatch() && !r.RequestReceivedTimestamp.After(cordoned[r.ObjectRef.Name]) || r.Verb == "get" && r.ObjectRef.Resource == "nodes" {
			c.accept++
			continue
		}
		c.after[r.what()]++
		if r.RequestReceivedTimestamp.Before(last) {
			c.meanwhile++
		}
	}
	return c
}

func (r request) isNodePatch() bool { return r.Verb == "patch" && r.ObjectRef.Resource == "nodes" }

func (r request) what() string {
	return strings.TrimSuffix(r.Verb+" "+r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")
}
