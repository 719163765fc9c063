package notify

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The page for developers names every Event that a pod of theirs can have.
func TestEventsOfManual(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "deploy", "docs", "developers.md"))
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` on the pod \\|").FindAllSubmatch(page, -1) {
		named = append(named, string(row[1]))
	}
	slices.Sort(named)
	want := []string{ReasonMeaningless, ReasonEvictionBlocked, ReasonEvictionForced, ReasonPodLeft}
	slices.Sort(want)
	if diff := cmp.Diff(want, named); diff != "" {
		t.Errorf("Events on pods (-written +manual):\n%s", diff)
	}
	for _, reason := range []string{ReasonReplacementFailed, ReasonNoReplacement} {
		if !regexp.MustCompile("(?m)^\\|.*`" + reason + "`.* on the node \\|").Match(page) {
			t.Errorf("developers.md does not name %s", reason)
		}
	}
}
