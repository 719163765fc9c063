package provisioner

import "testing"

func TestConstraint(t *testing.T) {
	type requirement struct {
		operator string
		values   []string
	}
	type list = []requirement
	on := func(operator string, values ...string) requirement { return requirement{operator, values} }
	for name, tt := range map[string]struct {
		list      list
		preferred string
		want      string
		picked    bool
	}{
		"no requirement":              {nil, "", "", false},
		"no requirement, preferred":   {nil, "x", "x", true},
		"in":                          {list{on("In", "b", "a")}, "", "a", true},
		"in, preferred":               {list{on("In", "a", "b")}, "b", "b", true},
		"in, preferred not allowed":   {list{on("In", "a", "b")}, "c", "a", true},
		"in and in":                   {list{on("In", "a", "b"), on("In", "b", "c")}, "a", "b", true},
		"in and not in":               {list{on("In", "a", "b"), on("NotIn", "a")}, "a", "b", true},
		"contradiction":               {list{on("In", "a"), on("In", "b")}, "a", "", false},
		"in of nothing":               {list{on("In")}, "a", "", false},
		"in of nothing, then of more": {list{on("In"), on("In", "a")}, "a", "", false},
		"exists":                      {list{on("Exists")}, "", "0", true},
		"exists, preferred":           {list{on("Exists")}, "x", "x", true},
		"exists and not in":           {list{on("Exists"), on("NotIn", "0", "1")}, "1", "2", true},
		"not in needs no label":       {list{on("NotIn", "a")}, "a", "", false},
		"does not exist":              {list{on("DoesNotExist")}, "a", "", false},
		"exists and does not":         {list{on("Exists"), on("DoesNotExist")}, "", "", false},
		"greater":                     {list{on("Gt", "3")}, "3", "4", true},
		"greater, preferred":          {list{on("Gt", "3")}, "7", "7", true},
		"greater, preferred no number": {
			list{on("Gt", "3")}, "many", "4", true},
		"of two digits":    {list{on("Gt", "15")}, "", "16", true},
		"at least":         {list{on("Gte", "3")}, "", "3", true},
		"less":             {list{on("Lt", "3")}, "9", "0", true},
		"less than zero":   {list{on("Lte", "-3")}, "", "-3", true},
		"between":          {list{on("Gt", "3"), on("Lt", "6"), on("NotIn", "4")}, "", "5", true},
		"empty range":      {list{on("Gt", "3"), on("Lt", "4")}, "", "", false},
		"tightest bounds":  {list{on("Gt", "3"), on("Gt", "5"), on("Lt", "9"), on("Lt", "7")}, "4", "6", true},
		"unreadable bound": {list{on("Gt", "many")}, "x", "x", true},
		"unknown operator": {list{on("Near", "x")}, "y", "y", true},
	} {
		t.Run(name, func(t *testing.T) {
			var c Constraint
			for _, r := range tt.list {
				c.Require(r.operator, r.values)
			}
			got, picked := c.Pick(tt.preferred)
			if got != tt.want || picked != tt.picked {
				t.Errorf("pick(%q) = %q, %t; want %q, %t", tt.preferred, got, picked, tt.want, tt.picked)
			}
		})
	}
}

// constraint is what these requirements allow, each an operator with its values.
func constraint(list ...[]string) (c Constraint) {
	for _, r := range list {
		c.Require(r[0], r[1:])
	}
	return c
}

func TestPossible(t *testing.T) {
	for name, tt := range map[string]struct {
		of   Constraint
		want bool
	}{
		"no requirement":        {constraint(), true},
		"absent":                {constraint([]string{"DoesNotExist"}), true},
		"there and absent":      {constraint([]string{"Exists"}, []string{"DoesNotExist"}), false},
		"one value":             {constraint([]string{"In", "a"}), true},
		"no value":              {constraint([]string{"In", "a"}, []string{"NotIn", "a"}), false},
		"a value out of bounds": {constraint([]string{"In", "3"}, []string{"Gt", "3"}), false},
		"a lower bound":         {constraint([]string{"Gt", "3"}), true},
		"an upper bound":        {constraint([]string{"Lt", "3"}), true},
		"a range of one":        {constraint([]string{"Gte", "3"}, []string{"Lte", "3"}), true},
		"an empty range":        {constraint([]string{"Gt", "3"}, []string{"Lt", "4"}), false},
	} {
		if got := tt.of.Possible(); got != tt.want {
			t.Errorf("%s: possible %t", name, got)
		}
	}
}

func TestCovers(t *testing.T) {
	ab := constraint([]string{"In", "a", "b"})
	for name, tt := range map[string]struct {
		of, other Constraint
		want      bool
	}{
		"all values":          {constraint(), ab, true},
		"the same":            {ab, ab, true},
		"fewer":               {constraint([]string{"In", "a"}), ab, false},
		"what is excluded":    {constraint([]string{"In", "a"}), constraint([]string{"In", "a", "b"}, []string{"NotIn", "b"}), true},
		"values without name": {ab, constraint([]string{"Exists"}), false},
		"nothing names none":  {constraint(), constraint(), false},
		"absent":              {constraint([]string{"DoesNotExist"}), constraint([]string{"In"}), false},
	} {
		if got := tt.of.Covers(tt.other); got != tt.want {
			t.Errorf("%s: covers %t", name, got)
		}
	}
}
