// Package narrow drops what nobody reads from the API server's answers while they arrive, and
// bounds what is left. The decoders of client-go and of everybody else see only the rest.
//
// A tenant decides how large the objects are that we read. client-go reads an answer whole before
// it decodes it, and the Go values of a JSON text can be thirty times as long as the text
// (performance.md). Here an object is never in memory as a whole: of a megabyte of environment
// variables nothing is kept, of a list as much as is used of its objects, and of one field of an
// object a few KiB at most.
//
// So lists need no pages for the sake of memory. A list with resourceVersion=0 is never paged by
// the API server; it answers it from its watch cache and writes one object after the other, which
// costs it time but little memory, and no read of etcd. Pages, which it reads from etcd or from a
// copy of the cache, cost it more. What bounds its time, and ours, is [Limit].
//
// Where an answer has no such bound, the daemon reads slowly what is beyond the usual size of objects.
// The API server writes no faster, and has its processors for other requests. At full speed, the large
// objects of one namespace would delay everybody's drains.
//
// It reads JSON, and also protobuf for those resources in Kubernetes' own API groups that the program knows. Clients
// of others have to ask for JSON. The API server encodes an event of a watch once for everyone who watches in the same
// form, and kubelets and the scheduler watch in protobuf. Protobuf also takes a fraction of the processor time to
// decode.
//
// All of it is safe for concurrent use.
package narrow

import (
	"context"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// CutKey is the member that is added to an object in JSON if a field was longer than its bound, so that more
// was dropped than what nobody reads. Protobuf has no place for it: a client that looks for it asks for JSON.
const CutKey = "spotHandlerCut"

// ErrTooLong is the error of an answer that is longer than its Limit.
var ErrTooLong = errors.New("the API server's answer is longer than what is read of it")

type limitKey struct{}

type limit struct{ read, kept int64 }

// Limit bounds the answers to requests with the context, in bytes: as they arrive, and what is kept
// of them. Reading a longer one fails with ErrTooLong, and the API server writes no more of it.
func Limit(ctx context.Context, read, kept int64) context.Context {
	return context.WithValue(ctx, limitKey{}, limit{read, kept})
}

// Transport narrows the answers of next.
func Transport(next http.RoundTripper) http.RoundTripper {
	bound(next)
	return transport{next: next}
}

// Slowly is a Transport for where nobody waits for large objects.
func Slowly(next http.RoundTripper) http.RoundTripper {
	bound(next)
	return transport{next: next, ofNamespaces: newThrottle(rateOfNamespaces), ofCluster: newThrottle(rateOfCluster)}
}

// How fast, in bytes per second, all answers together are read beyond the first ample bytes of each
// object. The API server writes some 60 MB/s on two processors. For what is read of a namespace only its
// own pods wait; for what is read of the cluster, such as the pods of a node, others' do as well, so that
// is faster, and at full speed after slowFor.
const (
	ample            = 64 << 10
	rateOfNamespaces = 4 << 20
	rateOfCluster    = 8 << 20
	slowFor          = 10 * time.Second
)

func newThrottle(bytes rate.Limit) *rate.Limiter { return rate.NewLimiter(bytes, chunkSize) }

// streamBuffer is how much of an answer can arrive before somebody reads it. By default it is 4 MiB
// for each of hundreds of watches.
const streamBuffer = 128 << 10

// silence is how long a connection to the API server may be silent before it is asked whether it
// lives, and pingTimeout how long the answer may take. Until then requests wait on one that has died
// without a word, as when the host of an API server is lost: by default for 45 s of the 120.
const (
	silence     = 10 * time.Second
	pingTimeout = 5 * time.Second
)

func bound(next http.RoundTripper) {
	switch t := next.(type) {
	case *http.Transport:
		if t.HTTP2 == nil {
			t.HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: streamBuffer, SendPingTimeout: silence, PingTimeout: pingTimeout}
		}
	case interface{ WrappedRoundTripper() http.RoundTripper }:
		bound(t.WrappedRoundTripper())
	}
}

type transport struct {
	next                    http.RoundTripper
	ofNamespaces, ofCluster *rate.Limiter // nil: at full speed
}

