package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every link of the documents to a file or a heading of theirs leads there.
func TestLinksOfDocuments(t *testing.T) {
	root := filepath.Join("..", "..")
	links := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	found := 0
	for _, name := range []string{"README.md", "deploy/aws.md", "deploy/runbook.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links.FindAllStringSubmatch(prose(string(text)), -1) {
			if strings.Contains(link[1], "://") {
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
	if found < 20 {
		t.Errorf("found %d links only", found)
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

// headings are the anchors of a document, as GitHub makes them.
func headings(text string) map[string]bool {
	anchors := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(prose(text), -1) {
		anchor := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		anchors[strings.ReplaceAll(anchor, " ", "-")] = true
	}
	return anchors
}
