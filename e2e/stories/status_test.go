package stories

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/daemon"
	"spot-handler/e2e/internal/tied"
	"spot-handler/handler/interruption"
)

// What `spot-handler status` shows while another story runs.

// statusList and statusStory are what programs read of `status -o json`.
type statusList struct {
	Interruptions []statusOf
	Offerings     []struct {
		Zone, Pool string
		Lost       float64
	}
	Unread []string
}

type statusOf struct {
	Node, WaitsFor, Result    string
	Phase                     interruption.Phase
	Over                      bool
	SecondsLeft, SlackSeconds *float64
	Replacement               *interruption.Replacement
	Pods                      struct {
		Total, Graceful, Truncated, Forced, Left int
		Here                                     *int
	}
}

type statusStory struct {
	statusOf
	OnNode []struct{ Namespace, Name, Next, WaitsFor string }
	Events []struct{ Reason string }
	Unread []string
}

// ask runs a command as an administrator does, and returns what it prints. The kubeconfig is in
// the environment, where people have it.
func (s *story) ask(program string, args ...string) []byte {
	s.Helper()
	cmd := exec.CommandContext(s.ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.cluster.Kubeconfig)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil || errs.Len() > 0 {
		s.Errorf("%s %q: %v\n%s", filepath.Base(program), args, err, &errs)
	}
	return out
}

// status asks for what programs read.
func (s *story) status(result any, args ...string) {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	out := s.ask(program, append([]string{"status", "-o", "json"}, args...)...)
	if err := json.Unmarshal(out, result); err != nil {
		s.Fatalf("status %q: %v\n%s", args, err, out)
	}
}

// wantStatusOfBooting checks what status shows of a node whose pods wait for a replacement
// that boots: by the command and, with it as a plugin, by kubectl.
func (s *story) wantStatusOfBooting(d *daemon.Daemon, node string, pods int) {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	for _, out := range [][]byte{s.ask(program, "status"), s.plugin("spot-handler", "status")} {
		_, row, _ := strings.Cut(string(out), "\n")
		if cells := strings.Fields(row); len(cells) < 3 || cells[0] != node || cells[1] != string(interruption.SpotInterruption) || cells[2] != string(interruption.Replacing) {
			s.Errorf("want a row about %s:\n%s", node, out)
		}
	}
	if help := s.plugin("spot-handler", "status", "--help"); !strings.Contains(string(help), "\n  kubectl spot-handler status --watch\n") {
		s.Errorf("help of the plugin is not about kubectl:\n%s", help)
	}

	var list statusList
	s.status(&list)
	if len(list.Interruptions) != 1 || len(list.Unread) > 0 {
		s.Fatalf("want one node and nothing unread: %+v", list)
	}
	one := list.Interruptions[0]
	if one.Node != node || one.Over || one.Pods.Here == nil || *one.Pods.Here != pods || one.Pods.Total != pods ||
		one.SecondsLeft == nil || *one.SecondsLeft <= 0 || *one.SecondsLeft > 120 || !strings.Contains(one.WaitsFor, "its replacement "+one.Replacement.Name) {
		s.Errorf("want %d pods that wait for the replacement: %+v", pods, one)
	}

	var shown statusStory
	// What a process before this one requested, its Event might have ended with it.
	requested := len(d.Lines("replacement requested")) > 0
	s.eventually("the Event of the replacement", func() bool {
		shown = statusStory{}
		s.status(&shown, "--node="+node)
		if !requested {
			return true
		}
		for _, e := range shown.Events {
			if e.Reason == "ReplacementRequested" {
				return true
			}
		}
		return false
	})
	if len(shown.OnNode) != pods || len(shown.Unread) > 0 {
		s.Errorf("want %d pods and nothing unread: %+v", pods, shown)
	}
	for _, p := range shown.OnNode {
		if p.Next != "hold" || p.WaitsFor == "" {
			s.Errorf("pod %s: %q, %q; want it held", p.Name, p.Next, p.WaitsFor)
		}
	}
}

// plugin runs kubectl with spot-handler as its plugin.
func (s *story) plugin(args ...string) []byte {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	dir := s.TempDir()
	s.must(os.Symlink(program, filepath.Join(dir, "kubectl-spot_handler")))
	return s.ask("/usr/bin/env", append([]string{"PATH=" + dir + ":" + os.Getenv("PATH"), s.cluster.Kubectl}, args...)...)
}

// watchStatus follows `status --watch` from now on. The returned function ends it as Ctrl-C does,
// and returns every list that it has shown.
func (s *story) watchStatus() (end func() []statusList) {
	s.Helper()
	program, err := daemon.Build()
	s.must(err)
	cmd := exec.CommandContext(s.ctx, program, "status", "--watch", "-o", "json")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+s.cluster.Kubeconfig)
	out, err := cmd.StdoutPipe()
	s.must(err)
	s.must(tied.Start(cmd))
	var mu sync.Mutex
	var lists []statusList
	ended := make(chan error, 1)
	go func() {
		for decoder := json.NewDecoder(out); ; {
			var list statusList
			if err := decoder.Decode(&list); err != nil {
				ended <- err
				return
			}
			mu.Lock()
			lists = append(lists, list)
			mu.Unlock()
		}
	}()
	return func() []statusList {
		s.Helper()
		s.eventually("a list without interruptions", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(lists) > 0 && len(lists[len(lists)-1].Interruptions) == 0
		})
		s.must(cmd.Process.Signal(syscall.SIGINT))
		if err := <-ended; !errors.Is(err, io.EOF) {
			s.Errorf("status --watch shows what is no JSON: %v", err)
		}
		if err := cmd.Wait(); err != nil {
			s.Errorf("status --watch: %v", err)
		}
		return lists
	}
}

// wantStatusOfEnded checks that status shows the ends that the records of existing Nodes name.
func (s *story) wantStatusOfEnded(want map[string]result) {
	s.Helper()
	var list statusList
	s.status(&list)
	shown := map[string]statusOf{}
	for _, one := range list.Interruptions {
		shown[one.Node] = one
	}
	for node, w := range want {
		one, is := shown[node]
		if _, err := s.cluster.Client.CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{}); !is && apierrors.IsNotFound(err) {
			continue
		}
		if p := one.Pods; !one.Over || one.Result == "" || one.SlackSeconds == nil || p.Total != w.total() || (result{p.Graceful, p.Truncated, p.Forced, p.Left}) != w {
			s.Errorf("status shows %s: %+v, want %+v", node, one, w)
		}
	}
}
