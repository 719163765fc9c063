package aws

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// serviceAccount is that of the pods of queue mode: of the release that the README has
// Helm install; the chart calls it after that.
func serviceAccount(t *testing.T) (namespace, name string) {
	t.Helper()
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
	t.Fatal("the README does not say what the ServiceAccount is called")
	return "", ""
}
