package lifecycle

import (
	"testing"

	"spot-handler/e2e/figures"
)

func TestPausesOfManual(t *testing.T) {
	figures.Pauses(t, "tried again every %g to %g s until its timeout", pauses())
}
