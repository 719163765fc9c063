package karpenter

import (
	"slices"
	"strconv"
)

// constraint is what all requirements on one label key allow together.
type constraint struct {
	in       []string // nil: any value
	notIn    []string
	min, max *int64 // inclusive; values must be integers where one is set
	exists   bool   // the label must be there
	absent   bool   // the label must not be there
}

// constraintOn joins the requirements on the key. One that makes no sense, such as the bound
// "many", constrains nothing: Karpenter's own validation refuses it.
func constraintOn(key string, requirements []requirement) constraint {
	c := constraint{}
	for _, r := range requirements {
		if r.Key != key {
			continue
		}
		switch r.Operator {
		case "In":
			c.exists = true
			if c.in == nil {
				c.in = append([]string{}, r.Values...)
			}
			c.in = slices.DeleteFunc(c.in, func(v string) bool { return !slices.Contains(r.Values, v) })
		case "NotIn":
			c.notIn = append(c.notIn, r.Values...)
		case "Exists":
			c.exists = true
		case "DoesNotExist":
			c.absent = true
		case "Gt", "Gte", "Lt", "Lte":
			c.exists = true
			c.bound(r)
		}
	}
	return c
}

func (c *constraint) bound(r requirement) {
	if len(r.Values) != 1 {
		return
	}
	// 32 bits are plenty, and leave room for the off-by-one below.
	n, err := strconv.ParseInt(r.Values[0], 10, 32)
	if err != nil {
		return
	}
	switch r.Operator {
	case "Gt":
		n++
	case "Lt":
		n--
	}
	switch r.Operator {
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

// allows reports whether the label may have the value.
func (c constraint) allows(value string) bool {
	if c.absent || slices.Contains(c.notIn, value) || (c.in != nil && !slices.Contains(c.in, value)) {
		return false
	}
	if c.min == nil && c.max == nil {
		return true
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return err == nil && (c.min == nil || n >= *c.min) && (c.max == nil || n <= *c.max)
}

// possible reports whether a node can satisfy the requirements at all.
func (c constraint) possible() bool {
	switch {
	case c.absent:
		return !c.exists
	case c.in != nil:
		return slices.ContainsFunc(c.in, c.allows)
	case c.min != nil && c.max != nil:
		return *c.min <= *c.max
	}
	return true
}

// pick is a value for the label: the preferred one if it is not empty and allowed, else the
// first that is allowed. It reports false if the label need not be there.
func (c constraint) pick(preferred string) (string, bool) {
	if preferred != "" && c.allows(preferred) {
		return preferred, true
	}
	if !c.exists || c.absent {
		return "", false
	}
	if c.in != nil {
		if named := c.named(); len(named) > 0 {
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
	for n := first; n <= first+int64(len(c.notIn)); n++ {
		if v := strconv.FormatInt(n, 10); c.allows(v) {
			return v, true
		}
	}
	return "", false
}

// named are the values that it names and allows; none if it names none.
func (c constraint) named() (values []string) {
	for _, v := range slices.Sorted(slices.Values(c.in)) {
		if c.allows(v) {
			values = append(values, v)
		}
	}
	return values
}

// covers reports whether c allows every value that other allows. It says no if it cannot
// tell.
func (c constraint) covers(other constraint) bool {
	return !c.absent && other.in != nil &&
		!slices.ContainsFunc(other.in, func(v string) bool { return other.allows(v) && !c.allows(v) })
}
