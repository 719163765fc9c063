package provisioner

import (
	"slices"
	"strconv"
)

// Constraint is what all requirements on one label key allow together. The zero value allows all.
type Constraint struct {
	In       []string // nil: any value
	NotIn    []string
	Exists   bool   // the label must be there
	absent   bool   // the label must not be there
	min, max *int64 // inclusive; values must be integers where one is set
}

// Require adds a requirement, with an operator of Kubernetes or Karpenter. One that makes no sense,
// such as the bound "many", constrains nothing: the API server or Karpenter's own validation refuses it.
func (c *Constraint) Require(operator string, values []string) {
	switch operator {
	case "In":
		c.Exists = true
		if c.In == nil {
			c.In = append([]string{}, values...)
		}
		c.In = slices.DeleteFunc(c.In, func(v string) bool { return !slices.Contains(values, v) })
	case "NotIn":
		c.NotIn = append(c.NotIn, values...)
	case "Exists":
		c.Exists = true
	case "DoesNotExist":
		c.absent = true
	case "Gt", "Gte", "Lt", "Lte":
		c.Exists = true
		c.bound(operator, values)
	}
}

func (c *Constraint) bound(operator string, values []string) {
	if len(values) != 1 {
		return
	}
	// 32 bits are plenty, and leave room for the off-by-one below.
	n, err := strconv.ParseInt(values[0], 10, 32)
	if err != nil {
		return
	}
	switch operator {
	case "Gt":
		n++
	case "Lt":
		n--
	}
	switch operator {
	case "Gt", "Gte":
		if c.min == nil || n > *c.min {
			c.min = &n
		}
	case "Lt", "Lte":
		if c.max == nil || n < *c.max {
			c.max = &n
		}
	}
}

// Allows reports whether the label may have the value.
func (c Constraint) Allows(value string) bool {
	if c.absent || slices.Contains(c.NotIn, value) || (c.In != nil && !slices.Contains(c.In, value)) {
		return false
	}
	if c.min == nil && c.max == nil {
		return true
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return err == nil && (c.min == nil || n >= *c.min) && (c.max == nil || n <= *c.max)
}

// Possible reports whether a node can satisfy the requirements at all.
func (c Constraint) Possible() bool {
	switch {
	case c.absent:
		return !c.Exists
	case c.In != nil:
		return slices.ContainsFunc(c.In, c.Allows)
	case c.min != nil && c.max != nil:
		return *c.min <= *c.max
	}
	return true
}

// Pick is a value for the label: the preferred one if it is not empty and allowed, else the
// first that is allowed. It reports false if the label need not be there.
func (c Constraint) Pick(preferred string) (string, bool) {
	if preferred != "" && c.Allows(preferred) {
		return preferred, true
	}
	if !c.Exists || c.absent {
		return "", false
	}
	if c.In != nil {
		if named := c.Named(); len(named) > 0 {
			return named[0], true
		}
		return "", false
	}
	first := int64(0)
	switch {
	case c.min != nil:
		first = *c.min
	case c.max != nil:
		first = min(0, *c.max)
	}
	// Each excluded value can get in the way only once.
	for n := first; n <= first+int64(len(c.NotIn)); n++ {
		if v := strconv.FormatInt(n, 10); c.Allows(v) {
			return v, true
		}
	}
	return "", false
}

// Named are the values that it names and allows; none if it names none.
func (c Constraint) Named() (values []string) {
	for _, v := range slices.Sorted(slices.Values(c.In)) {
		if c.Allows(v) {
			values = append(values, v)
		}
	}
	return values
}

// Covers reports whether c allows every value that other allows. It says no if it cannot
// tell.
func (c Constraint) Covers(other Constraint) bool {
	return !c.absent && other.In != nil &&
		!slices.ContainsFunc(other.In, func(v string) bool { return other.Allows(v) && !c.Allows(v) })
}
