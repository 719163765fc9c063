// Package stories proves, against a real control plane with Karpenter and with
// spot-handler as a process of its own, what the manual promises: one file per story.
package stories

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/interruption"
)

// story is a cluster and what happens in it.
type story struct {
	*testing.T
	ctx     context.Context
	cluster *controlplane.Cluster

	applied  sync.Mutex
	releases map[string]bool // whose accounts there are, see accounts
	installs bool            // the chart, so its accounts come with it
	goesBack bool            // to an older version of the chart

	seen struct { // what allRequests has read so far
		sync.Mutex
		bytes int64
		lines []request
	}
}

func TestMain(m *testing.M) {
	next.open()
	code := m.Run()
	controlplane.ReturnAll()
	os.Exit(code)
}

// tell gives a story an empty cluster that others have used before. Stories run side by
// side, and each has its cluster to itself.
func tell(t *testing.T, options controlplane.Options) *story {
	t.Helper()
	next.take(t, turn{kind: kindOf(options), returns: true})
	return newStory(t, controlplane.Borrow(t, options))
}

// tellApart is tell for a story that leaves traces which no deletion of objects removes: in
// what the API server admits and defines, in the volumes that controllers believe attached,
// or in the processes. Nobody else uses its cluster afterwards.
func tellApart(t *testing.T, options controlplane.Options) *story {
	t.Helper()
	next.take(t, turn{kind: kindOf(options)})
	return newStory(t, controlplane.Take(t, options))
}

// tellLarge is for a story of hundreds of nodes or pods, with a cluster of its own: half as many
// others run meanwhile.
func tellLarge(t *testing.T, options controlplane.Options) *story {
	t.Helper()
	next.take(t, turn{large: true})
	return newStory(t, controlplane.ForTest(t, options))
}

func newStory(t *testing.T, cluster *controlplane.Cluster) *story {
	t.Helper()
	s := &story{T: t, ctx: t.Context(), cluster: cluster}
	t.Cleanup(s.nothingForbidden)
	return s
}

// pools makes the pools of the manual: spot first, on-demand to fall back on.
func (s *story) pools(boot time.Duration) {
	s.Helper()
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{
			Name: "batch", Weight: 100, CPUs: 16, Boot: time.Second,
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"},
		},
		controlplane.PoolSpec{
			Name: "batch-fallback", Weight: 10, CPUs: 16, Boot: boot,
			Capacity: []string{controlplane.OnDemand},
		}))
}

// node brings up a node of the pool.
func (s *story) node(pool string) *corev1.Node {
	s.Helper()
	node, err := s.cluster.CreateNode(s.ctx, pool)
	s.must(err)
	return node
}

// service runs a Deployment whose pods are on nodes of Karpenter, and waits until all
// of them are ready.
func (s *story) service(name string, replicas int, change func(*controlplane.DeploymentSpec)) []*corev1.Pod {
	s.Helper()
	ready, stop := 3*time.Second, 2*time.Second
	spec := controlplane.DeploymentSpec{
		Name: name, Replicas: replicas, CPU: "500m",
		Behaviour: controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &stop},
	}
	if change != nil {
		change(&spec)
	}
	_, err := s.cluster.RunDeployment(s.ctx, spec)
	s.must(err)
	pods, err := s.cluster.WaitReady(s.ctx, "default", name, replicas)
	s.must(err)
	return pods
}

// budget is for DeploymentSpec's budgets.
func budget(n int) *intstr.IntOrString { v := intstr.FromInt32(int32(n)); return &v }

// imds starts an emulator that serves as the node's metadata service.
func (s *story) imds(node *corev1.Node) *imdsemu.Server {
	server := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(node.Name)})
	s.Cleanup(server.Close)
	return server
}

// sqs starts an emulator with one queue.
func (s *story) sqs() (*sqsemu.Server, *sqsemu.Queue) {
	s.Helper()
	server := sqsemu.Start(sqsemu.Options{})
	s.Cleanup(server.Close)
	queue, err := server.CreateQueue("spot-handler", nil)
	s.must(err)
	return server, queue
}

// run starts a daemon and waits until it is ready.
func (s *story) run(o daemon.Options) *daemon.Daemon {
	s.Helper()
	d := s.start(o)
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	s.must(d.WaitReady(ctx))
	return d
}

