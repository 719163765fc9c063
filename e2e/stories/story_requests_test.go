package stories

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// request is one line of the audit log.
type request struct {
	Stage, Verb, UserAgent, RequestURI string
	User                               struct{ Username string }
	Annotations                        map[string]string
	ObjectRef                          struct{ APIGroup, Resource, Subresource, Namespace, Name string }
	ResponseStatus                     struct{ Code int }
	RequestObject                      struct {
		deleteOptions               // of a deletion
		DeleteOptions deleteOptions // of an eviction
	}
	RequestReceivedTimestamp, StageTimestamp time.Time
}

type deleteOptions struct {
	GracePeriodSeconds *int64
	Preconditions      struct{ UID string }
}

// requests are the matching requests that spot-handler has sent to the API server.
func (s *story) requests(match func(request) bool) []request {
	s.Helper()
	return s.allRequests(func(r request) bool { return strings.HasPrefix(r.UserAgent, "spot-handler/") && match(r) })
}

// allRequests are those of all clients. Each call reads what is new in the log.
func (s *story) allRequests(match func(request) bool) []request {
	s.Helper()
	s.seen.Lock()
	defer s.seen.Unlock()
	text, err := s.cluster.AuditText(s.seen.bytes)
	s.must(err)
	s.seen.bytes += int64(len(text))
	for line := range bytes.Lines(text) {
		var r request
		if err := json.Unmarshal(line, &r); err == nil { // a patch with a list as its body is of no interest
			s.seen.lines = append(s.seen.lines, r)
		}
	}
	var found []request
	for _, r := range s.seen.lines {
		if match(r) {
			found = append(found, r)
		}
	}
	return found
}

// evictions counts the evictions that the API server has granted, by the pod's UID.
func (s *story) evictions() map[string]int {
	taken := map[string]int{}
	for _, r := range s.requests(func(r request) bool {
		return r.ObjectRef.Subresource == "eviction" && r.ResponseStatus.Code == 201
	}) {
		taken[r.RequestObject.DeleteOptions.Preconditions.UID]++
	}
	return taken
}

// brokenOff are the pods, by UID, of evictions that were neither granted nor refused. If the client is
// killed, its eviction might be carried out all the same, though the answer is not a success.
func (s *story) brokenOff() map[string]bool {
	pods := map[string]bool{}
	for _, r := range s.requests(func(r request) bool {
		return r.ObjectRef.Subresource == "eviction" && r.ResponseStatus.Code != 201 && r.ResponseStatus.Code != 429
	}) {
		pods[r.RequestObject.DeleteOptions.Preconditions.UID] = true
	}
	return pods
}
