package chart

import (
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

// The values that `spot-handler migrate` prints are such as the chart takes, and what is
// missing is what only their owner knows.
func TestMigratedValuesAreTaken(t *testing.T) {
	inputs, err := filepath.Glob(filepath.Join("..", "..", "cmd", "spot-handler", "internal", "migrate", "testdata", "*.in"))
	if err != nil || len(inputs) == 0 {
		t.Fatal(inputs, err)
	}
	for _, input := range inputs {
		out, err := exec.Command(build(t), "migrate", input).Output()
		if err != nil {
			t.Fatalf("%s: %v", input, err)
		}
		var values map[string]any
		if err := yaml.UnmarshalStrict(out, &values); err != nil {
			t.Fatalf("%s: %v", input, err)
		}
		mode, _ := values["mode"].(string)
		set(values, "image.repository", "registry.example.com/spot-handler")
		if mode == "queue" {
			set(values, "flags.queueUrl", QueueURL)
		}
		for _, h := range helms(t) {
			if _, err := h.Render(t.Context(), Release{Values: values}); err != nil {
				t.Errorf("%s: %s: %v\n%s", h.Name, filepath.Base(input), err, out)
			}
		}
	}
}
