package release

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// As long as there is no release, the pages that speak of one say so. Once there is, they must not.
func TestPagesSayWhetherThereIsARelease(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "git", "tag", "--list", "v*")
	cmd.Dir = checkout(t)
	tags, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	none := len(tags) == 0
	for page, sentence := range map[string]string{
		"README.md":                 "There is no release yet",
		"deploy/docs/commands.md":   "There is no release yet",
		"deploy/docs/install-on.md": "There is no release yet",
		".github/SECURITY.md":       "There is no release yet",
		"deploy/docs/supported.md":  "As long as there is no release, that is commit `" + firstVersion(t) + "`",
	} {
		text := strings.Join(strings.Fields(string(read(t, filepath.Join(checkout(t), filepath.FromSlash(page))))), " ")
		if strings.Contains(text, sentence) != none {
			t.Errorf("%s says %q: %t; tags: %q", page, sentence, !none, tags)
		}
	}
}

// firstVersion is the commit that upgrades are tested from as long as there is no release, abbreviated.
func firstVersion(t *testing.T) string {
	found := regexp.MustCompile(`const firstVersion = "([0-9a-f]{7})`).FindSubmatch(read(t, filepath.Join(checkout(t), "e2e", "stories", "older_test.go")))
	if found == nil {
		t.Fatal("older_test.go has no firstVersion")
	}
	return string(found[1])
}

// .ci/run reads there which commit it has to have for the test of upgrades: if it found none, that
// test would be skipped for ever, as on a clone without history.
func TestCIFindsTheVersionToUpgradeFrom(t *testing.T) {
	script := regexp.MustCompile(`(?m)^older=.*$`).Find(read(t, filepath.Join(checkout(t), ".ci", "run")))
	find := exec.Command("bash", "-c", string(script)+`; printf %s "$older"`)
	find.Dir = checkout(t)
	found, err := find.Output()
	if want := firstVersion(t); err != nil || !strings.HasPrefix(string(found), want) || len(found) != 40 {
		t.Errorf(".ci/run finds %q, %v, want the whole of %s", found, err, want)
	}
}
