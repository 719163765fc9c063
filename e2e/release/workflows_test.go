package release

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A tag of somebody else's repository can be moved: actions are named by commit, with the
// version beside it. And whoever runs a workflow gets no more rights than it says.
func TestWorkflowsArePinned(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(checkout(t), ".github", "workflows", "*.yaml"))
	if err != nil || len(files) < 2 {
		t.Fatalf("workflows %v: %v", files, err)
	}
	uses := regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
	pinned := regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$|^\./`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range uses.FindAllStringSubmatch(string(text), -1) {
			if !pinned.MatchString(m[1]) {
				t.Errorf("%s: %s is not pinned", filepath.Base(file), m[1])
			}
		}
		if !strings.Contains(string(text), "\npermissions:") {
			t.Errorf("%s gives all rights: no permissions at its top", filepath.Base(file))
		}
	}
}
