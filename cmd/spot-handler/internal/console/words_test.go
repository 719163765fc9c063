package console

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 pods", 1: "1 pod", 2: "2 pods", -1: "-1 pods"} {
		if got := Count(n, "pod"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What is left out is counted, and the list itself stays whole.
func TestSome(t *testing.T) {
	list := []string{"a", "b", "c"}
	for enough, want := range map[int][]string{0: {"3 more"}, 1: {"a", "2 more"}, 2: {"a", "b", "1 more"}, 3: {"a", "b", "c"}, 4: {"a", "b", "c"}} {
		if diff := cmp.Diff(want, Some(list, enough)); diff != "" {
			t.Errorf("%d (-want +got):\n%s", enough, diff)
		}
	}
	if !slices.Equal(list, []string{"a", "b", "c"}) {
		t.Errorf("the list has become %q", list)
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0:                              "0 s",
		599 * time.Second:              "599 s",
		-599 * time.Second:             "-599 s",
		10 * time.Minute:               "10 min",
		-10 * time.Minute:              "-10 min",
		2*time.Hour - time.Minute:      "119 min",
		2 * time.Hour:                  "2 h",
		47 * time.Hour:                 "47 h",
		48 * time.Hour:                 "2 d",
		-72 * time.Hour:                "-3 d",
		90*24*time.Hour + 13*time.Hour: "91 d",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%s: %q, want %q", time.Duration.String(d), got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	const text = "  one two\nthree  four "
	for width, want := range map[int][]string{
		0:  {"> one two three four"},
		20: {"> one two three four"},
		19: {"> one two three", "> four"},
		9:  {"> one two", "> three", "> four"},
		8:  {"> one", "> two", "> three", "> four"},
		1:  {"> one", "> two", "> three", "> four"},
	} {
		if diff := cmp.Diff(want, Wrap(text, "> ", width)); diff != "" {
			t.Errorf("%d columns (-want +got):\n%s", width, diff)
		}
	}
}

func TestRows(t *testing.T) {
	got := Rows([]string{"a", "b"}, func(s string) []Cell { return []Cell{{Text: s}, {Text: s + s}} })
	if diff := cmp.Diff([][]Cell{{{Text: "a"}, {Text: "aa"}}, {{Text: "b"}, {Text: "bb"}}}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