func (s *story) start(o daemon.Options) *daemon.Daemon {
	s.Helper()
	kubeconfig, more := s.identify(o.Args)
	o.Kubeconfig, o.Args, o.Log = kubeconfig, append(slices.Clone(o.Args), more...), s.Output()
	d, err := daemon.Start(o)
	s.must(err)
	s.Cleanup(d.Kill)
	return d
}

// alone is for the only daemon in queue mode, and for one that follows a killed one. It need
// not wait for a lease, nor does it begin again when the machine stalls for so long that it is
// lost.
const alone = "--leader-elect=false"

// runQueue starts a daemon in queue mode that is alone.
func (s *story) runQueue(server *sqsemu.Server, queue *sqsemu.Queue, flags ...string) *daemon.Daemon {
	s.Helper()
	return s.runReplica(server, queue, append([]string{alone}, flags...)...)
}

// runReplica starts one of several daemons in queue mode, of which one leads.
func (s *story) runReplica(server *sqsemu.Server, queue *sqsemu.Queue, flags ...string) *daemon.Daemon {
	s.Helper()
	return s.run(daemon.Options{Args: append([]string{"queue", "--queue-url=" + queue.URL()}, flags...), SQS: server.URL})
}

// runDrain starts a daemon that drains what others mark.
func (s *story) runDrain(flags ...string) *daemon.Daemon {
	s.Helper()
	return s.run(daemon.Options{Args: append([]string{"drain", alone}, flags...)})
}

// runIMDS starts a daemon in imds mode for the node.
func (s *story) runIMDS(server *imdsemu.Server, node *corev1.Node, flags ...string) *daemon.Daemon {
	s.Helper()
	return s.run(daemon.Options{Args: append([]string{"imds", "--node-name=" + node.Name, "--poll-interval=500ms"}, flags...), IMDS: server.URL})
}

// waitEmpty waits until every message was deleted.
func (s *story) waitEmpty(queue *sqsemu.Queue) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Minute)
	defer cancel()
	s.must(queue.WaitEmpty(ctx))
}

// record reads the record of a Node.
func record(node *corev1.Node) (interruption.Record, bool) {
	if node == nil {
		return interruption.Record{}, false
	}
	rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
	return rec, err == nil
}

// waitRecord waits until the Node has a record of which done says so.
func (s *story) waitRecord(node string, done func(interruption.Record) bool) interruption.Record {
	s.Helper()
	found, err := s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool {
		rec, ok := record(n)
		return ok && done(rec)
	})
	rec, _ := record(found)
	if err != nil {
		s.Fatalf("node %s: %v; its record is %s", node, err, rec)
	}
	return rec
}

// waitGone waits until the Node is gone.
func (s *story) waitGone(node string) {
	s.Helper()
	_, err := s.cluster.WaitNode(s.ctx, node, func(n *corev1.Node) bool { return n == nil })
	s.must(err)
}

// waitLine waits until the daemon has logged the message, and returns the line.
func (s *story) waitLine(d *daemon.Daemon, message string) daemon.Line {
	s.Helper()
	var line daemon.Line
	s.eventually("log line "+message, func() bool {
		if lines := d.Lines(message); len(lines) > 0 {
			line = lines[0]
		}
		return line != nil
	})
	return line
}

// waitEnd waits until the daemon has ended by itself, and returns its exit code.
func (s *story) waitEnd(d *daemon.Daemon) int {
	s.Helper()
	s.eventually("end of the daemon", func() bool {
		select {
		case <-d.Done():
			return true
		default:
			return false
		}
	})
	return d.ExitCode()
}

// eventually polls until ok says so; five minutes are more than any step takes.
func (s *story) eventually(what string, ok func() bool) {
	s.Helper()
	s.within(what, 5*time.Minute, ok, func() string { return "" })
}

// Between polls there is as long as a twentieth of the time so far: the tests share the processors.
const (
	pollSoonest = 50 * time.Millisecond
	pollLatest  = 250 * time.Millisecond
)

