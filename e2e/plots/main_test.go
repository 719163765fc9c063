package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
)

// The documents have what the data draws, which is an SVG that says what it is and has no colour of its own.
func TestPicturesAreOfTheirData(t *testing.T) {
	for data, picture := range pictures {
		drawn, err := drawing(data)
		if err != nil {
			t.Fatal(err)
		}
		if shown, err := os.ReadFile(picture); err != nil || !bytes.Equal(shown, drawn) {
			t.Errorf("%s is not what %s draws: run `go -C e2e/plots run .` (%v)", picture, data, err)
		}
		d := xml.NewDecoder(bytes.NewReader(drawn))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", picture, err)
			}
		}
		_, body, _ := strings.Cut(string(drawn), "</style>")
		if strings.Contains(body, ":#") {
			t.Errorf("%s has colours that do not follow the reader's scheme", picture)
		}
		for _, want := range []string{"<title id=", "pod-seconds unavailable", "prefers-color-scheme:dark"} {
			if !strings.Contains(string(drawn), want) {
				t.Errorf("%s lacks %q", picture, want)
			}
		}
	}
}

func TestSteps(t *testing.T) {
	l := line{Points: [][2]float64{{0, 28}, {2, 21}, {50, 28}}, lower: 0.5}
	got := l.steps()
	want := [][2]float64{{0, 27.5}, {2, 27.5}, {2, 20.5}, {50, 20.5}, {50, 27.5}}
	for i, w := range want {
		if len(got) != len(want) || got[i].X != w[0] || got[i].Y != w[1] {
			t.Fatalf("steps %v, want %v", got, want)
		}
	}
}
