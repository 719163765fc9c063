package main

import (
	"strings"
	"testing"
)

// What stands behind a wrong argument counts, too.
func TestParseGoesOnAfterAWrongArgument(t *testing.T) {
	_, err := parsed([]string{"queue", "--nod", "--margin=soon", "-x", "--heartbeat-until", "many", "--queue-url", "https://sqs/1/q", "--bogus=a", "--http-addr", "8080"},
		env(nil))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"unknown flag: --nod", "unknown flag: -x", "unknown flag: --bogus", "--margin", "--heartbeat-until", "--http-addr ("} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not name %q:\n%v", want, err)
		}
	}
	for _, not := range []string{"--queue-url", "unexpected argument"} {
		if strings.Contains(err.Error(), not) {
			t.Errorf("error names %q, which is right:\n%v", not, err)
		}
	}
	if cfg, err := parsed([]string{"imds", "--node-name", "--a"}, env(nil)); err != nil || cfg.nodeName != "--a" {
		t.Errorf("node name %q, %v: want the value, though it looks like a flag", cfg.nodeName, err)
	}
}
