package managed

import "testing"

func TestParseTag(t *testing.T) {
	for text, want := range map[string]Tag{
		"":                         {},
		"spot-handler/managed":     {Key: "spot-handler/managed"},
		"aws:eks:cluster-name=a=b": {Key: "aws:eks:cluster-name", Value: "a=b", Exact: true},
		"k=":                       {Key: "k", Exact: true},
	} {
		got, err := ParseTag(text)
		if got != want || err != nil || got.String() != text {
			t.Errorf("%q: %+v (%s), %v", text, got, got, err)
		}
	}
	for _, text := range []string{"=v", " k", "k= v"} {
		if _, err := ParseTag(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
