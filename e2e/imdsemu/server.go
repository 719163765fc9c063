// Package imdsemu is an EC2 instance metadata service on the loopback interface, for tests, the demo and
// benchmarks.
//
// It speaks IMDSv2 only: a PUT fetches a token with a lifetime, the token expires, and every GET without a live one
// gets a 401. Methods say what EC2 would announce (Interrupt, Rebalance, Schedule, Cancel, SetTargetLifecycleState);
// it stays announced until Clear, as on a real instance. Fail requests what goes wrong with a real endpoint.
//
// A Server keeps no secrets and reads no clock but time.Now. It never acts by itself, so it announces nothing that
// a caller did not request. All methods are safe for concurrent use, and every request that begins later sees their
// effect.
package imdsemu

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"spot-handler/e2e/internal/faulty"
)

// Paths of the service. Wherever a method takes a metadata path, it may be relative to MetadataPath.
const (
	// TokenPath is where clients fetch tokens. An unanswered request for it plays an instance whose hop limit is too
	// low for a pod: the answer to the PUT is dropped on the way back, and all that the client sees is silence.
	TokenPath = "/latest/api/token"
	// MetadataPath is the prefix of all metadata.
	MetadataPath = "/latest/meta-data/"

	InstanceIDPath           = "instance-id"
	InstanceActionPath       = "spot/instance-action"
	RebalancePath            = "events/recommendations/rebalance"
	ScheduledEventsPath      = "events/maintenance/scheduled"
	EventHistoryPath         = "events/maintenance/history"
	TargetLifecycleStatePath = "autoscaling/target-lifecycle-state"
)

// Options say which instance the service describes. The zero value is a spot instance.
type Options struct {
	// InstanceID defaults to i-0123456789abcdef0.
	InstanceID string
}

// Server is one instance's metadata service. Its URL is the value for AWS_EC2_METADATA_SERVICE_ENDPOINT.
type Server struct {
	*faulty.Server

	mu        sync.Mutex
	identity  map[string]string // what every instance has, by absolute path
	announced map[string]string // what Clear takes back, by absolute path
	scheduled []ScheduledEvent  // of both lists
	tokens    map[string]time.Time
}

// Start serves on the loopback interface until Close. Like httptest.NewServer it panics if it cannot listen.
func Start(o Options) *Server {
	s := New(o)
	s.Server = faulty.Start(s, faulty.Options{})
	return s
}

// New returns a Server that does not listen: its ServeHTTP is called.
func New(o Options) *Server {
	s := &Server{
		Server:   faulty.New(),
		identity: identityOf(cmp.Or(o.InstanceID, "i-0123456789abcdef0")),
		tokens:   map[string]time.Time{},
	}
	s.Clear()
	return s
}

// Fault is a failure on demand. Its Action is a path: absolute, or relative to MetadataPath.
type Fault = faulty.Fault

// Unanswered is the delay of a request that gets no answer.
const Unanswered = faulty.Unanswered

// Effects of faults.
var (
	// Unauthorized answers 401 whatever the token.
	Unauthorized faulty.Effect = refusal(http.StatusUnauthorized)
	// Throttled answers 429, as the link-local rate limit does.
	Throttled = refusal(http.StatusTooManyRequests)
	// Unavailable answers 503.
	Unavailable = refusal(http.StatusServiceUnavailable)
	// Reset breaks the connection.
	Reset faulty.Effect = faulty.Reset
)

func refusal(status int) faulty.Effect {
	return func(w http.ResponseWriter, _ *http.Request) { refuse(w, status) }
}

// Fail makes requests that begin from now on fail, until the returned function is called.
func (s *Server) Fail(f Fault) (end func()) {
	if f.Action != "" {
		f.Action = absolute(f.Action)
	}
	return s.Server.Fail(f)
}

// Requests returns how often a path was requested, whatever the answer was. The path is absolute, or relative to
// MetadataPath.
func (s *Server) Requests(path string) int { return s.Server.Requests(absolute(path)) }

func identityOf(instance string) map[string]string {
	const zone, region, kind = "us-east-1a", "us-east-1", "m5.large"
	// The SDK's configuration asks for the region here if nothing else says it.
	document, _ := json.Marshal(map[string]string{
		"accountId":        "123456789012",
		"architecture":     "x86_64",
		"availabilityZone": zone,
		"instanceId":       instance,
		"instanceType":     kind,
		"region":           region,
		"version":          "2017-09-30",
	})
	return map[string]string{
		absolute(InstanceIDPath):                     instance,
		absolute("instance-type"):                    kind,
		absolute("instance-life-cycle"):              "spot",
		absolute("placement/availability-zone"):      zone,
		absolute("placement/region"):                 region,
		"/latest/dynamic/instance-identity/document": string(document),
	}
}

func absolute(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return MetadataPath + path
}
