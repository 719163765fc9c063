package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const source = `package x

func f(a, b int, ok bool) (n int) {
	if a < b && ok {
		n = 1
	}
	defer g()
	log.Info().Msg("text")
	for i := range a {
		switch {
		case ok:
			continue
		}
		n += i * 2
	}
	return n
}
`

func TestMutantsOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.go")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := mutantsOf(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range all {
		got = append(got, strings.TrimPrefix(m.String(), file+":"))
		changed := string(m.source())
		if changed == source || len(changed)-len(m.instead) != len(source)-(m.end-m.start) {
			t.Errorf("%s makes\n%s", m, changed)
		}
	}
	want := []string{
		"7  defer g()  →  ",
		"4  a < b && ok  →  !(a < b && ok)",
		"4  &&  →  ||",
		"4  <  →  <=",
		"5  n = 1  →  ",
		"5  1  →  (1 + 1)",
		"14  n += i * 2  →  ",
		"12  continue  →  ",
		"14  *  →  /",
		"14  2  →  (2 + 1)",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What the go command is told stands for the file wherever it is run.
func TestOverlay(t *testing.T) {
	dir := t.TempDir()
	m := mutant{file: "main.go", was: []byte("package x"), start: 8, end: 9, instead: "y"}
	name, err := m.overlay(dir)
	if err != nil {
		t.Fatal(err)
	}
	told, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	original, _ := filepath.Abs("main.go")
	if want := `{"Replace":{"` + original + `":"` + filepath.Join(dir, "main.go") + `"}}`; string(told) != want {
		t.Errorf("%s, want %s", told, want)
	}
	if changed, err := os.ReadFile(filepath.Join(dir, "main.go")); err != nil || string(changed) != "package y" {
		t.Errorf("%q, %v", changed, err)
	}
}
