// Package lacking ends tests that need a program which the machine might not have.
package lacking

import (
	"os"
	"testing"
)

// End skips the test, and says what is not tested and why. With CI set it fails: what CI does not
// test, nobody does.
func End(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}
