package sqsemu

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
)

// messageAttribute is a value that a sender puts next to the body.
type messageAttribute struct {
	DataType    string
	StringValue string `json:",omitempty"`
	BinaryValue []byte `json:",omitempty"`
}

// md5OfAttributes digests the attributes in the order of their names, each part preceded by its length, as the SQS
// developer guide specifies; it is empty if there are none.
func md5OfAttributes(attributes map[string]messageAttribute) string {
	if len(attributes) == 0 {
		return ""
	}
	var b []byte
	part := func(text string) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		a := attributes[name]
		part(name)
		part(a.DataType)
		if strings.HasPrefix(a.DataType, "Binary") {
			b = append(b, 2)
			part(string(a.BinaryValue))
		} else {
			b = append(b, 1)
			part(a.StringValue)
		}
	}
	sum := md5.Sum(b)
	return hex.EncodeToString(sum[:])
}

// selectAttributes returns the attributes that a receive asks for: by name, by a prefix with ".*", or All.
func selectAttributes(all map[string]messageAttribute, names []string) map[string]messageAttribute {
	selected := map[string]messageAttribute{}
	for name, value := range all {
		if slices.ContainsFunc(names, func(wanted string) bool {
			prefix, isPrefix := strings.CutSuffix(wanted, ".*")
			return wanted == "All" || wanted == name || isPrefix && strings.HasPrefix(name, prefix)
		}) {
			selected[name] = value
		}
	}
	return selected
}
