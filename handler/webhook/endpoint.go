package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"unicode"
)

const contentTypeJSON = "application/json"

// Endpoint is where webhooks go, and with which headers. The files are those of a mounted
// Secret. They are read for each attempt, as the kubelet replaces them.
type Endpoint struct {
	URLFile     string
	HeadersFile string // may be empty
}

// Set reports whether there is one.
func (e Endpoint) Set() bool { return e.URLFile != "" }

// Read returns the URL and the headers as they are now. The errors name files, never
// what is in them.
func (e Endpoint) Read() (*url.URL, http.Header, error) {
	var target *url.URL
	header := http.Header{}
	var errs []error
	if e.URLFile != "" {
		text, err := os.ReadFile(e.URLFile)
		if err == nil {
			target, err = ParseURL(string(text))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read URL: %s: %w", e.URLFile, pathless(err)))
		}
	}
	if e.HeadersFile != "" {
		text, err := os.ReadFile(e.HeadersFile)
		if err == nil {
			header, err = ParseHeaders(string(text))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read headers: %s: %w", e.HeadersFile, pathless(err)))
		}
	}
	return target, header, errors.Join(errs...)
}

// pathless is the error without the file's path, which the caller has named.
func pathless(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// ParseURL reads the URL of a webhook. Its errors do not repeat the text, as such URLs
// are secrets.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return nil, errors.New("want an http or https URL")
	}
	return u, nil
}

// ParseProxy reads the URL of a proxy. Its errors do not repeat the text, which may hold
// a password.
func ParseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err == nil && u.Host != "" {
		switch u.Scheme {
		case "http", "https", "socks5", "socks5h":
			return u, nil
		}
	}
	return nil, errors.New("want a URL such as http://proxy.example.com:3128; http, https, socks5 and socks5h are known")
}

// headerName is what RFC 9110 calls a token.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// ParseHeaders reads headers: a line `Name: value` for each, as curl takes them from a
// file, or one JSON object of texts. Empty lines and those that begin with # are ignored.
// Its errors name lines and headers, never values.
func ParseHeaders(text string) (http.Header, error) {
	header := http.Header{}
	add := func(name, value string) error {
		value = strings.TrimSpace(value)
		if name = strings.TrimSpace(name); !headerName.MatchString(name) || strings.ContainsFunc(value, unicode.IsControl) {
			return errors.New("no valid name or value of a header")
		}
		header.Add(name, value)
		return nil
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		var object map[string]string
		if err := json.Unmarshal([]byte(text), &object); err != nil {
			return nil, errors.New("want a JSON object of texts")
		}
		for name, value := range object {
			if err := add(name, value); err != nil {
				return nil, err
			}
		}
		return header, nil
	}
	number := 0
	for line := range strings.Lines(text) {
		number++
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("line %d: want Name: value", number)
		}
		if err := add(name, value); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return header, nil
}

// isJSON reports whether a body with these headers has to be JSON.
func isJSON(header http.Header) bool {
	kind := header.Get("Content-Type")
	return kind == "" || strings.Contains(strings.ToLower(kind), "json")
}
