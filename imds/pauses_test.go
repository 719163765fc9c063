package imds

import (
	"testing"

	"spot-handler/e2e/figures"
)

func TestPausesOfManual(t *testing.T) {
	figures.Pauses(t, "a notice stays in memory and is tried again every %g to %g s;", acceptPauses())
}
