package webhook

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A Secret that is replaced is used for the next webhook.
func TestRotatedSecret(t *testing.T) {
	dir := t.TempDir()
	e := Endpoint{URLFile: filepath.Join(dir, "url"), HeadersFile: filepath.Join(dir, "headers")}
	write := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, token := range []string{"one", "two"} {
		write(e.URLFile, "https://hooks.example.com/"+token+"\n")
		write(e.HeadersFile, "Authorization: Bearer "+token+"\n")
		target, noURL := e.URL()
		header, noHeader := e.Header()
		if err := errors.Join(noURL, noHeader); err != nil || target.Path != "/"+token || header.Get("Authorization") != "Bearer "+token {
			t.Errorf("%s, %v, %v, %v", target, header, noURL, noHeader)
		}
	}
	write(e.URLFile, "topsecret without a scheme")
	write(e.HeadersFile, "topsecret")
	_, noURL := e.URL()
	_, noHeader := e.Header()
	for file, err := range map[string]error{e.URLFile: noURL, e.HeadersFile: noHeader} {
		if err == nil || strings.Contains(err.Error(), "topsecret") || !strings.Contains(err.Error(), file) {
			t.Errorf("error %v, want %s named and nothing of what is in it", err, file)
		}
	}
}

func TestParseHeaders(t *testing.T) {
	want := http.Header{"Content-Type": {"text/plain; charset=utf-8"}, "X-Token": {"a:b c"}}
	for name, text := range map[string]string{
		"lines": "# of the Secret\n\nContent-type: text/plain; charset=utf-8\r\nX-Token:a:b c\n",
		"JSON":  ` {"Content-type": "text/plain; charset=utf-8", "X-Token": "a:b c"}`,
	} {
		got, err := parseHeaders(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if _, err := parseHeaders("# a comment\n\nA: b\nsecret"); err == nil || !strings.Contains(err.Error(), "line 4") {
		t.Errorf("%v, want the line named", err)
	}
	for _, text := range []string{"secret", "A b: secret", ": secret", "A: sec\x00ret", `{"A": 1}`, `{"A": "secret`, `{"A": "sec\nret"}`} {
		if _, err := parseHeaders(text); err == nil || strings.Contains(err.Error(), "ret") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}
