package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestContainerLimit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.max")
	if got := containerLimit(file); got != 0 {
		t.Errorf("%d without a file", got)
	}
	for text, want := range map[string]int64{"67108864\n": 64 << 20, "max\n": 0} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := containerLimit(file); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

func TestHeapLimit(t *testing.T) {
	for _, tt := range []struct {
		container int64
		given     string
		want      int64
	}{{100 << 20, "", 80 << 20}, {100 << 20, "50MiB", 0}, {0, "", 0}, {0, "50MiB", 0}} {
		if got := heapLimit(tt.container, tt.given); got < tt.want-10 || got > tt.want {
			t.Errorf("of %d, GOMEMLIMIT=%s: %d, want %d", tt.container, tt.given, got, tt.want)
		}
	}
}
