package manual

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of a page.
type block struct {
	page string // by its path from the root of the checkout
	line int    // of the opening fence
	kind string // what the fence says: sh, yaml, …; console if the first line has a prompt
	text string
}

// fence opens or closes a block, also one within a list.
var fence = regexp.MustCompile("^( *)```(\\w*)$")

// prompt is what a command has before it in a block that also shows what it prints.
const prompt = "$ "

// blocksOf are the blocks of a page, in their order.
func blocksOf(page, text string) ([]block, error) {
	var found []block
	var open *block
	indent := ""
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case m == nil && open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		case m != nil && open == nil:
			open, indent = &block{page: page, line: i + 1, kind: m[2]}, m[1]
		case m != nil && m[2] != "":
			return nil, fmt.Errorf("%s:%d: a block opens within the one of line %d", page, i+1, open.line)
		case m != nil:
			if open.kind == "" && strings.HasPrefix(open.text, prompt) {
				open.kind = "console"
			}
			found, open = append(found, *open), nil
		case strings.HasPrefix(strings.TrimSpace(line), "```"), strings.HasPrefix(strings.TrimSpace(line), "~~~"):
			return nil, fmt.Errorf("%s:%d: %q is no fence of the manual's", page, i+1, line)
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s:%d: the block does not end", page, open.line)
	}
	return found, nil
}

// commandsOf takes a shell block apart. Bash says where a command is complete.
func commandsOf(text string) ([]string, error) {
	var found []string
	pending := ""
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		if pending == "" && (strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#")) {
			continue
		}
		pending += line + "\n"
		if strings.HasSuffix(line, "\\") {
			continue
		}
		// What it says is about a document or a quote that does not end.
		if out, err := exec.Command("bash", "-n", "-c", pending).CombinedOutput(); err == nil && len(out) == 0 {
			found, pending = append(found, strings.TrimSuffix(pending, "\n")), ""
		}
	}
	if pending != "" {
		return nil, fmt.Errorf("bash cannot read %q", pending)
	}
	return found, nil
}

// patterns are where the documents are.
var patterns = []string{
	"*.md", ".github/*.md", ".github/*/*.md", "deploy/*.md", "deploy/*/*.md", "deploy/*/*/*.md", "e2e/*.md", "e2e/*/*.md",
}

// pagesOf are the documents of a checkout, by their paths from its root.
func pagesOf(root string) ([]string, error) {
	var found []string
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, fmt.Errorf("find the documents: %w", err)
		}
		for _, file := range files {
			name, err := filepath.Rel(root, file)
			if err != nil {
				return nil, fmt.Errorf("find the documents: %w", err)
			}
			found = append(found, filepath.ToSlash(name))
		}
	}
	return found, nil
}

func TestBlocks(t *testing.T) {
	found, err := blocksOf("page.md", "Text.\n\n```sh\na\n```\n\n- Item:\n  ```yaml\n  b:\n    c: 1\n  ```\n\n```\n$ d\nE F\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []block{
		{"page.md", 3, "sh", "a\n"},
		{"page.md", 8, "yaml", "b:\n  c: 1\n"},
		{"page.md", 13, "console", "$ d\nE F\n"},
	}
	if len(found) != len(want) {
		t.Fatalf("blocks %+v, want %+v", found, want)
	}
	for i := range want {
		if found[i] != want[i] {
			t.Errorf("block %+v, want %+v", found[i], want[i])
		}
	}
	for _, wrong := range []string{"```sh\na\n", "```sh\na\n```sh\nb\n```\n", "````\na\n````\n", "~~~\na\n~~~\n"} {
		if found, err := blocksOf("page.md", wrong); err == nil {
			t.Errorf("%q: no error, and %v", wrong, found)
		}
	}
}

func TestCommands(t *testing.T) {
	found, err := commandsOf("# why\na=1 # one\n\nb --c \\\n  --d\ne '{\n  f }'\nwhile g ||\n  h; do i; done\nj=(k\n  l)\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a=1 # one", "b --c \\\n  --d", "e '{\n  f }'", "while g ||\n  h; do i; done", "j=(k\n  l)"}
	if !slices.Equal(found, want) {
		t.Errorf("commands %q, want %q", found, want)
	}
	for _, wrong := range []string{"a 'b\n", "a |\n", "if a; then\n", "a )\n", "a <<EOF\nb\n"} {
		if found, err := commandsOf(wrong); err == nil {
			t.Errorf("%q: no error, and %v", wrong, found)
		}
	}
}
