package console

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestFormats(t *testing.T) {
	value := struct {
		Node  string `json:"node"`
		After int    `json:"after,omitempty"`
	}{Node: "a"}
	for name, want := range map[string]string{
		"json": "{\n  \"node\": \"a\"\n}\n",
		"yaml": "---\nnode: a\n",
	} {
		var f Format
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.Define(flags)
		if f != TableFormat {
			t.Errorf("the default is %s", f)
		}
		if err := flags.Parse([]string{"-o", name}); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := f.Write(&out, value); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", name, &out, err, want)
		}
		if err := flags.Parse([]string{"-o=xml"}); err == nil {
			t.Error("xml is taken for a format")
		}
	}
}
