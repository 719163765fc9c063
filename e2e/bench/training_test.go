package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
)

// What the stand-ins for training jobs are like. Nothing else is done while one writes a
// checkpoint.
const (
	stepTime        = 100 * time.Millisecond
	checkpointEvery = 600 // steps: a minute
	checkpointTime  = 20 * time.Second
	trainingPods    = 6 // of each way, the last checkpoint of each 10 s older than that of the one before
)

// training is how a job learns of its end, and what it does then.
type training struct {
	name   string
	grace  time.Duration
	notice bool // it asks for the notice; otherwise there is SIGTERM alone

	saves      bool          // it writes a checkpoint when it learns of its end
	checkpoint time.Duration // that takes so long
	worksOn    bool          // and begins as late as evictBy allows
}

var trainings = []training{
	{name: "SIGTERM, no checkpoint then", grace: 30 * time.Second, checkpoint: checkpointTime},
	{name: "SIGTERM, checkpoint of 20 s, grace 10 s", grace: 10 * time.Second, saves: true, checkpoint: checkpointTime},
	{name: "SIGTERM, checkpoint of 20 s, grace 30 s", grace: 30 * time.Second, saves: true, checkpoint: checkpointTime},
	{name: "notice, checkpoint of 20 s, grace 10 s", grace: 10 * time.Second, notice: true, saves: true, checkpoint: checkpointTime},
	{name: "notice, checkpoint of 1 s, grace 10 s", grace: 10 * time.Second, notice: true, saves: true, checkpoint: time.Second},
	{name: "notice, works on, checkpoint of 20 s, grace 10 s", grace: 10 * time.Second, notice: true, saves: true, checkpoint: checkpointTime, worksOn: true},
}

// BenchmarkTrainingJob interrupts training jobs that write a checkpoint every minute, and counts
// the steps that are in none when they are killed. It takes about two and a half minutes. The
// phases differ from job to job, so there is one round.
func BenchmarkTrainingJob(b *testing.B) {
	for b.Loop() {
		measureTraining(b)
	}
}

func measureTraining(b *testing.B) {
	cluster := controlplane.ForTest(b, controlplane.Options{})
	ctx, stop := context.WithTimeoutCause(b.Context(), 5*time.Minute, fmt.Errorf("not within 5 minutes"))
	defer stop()
	school := &school{B: b, cluster: cluster, jobs: map[string]*trainingJob{}}
	server := httptest.NewServer(school)
	defer server.Close()
	school.port = server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	nodes := make([]*corev1.Node, len(trainings))
	for i, way := range trainings {
		nodes[i] = school.setUp(ctx, i, way)
	}
	sqs := sqsemu.Start()
	defer sqs.Close()
	queue := sqs.Queue("spot-handler")
	d := start(b, daemon.Options{
		Args: []string{"queue", "--queue-url=" + queue.URL(), "--workload-notices", "--notice-networks=127.0.0.0/8"}, Kubeconfig: cluster.Kubeconfig, SQS: sqs.URL,
	})
	must(b, d.WaitReady(ctx))
	defer d.Kill()

	noticed := time.Now()
	deadline := noticed.Add(noticeTime)
	for _, job := range school.jobs {
		school.running.Go(func() { job.train(deadline) })
	}
	for i, node := range nodes {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, fmt.Sprintf("event-%d", i), controlplane.InstanceID(node.Name), noticed))
	}
	empty := make([]time.Duration, len(trainings))
	var watches sync.WaitGroup
	for i := range trainings {
		watches.Go(func() { empty[i] = school.follow(ctx, i, nodes[i].Name, noticed) })
	}
	watches.Wait()
	school.running.Wait()
	for i, way := range trainings {
		var lost, after []float64
		for _, job := range school.jobs {
			if job.training == way {
				lost = append(lost, float64(job.done-job.saved))
				after = append(after, float64(max(0, job.saved-job.before)))
			}
		}
		report(row{what: "steps lost, " + way.name, values: lost, none: way.notice})
		report(row{what: "  steps since the notice that were saved; node empty after", text: fmt.Sprintf("%.0f; %.0f s", median(after), empty[i].Seconds())})
	}
}

// school has all jobs, and is the server in each of their pods.
type school struct {
	*testing.B
	cluster *controlplane.Cluster
	port    string
	jobs    map[string]*trainingJob // by pod
	running sync.WaitGroup
}

func jobName(way int) string { return fmt.Sprintf("training-%d", way) }

