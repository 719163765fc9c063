package manual

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// chapters are the pages that are played before all others, in this order: what they set up, the
// others take for granted. The last one uninstalls.
var (
	chapters = []string{
		"README.md", "deploy/docs/install.md", "deploy/aws.md", "deploy/docs/interruptions.md",
		"deploy/docs/replacement.md", "deploy/docs/rehearse.md", "deploy/docs/workloads.md",
	}
	lastChapter = "deploy/docs/supported.md"
)

// play is a page that is being played.
type play struct {
	*scene
	shell *shell
	list  *list
	text  string // of the block
}

// The whole manual: see the package comment.
func TestManual(t *testing.T) {
	s := setUp(t)
	pages, err := pagesOf(s.root)
	s.must(err)
	slices.SortStableFunc(pages, func(a, b string) int { return place(a) - place(b) })
	l := newList()
	kinds := map[string]int{}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(page)))
		s.must(err)
		blocks, err := blocksOf(page, string(text))
		s.must(err)
		p := &play{scene: s, shell: s.first, list: l}
		if page != chapters[0] { // whose reader is in the checkout now, and has the program
			p.shell, err = s.first.another(filepath.Join(s.mkdir("pages"), strings.ReplaceAll(page, "/", "-")))
			s.must(err)
		}
		for _, b := range blocks {
			kinds[b.kind]++
			played := t.Run(fmt.Sprintf("%s:%d", strings.ReplaceAll(page, "/", "|"), b.line), func(t *testing.T) {
				s.T = t
				defer func() { s.T = s.whole }()
				p.block(b)
			})
			if !played && page == chapters[0] {
				t.Fatalf("without %s, nothing else can be played", page)
			}
		}
	}
	t.Logf("played %d pages with blocks of %v", len(pages), kinds)
	for _, unused := range l.unused() {
		t.Errorf("no block begins as the list says: %s", unused)
	}
	for _, name := range slices.Sorted(maps.Keys(standIns)) {
		if !s.called(name + " ") {
			t.Errorf("no block calls %s any more, for which something stands in", name)
		}
	}
}

// place is where a page comes among all.
func place(page string) int {
	if page == lastChapter {
		return len(chapters) + 1
	}
	if i := slices.Index(chapters, page); i >= 0 {
		return i
	}
	return len(chapters)
}

// block plays one block.
func (p *play) block(b block) {
	p.Helper()
	if b.kind == "sh" {
		commands, err := commandsOf(b.text)
		p.must(err)
		for _, command := range commands {
			p.command(p.list.entry(b.page, command), command)
		}
		return
	}
	e := p.list.entry(b.page, b.text)
	reads := readers[b.kind]
	if e.why != "" {
		p.Logf("not played, or only read: %s", e.why)
	}
	if reads == nil {
		if e.why == "" {
			p.Errorf("nothing here reads a block of kind %q: play it, or say in the list why it cannot be played\n%s", b.kind, b.text)
		}
		return
	}
	if e.before != nil {
		e.before(p)
	}
	p.text = b.text
	reads(p, e, b)
	if e.after != nil && !p.Failed() {
		e.after(p)
	}
}

// command runs one command as the list says, or as it is.
func (p *play) command(e *entry, command string) {
	p.Helper()
	if e.before != nil {
		e.before(p)
	}
	run := p.fill(strings.NewReplacer(e.instead...).Replace(command))
	if len(e.instead) > 0 && run == command {
		p.Errorf("what the list puts into its place is not there: %q", command)
	}
	if e.given != "" {
		if said, code, err := p.shell.run(p.Context(), p.fill(e.given), nil); code != 0 || err != nil {
			p.Fatalf("%q: exit code %d, %v\n%s", e.given, code, err, said)
		}
	}
	var until *regexp.Regexp
	if e.until != "" {
		until = regexp.MustCompile(e.until)
	}
	if e.watching != nil {
		watches := false
		p.shell.heard = func(said string) {
			if !watches && strings.Contains(said, "watching") {
				watches = true
				e.watching(p)
			}
		}
		defer func() { p.shell.heard = nil }()
	}
	began := time.Now()
	said, code, err := p.shell.run(p.Context(), run, until)
	p.Logf("$ %s  # %.1f s\n%s", run, time.Since(began).Seconds(), said)
	switch {
	case err != nil:
		p.Fatalf("%q: %v\n%s", run, err, said)
	case until == nil && code != e.code:
		p.Fatalf("%q ends with code %d, want %d\n%s", run, code, e.code, said)
	case e.prints != "" && !regexp.MustCompile(e.prints).MatchString(said):
		p.Fatalf("%q does not print %q\n%s", run, e.prints, said)
	}
	if e.after != nil {
		e.after(p)
	}
}

// word is one in capitals: a variable's, or one that the reader fills in.
var word = regexp.MustCompile(`\$?\b[A-Z][A-Z_]*\b=?`)

// fill fills in what the reader of the manual fills in.
func (p *play) fill(command string) string {
	return word.ReplaceAllStringFunc(command, func(name string) string {
		if filled := words[name]; filled != nil {
			return filled(p)
		}
		return name
	})
}

// A reason may name the test that plays the block, or a part of it.
func TestReasonsNameTests(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "git", "grep", "-hoE", `^func Test[A-Za-z0-9]+\(`, "--", "../../*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, e := range entries {
		for _, test := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(e.why, -1) {
			named++
			if !strings.Contains(string(out), "func "+test+"(") {
				t.Errorf("%s: there is no %s", e.page, test)
			}
		}
	}
	if named == 0 {
		t.Error("no reason names a test")
	}
}
