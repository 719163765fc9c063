// Package imdsemu is an EC2 instance metadata service on the loopback interface, for tests, the demo and
// benchmarks.
//
// It speaks IMDSv2 only: a PUT fetches a token with a lifetime, the token expires, and every GET without a live one
// gets a 401. Methods say what EC2 would announce (Interrupt, Rebalance, Schedule, Cancel, Complete,
// SetTargetLifecycleState); it stays announced until Clear, as on a real instance. Fail requests what goes wrong
// with a real endpoint.
//
// A Server keeps no secrets and reads no clock but time.Now. It never acts by itself, so it announces nothing that
// a caller did not request. All methods are safe for concurrent use, and every request that begins later sees their
// effect.
package imdsemu

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Paths of the service. Wherever a method takes a metadata path, it may be relative to MetadataPath.
const (
	// TokenPath is where clients fetch tokens. A Hang fault on it plays an instance whose hop limit is too low for
	// a pod: the answer to the PUT is dropped on the way back, and all that the client sees is silence.
	TokenPath = "/latest/api/token"
	// MetadataPath is the prefix of all metadata.
	MetadataPath = "/latest/meta-data/"

	InstanceIDPath           = "instance-id"
	InstanceTypePath         = "instance-type"
	LifeCyclePath            = "instance-life-cycle"
	AvailabilityZonePath     = "placement/availability-zone"
	RegionPath               = "placement/region"
	InstanceActionPath       = "spot/instance-action"
	RebalancePath            = "events/recommendations/rebalance"
	ScheduledEventsPath      = "events/maintenance/scheduled"
	EventHistoryPath         = "events/maintenance/history"
	TargetLifecycleStatePath = "autoscaling/target-lifecycle-state"

	identityDocumentPath = "/latest/dynamic/instance-identity/document"
)

// Options say which instance the service describes. The zero value is a spot instance on a free port.
type Options struct {
	// Addr is the loopback address to listen on; empty means a free port of 127.0.0.1.
	Addr string
	// InstanceID defaults to i-0123456789abcdef0.
	InstanceID string
	// InstanceType defaults to m5.large.
	InstanceType string
	// AvailabilityZone defaults to us-east-1a; the region is the zone without its letter.
	AvailabilityZone string
	// LifeCycle is spot (the default) or on-demand.
	LifeCycle string
}

// Server is one instance's metadata service.
type Server struct {
	// URL is the endpoint, without a trailing slash: the value for AWS_EC2_METADATA_SERVICE_ENDPOINT.
	URL string

	http    *http.Server
	stop    context.CancelFunc
	stopped chan struct{}

	mu          sync.Mutex
	identity    map[string]string // what every instance has, by absolute path
	announced   map[string]string // what Clear takes back, by absolute path
	scheduled   []ScheduledEvent  // of both lists
	tokens      map[string]time.Time
	faults      []*fault
	requests    map[string]int
	connections int
}

// Start serves on the loopback interface until Close. Like httptest.NewServer it panics if it cannot listen, or if
// the address is not a loopback one: an unauthenticated stand-in has no business on a network.
func Start(o Options) *Server {
	listener, err := listenLoopback(o.Addr)
	if err != nil {
		panic(fmt.Sprintf("imdsemu: %v", err))
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		URL:      "http://" + listener.Addr().String(),
		stop:     stop,
		stopped:  make(chan struct{}),
		identity: identityOf(o),
		tokens:   map[string]time.Time{},
		requests: map[string]int{},
	}
	s.Clear()
	s.http = &http.Server{
		Handler:     s,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState:   s.countConnection,
	}
	go func() {
		defer close(s.stopped)
		_ = s.http.Serve(listener) // always ErrServerClosed, by Close
	}()
	return s
}

// Close ends all connections, including those whose requests hang, and frees the port.
func (s *Server) Close() {
	s.stop()
	_ = s.http.Close()
	<-s.stopped
}

// Requests returns how often a path was requested, whatever the answer was. The path is absolute, or relative to
// MetadataPath.
func (s *Server) Requests(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[absolute(path)]
}

// RequestsByPath returns the count for every absolute path that was requested.
func (s *Server) RequestsByPath() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.requests)
}

// Connections returns how many TCP connections have been opened since Start. A client that reads its bodies to the end
// stays at one, however often it polls.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

func (s *Server) countConnection(_ net.Conn, state http.ConnState) {
	if state != http.StateNew {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connections++
}

func listenLoopback(addr string) (net.Listener, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("resolve address %q: %w", addr, err)
	}
	if !tcp.IP.IsLoopback() {
		return nil, fmt.Errorf("address %q is not a loopback address", addr)
	}
	return net.ListenTCP("tcp", tcp)
}

func identityOf(o Options) map[string]string {
	id := cmp.Or(o.InstanceID, "i-0123456789abcdef0")
	typ := cmp.Or(o.InstanceType, "m5.large")
	zone := cmp.Or(o.AvailabilityZone, "us-east-1a")
	region := strings.TrimRight(zone, "abcdefghijklmnopqrstuvwxyz")

	// The SDK's configuration asks for the region here if nothing else says it.
	document, _ := json.Marshal(map[string]string{
		"accountId": "123456789012", "architecture": "x86_64", "availabilityZone": zone, "instanceId": id,
		"instanceType": typ, "region": region, "version": "2017-09-30",
	})
	return map[string]string{
		absolute(InstanceIDPath):       id,
		absolute(InstanceTypePath):     typ,
		absolute(LifeCyclePath):        cmp.Or(o.LifeCycle, "spot"),
		absolute(AvailabilityZonePath): zone,
		absolute(RegionPath):           region,
		identityDocumentPath:           string(document),
	}
}

func absolute(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return MetadataPath + path
}
