package webhook

import (
	"testing"

	"spot-handler/e2e/figures"
)

func TestPausesOfManual(t *testing.T) {
	figures.Pauses(t, "tried again every %g to %g s, or as its `Retry-After` says", pauses())
}
