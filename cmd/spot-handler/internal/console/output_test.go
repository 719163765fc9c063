package console

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

func TestFormats(t *testing.T) {
	value := struct {
		Node  string `json:"node"`
		After int    `json:"after,omitempty"`
	}{Node: "a"}
	for f, want := range map[Format]string{
		JSON: "{\n  \"node\": \"a\"\n}\n",
		YAML: "---\nnode: a\n",
	} {
		var out strings.Builder
		if err := f.Write(&out, value); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", f, &out, err, want)
		}
	}
}

// What encoding/json leaves as it is would reach the terminal of somebody who looks at the output.
func TestJSONEscapesControls(t *testing.T) {
	const hostile = "\x1b]52;c;cm0gLXJm\a \x7f \u009b31m \u202e \u2066 \u2028"
	var out strings.Builder
	f := JSON
	if err := f.Write(&out, []string{hostile}); err != nil || strings.ContainsFunc(out.String(), Controls) {
		t.Errorf("%q, %v", &out, err)
	}
	var back []string
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil || back[0] != hostile {
		t.Errorf("%q, %v", back, err)
	}
}

var hostileWords = []string{"web", "", "db; touch owned", "$(touch owned)", "`touch owned`", "it's", "'; touch owned;'", "a\nb", "\\", "~", "{a,b}", "*", "!!", "grün"}

// A shell takes a printed command as the words that it was made of.
func TestCommandInAShell(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "sh", "-c", Command(append([]string{"printf", `%s\0`}, hostileWords...)...)).Output()
	if want := strings.Join(hostileWords, "\x00") + "\x00"; err != nil || string(out) != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

func FuzzCommand(f *testing.F) {
	for _, word := range hostileWords {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, word string) {
		var back, inside = "", false
		for rest := strings.TrimPrefix(Command("kubectl", word), "kubectl "); rest != ""; rest = rest[1:] {
			switch {
			case rest[0] == '\'':
				inside = !inside
			case inside:
				back += rest[:1]
			case strings.HasPrefix(rest, `\'`):
				back, rest = back+"'", rest[1:]
			case plainWord.MatchString(rest[:1]):
				back += rest[:1]
			default:
				t.Fatalf("%q: %q is not quoted", word, rest[:1])
			}
		}
		if back != word || inside {
			t.Errorf("%q, want %q", back, word)
		}
	})
}
