// Package console prints what the commands for people have found: all those that do not run as
// daemons.
//
// It decides nothing, and knows nothing of interruptions.
package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"spot-handler/cmd/spot-handler/terminal"
)

// Format is how a command prints what it found.
type Format string

// The formats: one for people, two for programs.
const (
	TableFormat Format = "table"
	JSON        Format = "json"
	YAML        Format = "yaml"
)

// Formats lists the names of all formats.
func Formats() []string { return []string{string(TableFormat), string(JSON), string(YAML)} }

// Write prints a value as JSON or YAML.
func (f Format) Write(w io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	text = escaped(text)
	if err == nil && f == YAML {
		text, err = yaml.JSONToYAML(text)
		text = []byte("---\n" + strings.TrimSuffix(string(text), "\n"))
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", f, err)
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// plainWord is one that a shell takes as it stands.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Command is a line for a shell, whatever is in its words.
func Command(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		if quoted[i] = word; !plainWord.MatchString(word) {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// escaped is JSON with every character escaped that controls a terminal: encoding/json leaves DEL,
// the C1 controls and those of the direction of text as they are. They stand in strings only.
// In YAML the output puts U+FFFD in their place.
func escaped(text []byte) []byte {
	if bytes.IndexFunc(text, terminal.Controls) < 0 {
		return text
	}
	var b []byte
	for _, r := range string(text) {
		if terminal.Controls(r) {
			b = fmt.Appendf(b, `\u%04x`, r)
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}
