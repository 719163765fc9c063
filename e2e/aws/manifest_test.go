package aws

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"go.yaml.in/yaml/v3"
)

// serviceAccountOf finds the ServiceAccount in a manifest.
func serviceAccountOf(t *testing.T, manifest []byte) (namespace, name string) {
	t.Helper()
	for docs := yaml.NewDecoder(bytes.NewReader(manifest)); ; {
		var object struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := docs.Decode(&object); errors.Is(err, io.EOF) {
			t.Fatal("the manifest has no ServiceAccount")
		} else if err != nil {
			t.Fatal(err)
		}
		if object.Kind == "ServiceAccount" {
			return object.Metadata.Namespace, object.Metadata.Name
		}
	}
}
