// Package figures compares the figures of the manual with those of the code.
package figures

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"

	"spot-handler/e2e/internal/assets"
)

// Pauses fails the test unless failures.md has the sentence, in which two %g stand for the shortest first
// pause and the longest pause, in seconds, random part included.
func Pauses(t testing.TB, sentence string, p *backoff.ExponentialBackOff) {
	t.Helper()
	root, err := assets.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "deploy", "docs", "failures.md"))
	if err != nil {
		t.Fatal(err)
	}
	shortest := inSeconds(p.InitialInterval, 1-p.RandomizationFactor)
	longest := inSeconds(p.MaxInterval, 1+p.RandomizationFactor)
	if want := fmt.Sprintf(sentence, shortest, longest); !strings.Contains(string(page), want) {
		t.Errorf("failures.md lacks %q", want)
	}
}

// inSeconds is the share of d, to a tenth of a second.
func inSeconds(d time.Duration, share float64) float64 {
	return math.Round(10*d.Seconds()*share) / 10
}
