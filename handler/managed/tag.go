package managed

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Tag is what an instance has to carry. The zero Tag restricts nothing.
type Tag struct {
	Key string
	// Value is compared only if Exact is set.
	Value string
	Exact bool
}

// The limits of tags in EC2, in characters.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions
const (
	maxKey   = 128
	maxValue = 256
)

// ParseTag reads KEY or KEY=VALUE; an empty text is the zero Tag. KEY= asks for the empty
// value.
func ParseTag(text string) (Tag, error) {
	if text == "" {
		return Tag{}, nil
	}
	var t Tag
	t.Key, t.Value, t.Exact = strings.Cut(text, "=")
	switch {
	case !utf8.ValidString(text):
		return Tag{}, fmt.Errorf("%q is no text", text)
	case t.Key == "":
		return Tag{}, fmt.Errorf("%q has no key: want KEY or KEY=VALUE", text)
	case strings.TrimSpace(t.Key) != t.Key || strings.TrimSpace(t.Value) != t.Value:
		return Tag{}, fmt.Errorf("%q begins or ends with space", text)
	case utf8.RuneCountInString(t.Key) > maxKey || utf8.RuneCountInString(t.Value) > maxValue:
		return Tag{}, fmt.Errorf("%.20q... is longer than a tag's key (%d) or value (%d) can be", text, maxKey, maxValue)
	}
	return t, nil
}

// String is the text that ParseTag reads.
func (t Tag) String() string {
	if t.Exact {
		return t.Key + "=" + t.Value
	}
	return t.Key
}

// meets reports whether an instance with this value of the tag, or without it, is managed.
func (t Tag) meets(value string, has bool) bool { return has && (!t.Exact || value == t.Value) }
