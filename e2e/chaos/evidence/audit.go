package evidence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"spot-handler/handler/interruption"
)

const stamped = "chaos"

// AuditID is what a request of a replica is called in the audit log.
func AuditID(replica, process int, at time.Time, number int) string {
	return fmt.Sprintf("%s~%d~%d~%d~%d", stamped, replica, process, at.UnixMicro(), number)
}

// sender reads an AuditID back.
func sender(id string) (replica, process string, sent time.Time, ok bool) {
	parts := strings.Split(id, "~")
	if len(parts) != 5 || parts[0] != stamped {
		return "", "", time.Time{}, false
	}
	micro, err := strconv.ParseInt(parts[3], 10, 64)
	return parts[1], parts[1] + "." + parts[2], time.UnixMicro(micro), err == nil
}

// line is one of the audit log.
type line struct {
	AuditID, Stage, Verb string
	User                 struct{ Username string }
	Annotations          map[string]string
	ObjectRef            struct{ Resource, Subresource, Namespace, Name string }
	ResponseStatus       struct {
		Code    int
		Message string
	}
	RequestObject                            json.RawMessage
	RequestReceivedTimestamp, StageTimestamp time.Time
}

// Requests returns those of the replicas in a part of the API server's audit log, and those of anybody that end pods.
func Requests(log []byte) ([]Request, error) {
	var found []Request
	for text := range bytes.Lines(log) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		if q, ok := l.request(); ok {
			found = append(found, q)
		}
	}
	return found, nil
}

func (l line) request() (q Request, ok bool) {
	q = Request{
		User: l.User.Username, At: l.RequestReceivedTimestamp, Done: l.StageTimestamp,
		Verb: l.Verb, Resource: l.ObjectRef.Resource, Subresource: l.ObjectRef.Subresource, Namespace: l.ObjectRef.Namespace, Name: l.ObjectRef.Name,
		Code: l.ResponseStatus.Code,
	}
	_, policy := l.Annotations["validation.policy.admission.k8s.io/validation_failure"]
	q.Forbidden = policy || l.Annotations["authorization.k8s.io/decision"] == "forbid"
	q.Replica, q.Process, q.Sent, ok = sender(l.AuditID)
	pods := q.Resource == "pods" && (q.Verb == "delete" && q.Subresource == "" || q.Subresource == "eviction")
	if !ok && !pods || l.Stage == "ResponseStarted" { // of a watch, which has a line at its end too
		return q, false
	}
	q.Budget = q.Subresource == "eviction" && q.Code == 429 && strings.Contains(l.ResponseStatus.Message, "disruption budget")
	if pods {
		q.UID, q.Grace = l.deleteOptions()
	}
	if q.Resource == "nodes" {
		q.Record = l.record()
	}
	return q, true
}

// deleteOptions are those of a deletion, or of an eviction.
func (l line) deleteOptions() (uid string, grace *time.Duration) {
	type options struct {
		GracePeriodSeconds *int64
		Preconditions      struct{ UID string }
	}
	var body struct {
		options
		DeleteOptions options
	}
	if err := json.Unmarshal(l.RequestObject, &body); err != nil {
		return "", nil
	}
	o := body.options
	if l.ObjectRef.Subresource == "eviction" {
		o = body.DeleteOptions
	}
	if o.GracePeriodSeconds != nil {
		d := time.Duration(*o.GracePeriodSeconds) * time.Second
		grace = &d
	}
	return o.Preconditions.UID, grace
}

// record is what a patch of a Node writes in its annotation, whatever the patch's form.
func (l line) record() *interruption.Record {
	var merge struct {
		Metadata struct{ Annotations map[string]any }
	}
	var steps []struct {
		Op, Path string
		Value    any
	}
	var text any
	if err := json.Unmarshal(l.RequestObject, &merge); err == nil {
		text = merge.Metadata.Annotations[interruption.Annotation]
	} else if err := json.Unmarshal(l.RequestObject, &steps); err == nil {
		for _, s := range steps {
			if s.Op != "test" && strings.HasSuffix(s.Path, strings.ReplaceAll(interruption.Annotation, "/", "~1")) {
				text = s.Value
			}
		}
	}
	written, _ := text.(string)
	r, err := interruption.ParseRecord(written)
	if err != nil {
		return nil
	}
	return &r
}
