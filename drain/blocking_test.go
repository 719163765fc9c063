package drain

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMostBlocking(t *testing.T) {
	if diff := cmp.Diff(map[string]int{"": 0}, mostBlocking(map[string]int{})); diff != "" {
		t.Errorf("nothing blocks (-want +got):\n%s", diff)
	}
	few := map[string]int{"": 2, "shop/db": 3}
	if diff := cmp.Diff(maps.Clone(few), mostBlocking(few)); diff != "" {
		t.Errorf("few (-want +got):\n%s", diff)
	}
	// Whatever names budgets, there are not more than so many series, and no pod is
	// missing from their sum.
	many := map[string]int{"shop/db": 7}
	for i := range 1000 {
		many[fmt.Sprint("shop/", i)] = 1
	}
	got := mostBlocking(many)
	sum := 0
	for _, n := range got {
		sum += n
	}
	if len(got) != maxBudgets+2 || sum != 1007 || got["shop/db"] != 7 || got[otherBudgets] != 1001-maxBudgets {
		t.Errorf("%d series, %d pods, %d of other budgets, %d of shop/db", len(got), sum, got[otherBudgets], got["shop/db"])
	}
}