// setUp has the jobs of a way run on a node of their own.
func (s *school) setUp(ctx context.Context, i int, way training) *corev1.Node {
	label := map[string]string{"bench.spot-handler/training": jobName(i)}
	nodes, err := s.cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: 1, Labels: label})
	must(s.B, err)
	ready, stops := time.Second, time.Second
	if !way.notice && way.saves { // it uses what it has
		stops = min(way.checkpoint, way.grace)
	}
	spec := controlplane.DeploymentSpec{
		Name: jobName(i), Replicas: trainingPods, NodeSelector: label, Grace: way.grace,
		Behaviour: controlplane.Behaviour{ReadyAfter: &ready, StopAfter: &stops}, Annotations: map[string]string{"e2e.spot-handler/ip": "127.0.0.1"},
	}
	if way.notice {
		spec.Annotations["spot-handler/notice"] = s.port
	}
	_, err = s.cluster.RunJob(ctx, spec, func(job *batchv1.Job) { job.Spec.BackoffLimit = new(int32(100)) })
	must(s.B, err)
	pods, err := s.cluster.WaitReady(ctx, metav1.NamespaceDefault, jobName(i), trainingPods)
	must(s.B, err)
	for n, pod := range pods {
		before := n * checkpointEvery / trainingPods
		s.jobs[pod.Name] = &trainingJob{training: way, before: before, done: before, ends: make(chan struct{}), finished: make(chan struct{}), killed: make(chan struct{})}
	}
	return nodes[0]
}

// follow has the jobs of a way get SIGTERM, and be killed at the end of their grace periods,
// until they have left the node.
func (s *school) follow(ctx context.Context, i int, node string, from time.Time) time.Duration {
	_, err := s.cluster.WaitPods(ctx, metav1.NamespaceDefault, controlplane.Selector(jobName(i)), func(pods []*corev1.Pod) bool {
		on := 0
		for _, pod := range pods {
			if pod.Spec.NodeName != node {
				continue
			}
			on++
			if pod.DeletionTimestamp != nil {
				s.jobs[pod.Name].terminate(pod.DeletionTimestamp.Time)
			}
		}
		return on == 0
	})
	must(s.B, err)
	return time.Since(from)
}

// ServeHTTP takes the notices.
func (s *school) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var event struct {
		Subject string
		Data    struct{ EvictBy time.Time }
	}
	if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, pod, _ := strings.Cut(event.Subject, "/")
	job := s.jobs[pod]
	begin := time.Now()
	if job.worksOn {
		const spare = 2 * time.Second
		begin = event.Data.EvictBy.Add(-job.checkpoint - spare)
	}
	time.AfterFunc(time.Until(begin), job.learn)
	select {
	case <-job.finished:
		fmt.Fprint(w, `{"when":"now"}`)
	case <-time.After(1500 * time.Millisecond): // it says so later
		job.later.Do(func() { s.running.Go(func() { s.sayNow(pod, job) }) })
	}
}

// sayNow has a pod say that it can go when its checkpoint is written.
func (s *school) sayNow(pod string, job *trainingJob) {
	select {
	case <-job.killed:
	case <-job.finished:
		patch := []byte(`{"metadata":{"annotations":{"spot-handler/when":"now"}}}`)
		_, err := s.cluster.Client.CoreV1().Pods(metav1.NamespaceDefault).Patch(s.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			s.Error(err)
		}
	}
}

// trainingJob is the process in one pod.
type trainingJob struct {
	training
	before int // steps when the notice came, since its last checkpoint

	done, saved int // of train alone while it runs

	learnt, stopped, later sync.Once
	ends, finished, killed chan struct{} // it has learnt of its end; its last checkpoint is written; SIGKILL
}

func (j *trainingJob) learn() { j.learnt.Do(func() { close(j.ends) }) }

// terminate is SIGTERM, with SIGKILL to come.
func (j *trainingJob) terminate(kill time.Time) {
	j.stopped.Do(func() {
		if !j.notice {
			j.learn()
		}
		time.AfterFunc(time.Until(kill), func() { close(j.killed) })
	})
}

// train works until it is killed, at the latest with its node, or has written its last checkpoint.
func (j *trainingJob) train(end time.Time) {
	node := time.AfterFunc(time.Until(end), func() { j.terminate(end) })
	defer node.Stop()
	tick := time.NewTicker(stepTime)
	defer tick.Stop()
	for {
		select {
		case <-j.killed:
			return
		case <-j.ends:
			if !j.saves || j.done > j.saved && !j.save() {
				return // also without a word: it is SIGTERM that ends it
			}
			close(j.finished)
			return
		case <-tick.C:
			if j.done++; j.done-j.saved >= checkpointEvery && !j.save() {
				return
			}
		}
	}
}

// save writes a checkpoint, and reports whether it could.
func (j *trainingJob) save() bool {
	select {
	case <-j.killed:
		return false
	case <-time.After(j.checkpoint):
		j.saved = j.done
		return true
	}
}
