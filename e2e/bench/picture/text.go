package picture

import "strings"

// textWidth is how wide a text is at the most: nobody knows the reader's font, so it is
// that of a wide one.
func textWidth(s string, size float64) (w float64) {
	for _, r := range s {
		switch {
		case strings.ContainsRune("iljtfrI.,:;'|!()[] ", r):
			w += 0.36
		case strings.ContainsRune("mwMW%—", r):
			w += 0.92
		case r >= 'A' && r <= 'Z':
			w += 0.70
		default:
			w += 0.59
		}
	}
	return w * size
}

// boldWidth is the same for bold text.
func boldWidth(s string, size float64) float64 { return 1.08 * textWidth(s, size) }