// WrappedRoundTripper is what client-go asks, by this name, to reach the connections.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil || answer.StatusCode >= http.StatusMultipleChoices {
		return answer, err
	}
	body := newSource(answer.Body)
	most, limited := r.Context().Value(limitKey{}).(limit)
	switch {
	case limited:
		body.left = most
	case t.ofCluster == nil, r.Method != http.MethodGet: // of what we change there is one object
	case strings.Contains(r.URL.Path, "/namespaces/"):
		body.slow = func(n int) { wait(r.Context(), t.ofNamespaces, n) }
	default:
		began := time.Now()
		body.slow = func(n int) {
			if time.Since(began) < slowFor {
				wait(r.Context(), t.ofCluster, n)
			}
		}
	}
	left := readerOf(body, resourceOf(r.URL.Path), answer.Header.Get("Content-Type"))
	if left == nil && limited {
		left = &whole{body}
	}
	if left != nil {
		answer.Body, answer.ContentLength = left, -1
		answer.Header.Del("Content-Length")
	}
	return answer, nil
}

// readerOf reads what is left of an answer about the resource; nil: it passes as it is.
func readerOf(body source, resource, contentType string) io.ReadCloser {
	of, known := kinds[resource]
	form, parameters, err := mime.ParseMediaType(contentType)
	if !known || err != nil {
		return nil
	}
	switch form {
	case "application/json":
		return newReader(body, of)
	case "application/vnd.kubernetes.protobuf":
		if schema := schemas()[resource]; schema != nil {
			return newProtobufReader(body, of, schema, parameters["stream"] == "watch")
		}
	}
	return nil
}

// wait returns when n more bytes can be read, or ctx ends.
func wait(ctx context.Context, throttle *rate.Limiter, n int) {
	for ; n > 0; n -= chunkSize {
		_ = throttle.WaitN(ctx, min(n, chunkSize)) // reading says that ctx has ended
	}
}

// passes is the bound of what is not narrowed.
const passes = 1 << 62

// resourceOf is the group and the plural of a path such as /apis/apps/v1/namespaces/a/deployments,
// with the group left out where it is the core one.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts { // the server's address can have a path of its own
		var group string
		switch {
		case part == "api" && len(parts) > i+2:
			parts = parts[i+2:]
		case part == "apis" && len(parts) > i+3:
			group, parts = parts[i+1]+"/", parts[i+3:]
		default:
			continue
		}
		if parts[0] == "namespaces" && len(parts) > 2 {
			parts = parts[2:]
		}
		return group + parts[0]
	}
	return ""
}

// fields are the members of a JSON object that are kept; a key that ends with a slash stands
// for all that begin with it. A member whose own fields are nil is kept whole. An array's are those of its elements.
type fields map[string]fields

// kind is what is kept of the objects of one resource.
type kind struct {
	root fields
	// field and object bound, in bytes, what is kept of one field of metadata, spec or status,
	// and of all the fields of one object.
	field, object int
}

// Bounds. A pod of twenty containers with affinity, spread and forty labels keeps 6 KiB; of other
// objects less is used. A Go value is up to thirty times as long as the text. What few people may
// write, such as Nodes, can be longer.
const (
	podField, podBound         = 8 << 10, 16 << 10
	fieldBound, objectBound    = 4 << 10, 8 << 10
	trustedField, trustedBound = 32 << 10, 64 << 10
)

// shortText is how long a text may be that is kept whole or not at all. Part of a text with a form of its own, such as
// a quantity or a time, is either a different value or not valid, and then the whole list could not be decoded.
const shortText = 64

// chunkSize is how much is read at a time of what is dropped.
const chunkSize = 32 << 10

// longestKey is more than the API server allows for any.
const longestKey = 1 << 10

