package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Notes of versions in a repository that has nothing but commits and tags.
func TestNotes(t *testing.T) {
	dir, script := t.TempDir(), filepath.Join(checkout(t), ".github", "release-notes")
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	commit := func(subject string) {
		t.Helper()
		run("git", "commit", "--allow-empty", "-m", subject, "-m", "a body that nobody wants here")
	}
	run("git", "init", "--quiet")
	commit("drain: evict")
	run("git", "tag", "v1.0.0")
	commit("queue: read: and write")
	commit("Say what the daemon does")
	commit("drain: hold")
	run("git", "tag", "v1.1.0-rc.1")
	commit("drain: surge")
	run("git", "tag", "v1.1.0")
	commit("README: mention it")

	hash := regexp.MustCompile(`\([0-9a-f]{7,}\)`)
	for version, want := range map[string]string{
		"v1.0.0": "## v1.0.0\n\n### drain\n\n- evict (hash)\n\n",
		// All that has come since the last release, though a candidate had most of it.
		"v1.1.0": "## v1.1.0\n\nChanges since v1.0.0.\n\n### queue\n\n- read: and write (hash)\n\n" +
			"### drain\n\n- hold (hash)\n- surge (hash)\n\n### others\n\n- Say what the daemon does (hash)\n\n",
		"v1.1.0-rc.1": "## v1.1.0-rc.1\n\nChanges since v1.0.0.\n\n### queue\n\n- read: and write (hash)\n\n" +
			"### drain\n\n- hold (hash)\n\n### others\n\n- Say what the daemon does (hash)\n\n",
		// Not tagged yet.
		"v1.2.0": "## v1.2.0\n\nChanges since v1.1.0.\n\n### README\n\n- mention it (hash)\n\n",
	} {
		if diff := cmp.Diff(want, hash.ReplaceAllString(run(script, version), "(hash)")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", version, diff)
		}
	}
}
