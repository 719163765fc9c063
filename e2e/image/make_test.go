package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// `make image` asks for what was meant: buildah gives a tag to the last of several platforms
// only, and adds to a list that is there already.
func TestMakeImage(t *testing.T) {
	for platform, want := range map[string][]string{
		"linux/arm64":             {"build", "--platform linux/arm64", "-t registry.example.com/a:v1 ."},
		"linux/amd64,linux/arm64": {"rmi registry.example.com/a:v1", "--platform linux/amd64,linux/arm64", "--manifest registry.example.com/a:v1 ."},
	} {
		dir := t.TempDir()
		calls := filepath.Join(dir, "calls")
		if err := os.WriteFile(filepath.Join(dir, "buildah"), []byte("#!/bin/sh\necho \"$@\" >> "+calls+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "make", "-C", filepath.Join("..", ".."), "image", "IMAGE=registry.example.com/a:v1", "PLATFORM="+platform)
		cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"), "MAKEFLAGS=", "MAKELEVEL=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make image: %v\n%s", err, out)
		}
		got, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(string(got), part) {
				t.Errorf("%s: no %q in the calls\n%s", platform, part, got)
			}
		}
		if !strings.Contains(platform, ",") && strings.Contains(string(got), "rmi") {
			t.Errorf("%s: removes an image:\n%s", platform, got)
		}
	}
}
