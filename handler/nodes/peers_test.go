package nodes

import (
	"slices"
	"strings"
	"testing"
)

func TestDecodePeers(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want []Peer
	}{
		"metadata only": {`{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"7","remaining":[{}]},"items":[
			{"metadata":{"name":"a","labels":{"x":"y"},"annotations":{"spot-handler/interruption":"{}","other":"z"},"managedFields":[{"a":{}}]}},
			{"kind":"PartialObjectMetadata","metadata":{"name":"b"}}]}`, []Peer{{"a", "{}"}, {"b", ""}}},
		"whole nodes":  {`{"items":[{"metadata":{"name":"a"},"spec":{"unschedulable":true},"status":{"images":[{"names":["x"]}]}}],"kind":"NodeList"}`, []Peer{{"a", ""}}},
		"none":         {`{"items":[]}`, nil},
		"null":         {`{"items":null,"kind":"NodeList"}`, nil},
		"without list": {`{}`, nil},
	} {
		got, err := decodePeers(strings.NewReader(tt.body))
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, tt.want)
		}
	}
	for _, body := range []string{"", "[]", "null", `{"items":{}}`, `{"items":[{"metadata":{"name":1}}]}`, `{"items":[{"metadata":{"name":"a"}}`, `{"items":[{"metadata":{"name":"a"}}]`} {
		if got, err := decodePeers(strings.NewReader(body)); err == nil {
			t.Errorf("%q is read as %v: a list that was cut off would let too many begin", body, got)
		}
	}
}
