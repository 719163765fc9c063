package offerings

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// each is every type in every zone.
func each(types, zones []string) (all []Offering) {
	for _, t := range types {
		for _, z := range zones {
			all = append(all, Offering{t, z})
		}
	}
	return all
}

func TestCalmOf(t *testing.T) {
	three := each([]string{"a", "b", "c"}, []string{"1", "2", "3"})
	for name, tt := range map[string]struct {
		of, lost []Offering
		open     bool
		want     Calm
		none     bool
	}{
		"nothing was lost":              {of: three, want: Calm{Left: 9}},
		"nothing is known":              {want: Calm{}},
		"one is left out with its type": {of: three, lost: []Offering{{"a", "1"}}, want: Calm{WithoutTypes: []string{"a"}, Left: 6}},
		"a zone":                        {of: three, lost: each([]string{"a", "b"}, []string{"1"}), want: Calm{WithoutZones: []string{"1"}, Left: 6}},
		"one in each zone and of each type": {
			of: three, lost: []Offering{{"a", "1"}, {"b", "2"}, {"c", "3"}},
			want: Calm{WithoutTypes: []string{"a"}, Zone: "1", Left: 2},
		},
		"all but one": {of: three, lost: three[:8], want: Calm{WithoutTypes: []string{"a", "b"}, Zone: "3", Left: 1}},
		"all":         {of: three, lost: three, none: true},
		"all that are known": {
			of: three, lost: three, open: true, want: Calm{WithoutTypes: []string{"a", "b", "c"}},
		},
	} {
		got, ok := CalmOf(tt.of, tt.lost, tt.open)
		if ok == tt.none || ok && !cmp.Equal(got, tt.want) {
			t.Errorf("%s: %+v, %t; want %+v", name, got, ok, tt.want)
		}
		for _, o := range tt.lost {
			if ok && got.allows(o) {
				t.Errorf("%s: %+v allows %v, which was lost", name, got, o)
			}
		}
	}
}
