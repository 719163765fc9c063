package observe

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Queries in the text of the manual can be read by Prometheus.
func TestQueriesOfManual(t *testing.T) {
	prometheus, err := StartPrometheus(t.Context(), ForTest(t), t.TempDir(), PrometheusOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer prometheus.Close()
	found := 0
	for _, pattern := range []string{"../../*.md", "../../deploy/*.md", "../../deploy/docs/*.md"} {
		for _, file := range files(t, filepath.FromSlash(pattern)) {
			text := regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(read(t, file), "")
			text = strings.Join(strings.Fields(text), " ")
			for _, code := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
				if !isQuery(code[1]) {
					continue
				}
				found++
				if _, err := prometheus.Query(t.Context(), code[1]); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
	if found < 2 {
		t.Errorf("found %d queries only", found)
	}
}

// isQuery: the code names a metric, and does something with it.
func isQuery(code string) bool {
	return regexp.MustCompile(`\b(spot_handler|kube)_[a-z_]+`).MatchString(code) && strings.ContainsAny(code, "{(<>")
}
