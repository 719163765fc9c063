package stories

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/internal/tied"
	"spot-handler/handler/interruption"
)

// recorded is what programs read of `observe -o json`.
type recorded struct {
	Score struct {
		Graceful, Truncated, Forced, Left, Dip int
		Required                               []struct {
			Required string
			Met      bool
		}
	}
	Recording struct {
		Nodes []struct {
			Name    string
			Counted *interruption.Pods
			Pods    []recordedPod
		}
		Workloads []struct {
			Name            string
			Fewest, Missing int
		}
		Unread []string
	}
}

type recordedPod struct {
	Name, UID, Outcome    string
	GivenSeconds          *int64
	Surged, Evicted, Gone *time.Time
	Refusal               *struct{ Reason string }
}

// EC2 takes a node at 40 s' notice, while somebody watches. The pods of a service are surged and
// end gracefully; of a single one whose replacement pod takes its time the service is without for a
// while; one asks for more grace than there is; and one is refused by its budget to the end. What
// the observer has recorded agrees with what the API server's audit log says of every pod, with
// the daemon's record, and with what another watch saw of the services. What was required and was
// not so sets the exit code.
func TestObserverAgreesWithTheAuditLog(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	pods := map[string][]*corev1.Pod{
		"web":  s.service("web", 3, quick),
		"solo": s.service("solo", 1, func(d *controlplane.DeploymentSpec) { quick(d); d.MaxSurge = never }),
		"slow": s.service("slow", 1, func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.Grace, d.MaxSurge = 300*time.Second, never
		}),
		"db": s.service("db", 1, func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.MaxSurge, d.BudgetMinAvailable = never, budget(1)
		}),
	}
	s.bare("spare", 1, 8)
	fewest := map[string]func() int{}
	for name := range pods {
		fewest[name] = s.watchReady(name)
	}
	_, queue := s.drill()
	page := filepath.Join(s.TempDir(), "report.html")
	end := s.observe(node.Name, "--report="+page, "--require=left=1,dip=0,truncated=1")

	interrupt(queue, node.Name, 40*time.Second)
	rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase.Over() })
	s.must(s.cluster.Client.CoreV1().Nodes().Delete(s.ctx, node.Name, metav1.DeleteOptions{})) // EC2 has taken it
	var seen recorded
	if code := end(&seen); code != 3 {
		t.Errorf("exit code %d, want 3 as a service was without a pod", code)
	}

	if len(seen.Recording.Nodes) != 1 || len(seen.Recording.Unread) > 0 {
		t.Fatalf("want one node and nothing unread: %+v", seen.Recording)
	}
	n := seen.Recording.Nodes[0]
	got := result{seen.Score.Graceful, seen.Score.Truncated, seen.Score.Forced, seen.Score.Left}
	if want := (result{rec.Pods.Graceful, rec.Pods.Truncated, rec.Pods.Forced, rec.Pods.Left}); got != want || got != (result{graceful: 4, truncated: 1, left: 1}) {
		t.Errorf("recorded %+v, the daemon %+v, want 4 graceful, 1 truncated, 1 left", got, want)
	}
	reported := map[string]recordedPod{}
	for _, p := range n.Pods {
		reported[p.UID] = p
	}
	s.wantAsAudited(reported)
	if p := reported[string(pods["db"][0].UID)]; p.Outcome != "left" || p.Refusal == nil || !strings.Contains(p.Refusal.Reason, "The disruption budget db needs 1 healthy pods") {
		t.Errorf("pod of db: %+v, want it refused by its budget", p)
	}
	for _, pod := range pods["web"] {
		if reported[string(pod.UID)].Surged == nil {
			t.Errorf("pod %s was not seen surged", pod.Name)
		}
	}
	dip := 0
	for _, w := range seen.Recording.Workloads {
		name := strings.TrimPrefix(w.Name, "deployment/")
		dip = max(dip, w.Missing)
		if name != "db" && w.Fewest != fewest[name]() { // db's pod goes with its Node, whenever that is seen
			t.Errorf("%s: fewest ready %d, another watch saw %d", w.Name, w.Fewest, fewest[name]())
		}
	}
	met := map[string]bool{}
	for _, v := range seen.Score.Required {
		met[v.Required] = v.Met
	}
	if len(seen.Recording.Workloads) != 4 || dip != 1 || !met["left=1"] || met["dip=0"] || !met["truncated=1"] {
		t.Errorf("dip %d of %d workloads, requirements %v; want one missing, and that alone not met", dip, len(seen.Recording.Workloads), met)
	}

	text, err := os.ReadFile(page)
	s.must(err)
	for _, p := range n.Pods {
		if !strings.Contains(string(text), "default/"+p.Name+"</th>") {
			t.Errorf("pod %s is not on the page", p.Name)
		}
	}
}

// wantAsAudited compares each recorded pod with the requests for it that the API server took.
func (s *story) wantAsAudited(reported map[string]recordedPod) {
	s.Helper()
	evicted, refused := map[string]request{}, map[string]bool{}
	for _, r := range s.requests(func(r request) bool { return r.ObjectRef.Subresource == "eviction" }) {
		switch uid := r.RequestObject.DeleteOptions.Preconditions.UID; r.ResponseStatus.Code {
		case 201:
			evicted[uid] = r
		case 429:
			refused[uid] = true
		}
	}
	for uid, p := range reported {
		r, has := evicted[uid]
		switch {
		case p.Outcome == "left":
			if has || !refused[uid] {
				s.Errorf("pod %s is recorded as left: evicted %v, refused %v", p.Name, has, refused[uid])
			}
			continue
		case !has || p.Evicted == nil || p.GivenSeconds == nil:
			s.Errorf("pod %s, %s: evicted by the audit log %v, recorded at %v", p.Name, p.Outcome, has, p.Evicted)
			continue
		}
		if apart := p.Evicted.Sub(r.StageTimestamp).Abs(); apart > 5*time.Second { // on a busy machine
			s.Errorf("pod %s was evicted at %s, and recorded so at %s", p.Name, r.StageTimestamp, p.Evicted)
		}
		if asked := r.RequestObject.DeleteOptions.GracePeriodSeconds; asked != nil && *asked != *p.GivenSeconds || (asked != nil) != (p.Outcome == "truncated") {
			s.Errorf("pod %s, %s: evicted with %v s, recorded %d", p.Name, p.Outcome, value(asked), *p.GivenSeconds)
		}
		delete(evicted, uid)
	}
	if len(evicted) > 0 {
		s.Errorf("evicted and not recorded: %v", evicted)
	}
}

// observe follows a node from now on. The returned function waits until the command has ended by
// itself, and returns what it printed and its exit code.
func (s *story) observe(node string, args ...string) (end func(*recorded) int) {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	cmd := exec.CommandContext(s.ctx, program, slices.Concat([]string{"observe", node, "-o", "json"}, args)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.cluster.Kubeconfig)
	var out strings.Builder
	cmd.Stdout = &out
	said, err := cmd.StderrPipe()
	s.must(err)
	s.must(tied.Start(cmd))
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(said); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	if line := <-lines; !strings.HasPrefix(line, "watching") {
		s.Fatalf("observe: %s", line)
	}
	return func(seen *recorded) int {
		s.Helper()
		for line := range lines {
			s.Log(line)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			s.Fatal(err)
		}
		if err := json.Unmarshal([]byte(out.String()), seen); err != nil {
			s.Fatalf("observe: %v\n%s", err, &out)
		}
		return cmd.ProcessState.ExitCode()
	}
}