// kinds are the resources whose objects are narrowed, by group and plural: all that the daemon
// reads and that may be large. Those that are not listed pass as they are, among them NodePools,
// whose templates are copied, and leases, which are written back.
var kinds = map[string]kind{
	"pods": {object(fields{
		"spec": podSpec,
		"status": {
			"phase": nil, "startTime": nil, "podIP": nil, "conditions": conditions,
			"containerStatuses": containerStatuses, "initContainerStatuses": containerStatuses,
		},
	}), podField, podBound},
	"nodes": {object(fields{
		"spec":   nil,
		"status": {"capacity": nil, "allocatable": nil, "conditions": nil, "nodeInfo": nil, "addresses": nil},
	}), trustedField, trustedBound},
	"namespaces":             {object(nil), fieldBound, objectBound},
	"persistentvolumeclaims": {object(fields{"spec": {"accessModes": nil, "volumeName": nil}}), fieldBound, objectBound},
	"resourcequotas": {object(fields{
		"spec":   {"scopes": nil, "scopeSelector": nil},
		"status": {"hard": nil, "used": nil},
	}), fieldBound, objectBound},
	"apps/deployments": {object(fields{
		"spec":   {"replicas": nil, "paused": nil, "minReadySeconds": nil, "selector": nil, "strategy": nil},
		"status": {"observedGeneration": nil, "replicas": nil, "updatedReplicas": nil, "conditions": {"type": nil, "status": nil, "message": nil}},
	}), fieldBound, objectBound},
	"apps/replicasets":  {object(fields{"spec": {"replicas": nil, "selector": nil}}), fieldBound, objectBound},
	"apps/statefulsets": {object(fields{"spec": {"replicas": nil, "selector": nil}}), fieldBound, objectBound},
	"apps/daemonsets": {object(fields{
		"spec":   {"selector": nil, "template": {"metadata": metadata, "spec": podSpec}},
		"status": {"numberReady": nil},
	}), fieldBound, objectBound},
	"policy/poddisruptionbudgets": {object(fields{
		"spec": nil,
		"status": {
			"observedGeneration": nil, "disruptionsAllowed": nil, "currentHealthy": nil, "desiredHealthy": nil,
			"expectedPods": nil, "disruptedPods": nil,
		},
	}), podField, podBound}, // disruptedPods has an entry for each pod whose eviction was granted of late
	"storage.k8s.io/volumeattachments": {object(fields{
		"spec": {"nodeName": nil, "source": {"persistentVolumeName": nil}},
	}), fieldBound, objectBound},
	"karpenter.sh/nodeclaims": {object(fields{"spec": nil, "status": nil}), trustedField / 2, trustedBound / 2},
}

// object adds to an object's own fields what all objects, their lists and the events of a watch
// have, and those of a Status, which stands in a watch in place of an object.
func object(own fields) fields {
	root := fields{
		"kind": nil, "apiVersion": nil, "metadata": metadata,
		"type": nil, "message": nil, "reason": nil, "code": nil, "details": nil, "status": {},
	}
	maps.Copy(root, own)
	root["items"], root["object"] = root, root
	return root
}

var metadata = fields{
	"name": nil, "generateName": nil, "namespace": nil, "uid": nil, "resourceVersion": nil, "generation": nil,
	"creationTimestamp": nil, "deletionTimestamp": nil, "deletionGracePeriodSeconds": nil,
	"labels": nil, "ownerReferences": nil, "finalizers": nil,
	"annotations": {
		"spot-handler/": nil, "karpenter.sh/": nil, "cluster-autoscaler.kubernetes.io/": nil,
		"kubernetes.io/config.mirror": nil, "k8s.io/initial-events-end": nil,
	},
	"continue": nil, "remainingItemCount": nil, // of a list
}

var conditions = fields{"type": nil, "status": nil, "reason": nil, "lastTransitionTime": nil}

// containerStatuses are what a container has of what it asks for: less, if it was resized.
var containerStatuses = fields{"name": nil, "allocatedResources": nil, "resources": {"requests": nil}}

var podSpec = fields{
	"nodeName": nil, "terminationGracePeriodSeconds": nil, "nodeSelector": nil, "affinity": nil,
	"topologySpreadConstraints": nil, "tolerations": nil, "overhead": nil, "resources": nil,
	"hostNetwork": nil, "schedulerName": nil, "schedulingGroup": nil, "resourceClaims": nil,
	"priority": nil, "priorityClassName": nil,
	"containers": containers, "initContainers": containers,
	"volumes": {
		"name": nil, "persistentVolumeClaim": nil, "ephemeral": {},
		"awsElasticBlockStore": {}, "gcePersistentDisk": {}, "azureDisk": {}, "cinder": {},
		"vsphereVolume": {}, "iscsi": {}, "fc": {}, "rbd": {},
	},
}

var containers = fields{
	"name": nil, "resources": nil, "restartPolicy": nil,
	"ports": nil,
}

// of is what is kept of the member, or false.
func (f fields) of(name []byte) (fields, bool) {
	if f == nil {
		return nil, true
	}
	if of, ok := f[string(name)]; ok {
		return of, true
	}
	for i, c := range name {
		if c == '/' {
			of, ok := f[string(name[:i+1])]
			return of, ok
		}
	}
	return nil, false
}
