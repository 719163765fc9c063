package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// shownFields are the fields of spot-handler's log lines that the view does not show
// anyway, in the order in which it shows them.
var shownFields = []string{
	"error", "reason", "took_seconds", "backend", "pool", "pods",
	"graceful", "truncated", "forced", "left", "slack_seconds",
}

// Write takes spot-handler's log, one line of JSON with each call. The lines about the
// node's interruption, which give its kind, are its story; of the others it keeps only
// trouble.
func (o *observer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if text, ok := logText(string(p), o.s.node); ok {
		o.s.log = append(o.s.log, entry{at: time.Now(), text: text})
	}
	return len(p), nil
}

// logText makes a line of the log readable. It shows anything that is not JSON, such as a
// panic, as it is.
func logText(line, node string) (text string, shown bool) {
	line = strings.TrimSpace(line)
	var fields map[string]any
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		return line, line != ""
	}
	level, _ := fields["level"].(string)
	trouble := level != "info" && level != "debug"
	if (fields["node"] != node || fields["kind"] == nil) && !trouble {
		return "", false
	}
	var b strings.Builder
	if trouble {
		fmt.Fprintf(&b, "%s: ", level)
	}
	fmt.Fprint(&b, fields["message"])
	separator := "  "
	for _, name := range shownFields {
		switch value := fields[name].(type) {
		case nil:
			continue
		case float64:
			fmt.Fprintf(&b, "%s%s=%.3g", separator, name, value)
		default:
			fmt.Fprintf(&b, "%s%s=%v", separator, name, value)
		}
		separator = " "
	}
	return b.String(), true
}
