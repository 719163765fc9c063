package imds

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// The manual says how soon, and how late, something is tried again, random part included.
func TestPausesOfManual(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "deploy", "docs", "failures.md"))
	if err != nil {
		t.Fatal(err)
	}
	seconds := func(d time.Duration, share float64) float64 { return math.Round(10*d.Seconds()*share) / 10 }
	for sentence, p := range map[string]*backoff.ExponentialBackOff{
		"a notice stays in memory and is tried again every %g to %g s;": acceptPauses(),
	} {
		want := fmt.Sprintf(sentence, seconds(p.InitialInterval, 1-p.RandomizationFactor), seconds(p.MaxInterval, 1+p.RandomizationFactor))
		if !strings.Contains(string(page), want) {
			t.Errorf("failures.md lacks %q", want)
		}
	}
}
