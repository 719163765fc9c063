package turns

import "testing"

func TestConcurrency(t *testing.T) {
	for text, want := range map[string][3]int{ // of 0, 19 and 200 nodes
		"1": {1, 1, 1}, "7": {7, 7, 7}, "10%": {1, 1, 20}, "25%": {1, 4, 50}, "100%": {1, 19, 200},
	} {
		c, err := ParseConcurrency(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if got := [3]int{c.Limit(0), c.Limit(19), c.Limit(200)}; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "0%", "101%", "10 %", "+5", "05", "1.5", "%", "all", "10%%"} {
		if c, err := ParseConcurrency(text); err == nil {
			t.Errorf("%q is taken as %v", text, c)
		}
	}
}
