package picture

import (
	"fmt"
	"math"
	"testing"
)

// TestColoursAreReadable holds the colours to the contrast that text needs.
// https://www.w3.org/TR/WCAG22/#contrast-minimum
func TestColoursAreReadable(t *testing.T) {
	for _, c := range []Colour{ink, muted, Vermilion, Yellow, Blue, Green, Grey} {
		for scheme, pair := range map[string][2]string{"light": {c.Light, page.Light}, "dark": {c.Dark, page.Dark}} {
			if got := contrast(t, pair[0], pair[1]); got < 4.5 {
				t.Errorf("%s has a contrast of %.1f on a %s page, want 4.5", pair[0], got, scheme)
			}
		}
	}
}

// contrast is the ratio of the relative luminances.
func contrast(t *testing.T, a, b string) float64 {
	t.Helper()
	x, y := luminance(t, a), luminance(t, b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func luminance(t *testing.T, hex string) (l float64) {
	t.Helper()
	var r, g, b uint8
	if _, err := fmt.Sscanf(hex, "#%02x%02x%02x", &r, &g, &b); err != nil {
		t.Fatalf("%q is no colour: %v", hex, err)
	}
	for i, v := range []uint8{r, g, b} {
		c := float64(v) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		l += []float64{0.2126, 0.7152, 0.0722}[i] * c
	}
	return l
}
