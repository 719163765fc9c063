package aws

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// serviceAccount is that of the pods of queue mode: in the manifest, or where there is
// none, of the release that the README has Helm install; the chart calls it after that.
func serviceAccount(t *testing.T) (namespace, name string) {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join(root, "deploy", "queue.yaml"))
	if err == nil {
		return serviceAccountOf(t, manifest)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	joined := strings.ReplaceAll(string(readme), "\\\n", " ")
	for line := range strings.Lines(joined) {
		release := regexp.MustCompile(`helm (?:upgrade --install|upgrade -i|install) ([a-z][a-z-]*)`).FindStringSubmatch(line)
		in := regexp.MustCompile(`(?:--namespace|-n)[ =]([a-z-]+)`).FindStringSubmatch(line)
		if release != nil && in != nil {
			return in[1], release[1] + "-queue"
		}
	}
	t.Fatal("neither a manifest nor the README says what the ServiceAccount is called")
	return "", ""
}

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
