package manual

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"spot-handler/e2e/internal/loopback"
	"spot-handler/e2e/internal/tied"
)

// receivers are what the pages for authors of workloads show: a notice, and programs that get it.
type receivers struct {
	notice  map[string]any // that the manual shows
	evictBy string         // of the pod that gets it
	library string         // receiver.py, which the recipes import
}

// shownNotice keeps the notice, with a time that has not passed.
func (p *play) shownNotice() {
	p.Helper()
	p.must(json.Unmarshal([]byte(p.text), &p.receivers.notice))
	data, ok := p.receivers.notice["data"].(map[string]any)
	if !ok || data["evictBy"] == nil {
		p.Fatalf("the notice does not say when the pod is evicted: %s", p.text)
	}
	p.receivers.evictBy = time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	data["evictBy"] = p.receivers.evictBy
}

// inPlace replaces a text that has to be there.
func (p *play) inPlace(text, old, new string) string {
	p.Helper()
	if !strings.Contains(text, old) {
		p.Fatalf("no %q in\n%s", old, text)
	}
	return strings.ReplaceAll(text, old, new)
}

// receive runs a program that imports receiver.py, or is it, in a directory, and returns what sends it the notice.
func (p *play) receive(dir, program string, out io.Writer) (notify func() string) {
	p.Helper()
	address, err := loopback.Address()
	p.must(err)
	host, port, _ := strings.Cut(address, ":")
	library := p.inPlace(p.receivers.library, `("", 8080)`, fmt.Sprintf("(%q, %s)", host, port))
	if program == p.receivers.library {
		program = library
	}
	for name, text := range map[string]string{"receiver.py": library, "program.py": program} {
		p.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.Command("env", "python3", "program.py")
	cmd.Dir, cmd.Env = dir, append(p.env[:len(p.env):len(p.env)], "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = out, out
	process, err := tied.Run(cmd)
	p.must(err)
	p.Cleanup(process.Kill)
	body, err := json.Marshal(p.receivers.notice)
	p.must(err)
	return func() (answer string) {
		p.Helper()
		p.eventually("an answer of the receiver", func() bool {
			select {
			case <-process.Done():
				p.Fatalf("the receiver has ended, with code %d", process.ExitCode())
			default:
			}
			resp, err := http.Post("http://"+address, "application/json", bytes.NewReader(body))
			if err != nil {
				return false // it does not listen yet
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			p.must(err)
			if answer = string(text); resp.StatusCode != http.StatusOK {
				p.Fatalf("the receiver answers %s: %s", resp.Status, text)
			}
			return true
		})
		return answer
	}
}

// wantAnswer compares answers as spot-handler reads them.
func (p *play) wantAnswer(got, want string) {
	p.Helper()
	var answer struct{ When string }
	if err := json.Unmarshal([]byte(got), &answer); err != nil || answer.When != want {
		p.Errorf("the answer is %q, want %q: %v", got, want, err)
	}
}

// library is the receiver that the recipes import. By itself it holds, and says what comes.
func (p *play) library() {
	p.Helper()
	p.receivers.library = p.text
	var out output
	p.wantAnswer(p.receive(p.mkdir("receiver"), p.text, &out)(), "hold")
	p.eventually("what it prints of the notice", func() bool {
		return strings.Contains(out.String(), "spot-handler.notice "+p.receivers.evictBy)
	})
}

// runner is busy, and then is not.
func (p *play) runner() {
	p.Helper()
	dir := p.mkdir("runner")
	notify := p.receive(dir, p.inPlace(p.text, "/run/job/", dir+"/"), p.Output())
	p.must(os.WriteFile(filepath.Join(dir, "busy"), nil, 0o600))
	p.wantAnswer(notify(), "last")
	p.must(os.Remove(filepath.Join(dir, "busy")))
	p.wantAnswer(notify(), "now")
}

// ray is one that notes which node it has to drain, and when.
func (p *play) ray() {
	p.Helper()
	dir := p.mkdir("ray")
	for name, text := range map[string]string{
		"ray.py": `
def init(address, ignore_reinit_error): assert address == "auto"
class get_runtime_context:
    def get_node_id(self): return "node-1"
`,
		"ray": "#!/bin/sh\necho \"$@\" >called.part && mv called.part called\n",
	} {
		p.must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	if answer := p.receive(dir, p.text, p.Output())(); answer != "" {
		p.Errorf("the answer is %q, want none", answer)
	}
	var called []byte
	p.eventually("a call of ray", func() (ok bool) {
		var err error
		called, err = os.ReadFile(filepath.Join(dir, "called"))
		return err == nil
	})
	want := regexp.MustCompile(`^drain-node --node-id node-1 --reason DRAIN_NODE_REASON_PREEMPTION ` +
		`--reason-message \S+ --deadline-remaining-seconds 3[3-6]\d\d\n$`)
	if !want.Match(called) {
		p.Errorf("ray is called with %q, want %s", called, want)
	}
}
