package stories

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"spot-handler/e2e/internal/assets"
)

// firstVersion stands in for the last release as long as there is none: it is from before upgrades were tested.
const firstVersion = "f43d609ae6b10ec37e82ef8fa75dccc4cf55165d"

// olderVersion is a version from the repository's history, for tests of what two versions do beside each other.
type olderVersion struct {
	Version string
	Chart   string // directory
	Binary  string
}

// buildOlder builds the last release before this commit, once per machine. It needs git, and the history.
func buildOlder() (olderVersion, error) {
	checkout, err := assets.Checkout()
	if err != nil {
		return olderVersion{}, err
	}
	git := func(env []string, args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = checkout, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("git %s: %w\n%s", args[0], err, out)
		}
		return strings.TrimSpace(string(out)), nil
	}
	// Without a tag that is an error.
	version, _ := git(nil, "describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
	version = cmp.Or(version, firstVersion)
	if _, err := git(nil, "merge-base", "--is-ancestor", version, "HEAD"); err != nil {
		return olderVersion{}, fmt.Errorf("the history of this clone lacks the version to upgrade from; git fetch --unshallow --tags gets it: %w", err)
	}
	commit, err := git(nil, "rev-parse", version+"^{commit}")
	if err != nil {
		return olderVersion{}, err
	}
	older := olderVersion{Version: "v0.0.0-" + commit[:12]}
	dir, err := assets.Cached(context.Background(), "older-"+commit[:12], func(dir string) error {
		index := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, ".index")}
		if _, err := git(index, "read-tree", commit); err != nil {
			return err
		}
		if _, err := git(index, "checkout-index", "--all", "--prefix="+dir+"/"); err != nil {
			return err
		}
		_, err := assets.Go(context.Background(), dir, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+older.Version, "-o", filepath.Join("bin", "spot-handler"), "./cmd/spot-handler")
		if err != nil {
			return fmt.Errorf("build version %s: %w", version, err)
		}
		return nil
	})
	older.Chart, older.Binary = filepath.Join(dir, "deploy", "chart"), filepath.Join(dir, "bin", "spot-handler")
	return older, err
}