// within polls until ok says so, and tells the state of things if it never does.
func (s *story) within(what string, limit time.Duration, ok func() bool, state func() string) {
	s.Helper()
	began := time.Now()
	deadline := time.After(limit)
	for !ok() {
		select {
		case <-deadline:
			s.Fatalf("%s: not within %s; %s", what, limit, state())
		case <-s.ctx.Done():
			s.Fatalf("%s: %v", what, s.ctx.Err())
		case <-time.After(min(max(pollSoonest, time.Since(began)/20), pollLatest)):
		}
	}
}

func (s *story) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// watchReady follows a service until the story ends and tells the fewest pods that
// were ready at any moment.
func (s *story) watchReady(service string) (fewest func() int) {
	s.Helper()
	var mu sync.Mutex
	least := -1
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Minute)
	s.Cleanup(cancel)
	first := make(chan struct{})
	var once sync.Once
	seen := func() { once.Do(func() { close(first) }) }
	go func() {
		defer seen()
		_, _ = s.cluster.WaitPods(ctx, "default", controlplane.Selector(service), func(pods []*corev1.Pod) bool {
			n := 0
			for _, p := range pods {
				if controlplane.Ready(p) {
					n++
				}
			}
			mu.Lock()
			if least < 0 || n < least {
				least = n
			}
			mu.Unlock()
			seen()
			return false
		})
	}()
	<-first
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return least
	}
}

// podsOn lists the pods of a service that are on the node and have not ended.
func (s *story) podsOn(node, service string) []corev1.Pod {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{
		LabelSelector: controlplane.Selector(service), FieldSelector: "status.phase!=Failed,status.phase!=Succeeded,spec.nodeName=" + node,
	})
	s.must(err)
	return list.Items
}

// claims lists the NodeClaims of a pool that we made for an instance; "" is any.
func (s *story) claims(pool, instance string) []string {
	s.Helper()
	selector := "karpenter.sh/nodepool=" + pool + ",spot-handler/replaces"
	if instance != "" {
		selector += "=" + instance
	}
	list, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).List(s.ctx, metav1.ListOptions{LabelSelector: selector})
	s.must(err)
	var names []string
	for _, c := range list.Items {
		names = append(names, c.GetName())
	}
	return names
}

// events returns the Events with the reason about the named object.
func (s *story) events(reason, name string) []corev1.Event {
	s.Helper()
	list, err := s.cluster.Client.CoreV1().Events("").List(s.ctx, metav1.ListOptions{
		FieldSelector: "reason=" + reason + ",involvedObject.name=" + name,
	})
	s.must(err)
	return list.Items
}

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

// requests are those that spot-handler has made of the API server.
func (s *story) requests(match func(request) bool) []request {
	s.Helper()
	return s.allRequests(func(r request) bool { return strings.HasPrefix(r.UserAgent, "spot-handler/") && match(r) })
}

// allRequests are those that anybody has made of it. Polled, it reads what is new in the log.
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

// evictions that the API server has taken, by the pod's UID.
func (s *story) evictions() map[string]int {
	taken := map[string]int{}
	for _, r := range s.requests(func(r request) bool {
		return r.ObjectRef.Subresource == "eviction" && r.ResponseStatus.Code == 201
	}) {
		taken[r.RequestObject.DeleteOptions.Preconditions.UID]++
	}
	return taken
}

// brokenOff are the pods, by UID, of evictions that were neither granted nor refused. One whose
// client is killed may have been done all the same, and is not answered with success then.
func (s *story) brokenOff() map[string]bool {
	pods := map[string]bool{}
	for _, r := range s.requests(func(r request) bool {
		return r.ObjectRef.Subresource == "eviction" && r.ResponseStatus.Code != 201 && r.ResponseStatus.Code != 429
	}) {
		pods[r.RequestObject.DeleteOptions.Preconditions.UID] = true
	}
	return pods
}

// metric is the value of one series, such as `spot_handler_leader`, or 0.
func (s *story) metric(d *daemon.Daemon, series string) (value float64) {
	s.Helper()
	for line := range strings.Lines(d.Metrics(s.ctx)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			_, err := fmt.Sscan(rest, &value)
			s.must(err)
			return value
		}
	}
	s.Fatalf("no metric %s", series)
	return 0
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// lastSeen is the Node as it is now, or nil.
func (s *story) lastSeen(name string) *corev1.Node {
	s.Helper()
	node, err := s.cluster.WaitNode(s.ctx, name, func(*corev1.Node) bool { return true })
	s.must(err)
	return node
}
