package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// pages are the documents of the repository, by their paths from its root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	root := filepath.Join("..", "..")
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", ".github/*.md", ".github/*/*.md", "deploy/*.md", "deploy/docs/*.md", "e2e/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			texts[filepath.ToSlash(name)] = string(text)
		}
	}
	if len(texts) < 10 {
		t.Fatalf("found the documents %q only", slices.Sorted(maps.Keys(texts)))
	}
	return texts
}

// sectionOf is the text below a heading, up to the next heading of any level. Exactly one page
// has to have that heading.
func sectionOf(t *testing.T, heading string) string {
	t.Helper()
	var found []string
	section := ""
	for name, text := range pages(t) {
		if _, rest, ok := strings.Cut("\n"+text, "\n"+heading+"\n"); ok {
			found = append(found, name)
			section, _, _ = strings.Cut(rest, "\n#")
		}
	}
	if len(found) != 1 {
		t.Fatalf("the heading %q is in the pages %q, want one", heading, found)
	}
	return section
}

// Nobody reads a long front page before an install.
func TestFrontPageIsShort(t *testing.T) {
	if lines := strings.Count(pages(t)["README.md"], "\n"); lines > 250 {
		t.Errorf("README.md has %d lines, want at most 250: the rest belongs in deploy/docs", lines)
	}
}

// Prose is wrapped, so a diff shows the sentence that changed. Tables, blocks of code and links
// cannot be wrapped; comments of a template are for whoever fills it in.
func TestProseIsWrapped(t *testing.T) {
	for name, text := range pages(t) {
		for line := range strings.Lines(prose(text)) {
			line = strings.TrimRight(line, "\n")
			unbreakable := strings.HasPrefix(line, "|") || strings.HasPrefix(line, "<!--") || strings.Contains(line, "](") || strings.Contains(line, "://")
			if n := utf8.RuneCountInString(line); n > 100 && !unbreakable {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
	}
}

// Every link of the documents to a file or a heading of theirs leads there.
func TestLinksOfPages(t *testing.T) {
	root := filepath.Join("..", "..")
	links := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	found := 0
	for name, text := range pages(t) {
		for _, link := range links.FindAllStringSubmatch(prose(text), -1) {
			if strings.Contains(link[1], "://") || strings.HasPrefix(link[1], "mailto:") {
				continue
			}
			found++
			path, anchor, _ := strings.Cut(link[1], "#")
			file := filepath.Join(root, name)
			if path != "" {
				file = filepath.Join(root, filepath.Dir(name), path)
			}
			content, err := os.ReadFile(file)
			if err != nil {
				t.Errorf("%s: %s: %v", name, link[1], err)
			} else if anchor != "" && !headings(string(content))[anchor] {
				t.Errorf("%s: %s: no such heading", name, link[1])
			}
		}
	}
	if found < 50 {
		t.Errorf("found %d links only", found)
	}
}

// Every page of the manual can be reached from the front page.
func TestPagesAreLinkedFromTheFrontPage(t *testing.T) {
	texts := pages(t)
	for name := range texts {
		if strings.HasPrefix(name, "deploy/") && !strings.Contains(texts["README.md"], "]("+name) {
			t.Errorf("README.md does not link to %s", name)
		}
	}
}

// Where things are is what a newcomer asks first: the list names the directories, and no more.
func TestLayoutOfManual(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	var want, named []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains([]string{"bin", "dist"}, e.Name()) {
			want = append(want, e.Name()+"/")
		}
	}
	_, block, _ := strings.Cut(sectionOf(t, "## Layout"), "```\n")
	block, _, _ = strings.Cut(block, "```")
	for line := range strings.Lines(block) {
		named = append(named, strings.Fields(line)[0])
	}
	slices.Sort(named)
	if diff := cmp.Diff(want, named); diff != "" {
		t.Errorf("(-directories +manual):\n%s", diff)
	}
}

// prose is a document without its blocks of code.
func prose(text string) string {
	var b strings.Builder
	for i, part := range strings.Split("\n"+text, "\n```") {
		if i%2 == 0 {
			b.WriteString(part + "\n")
		}
	}
	return b.String()
}

// headings are the anchors of a document, as GitHub makes them, and those of rows of tables.
func headings(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(prose(text), -1) {
		anchor := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		anchors[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	for _, row := range regexp.MustCompile(`(?m)^\| <a id="([a-z0-9]+)"></a>`).FindAllStringSubmatch(text, -1) {
		anchors[row[1]] = true
	}
	return anchors
}
