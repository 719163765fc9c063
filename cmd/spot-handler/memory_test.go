package main

import (
	"os"
	"testing"
)

func TestContainerLimit(t *testing.T) {
	const v2, v1 = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"version 2", map[string]string{v2: "67108864\n"}, 64 << 20},
		{"version 2 without one", map[string]string{v2: "max\n"}, 0},
		{"version 1", map[string]string{v1: "536870912\n"}, 512 << 20},
		{"version 1 without one", map[string]string{v1: "9223372036854771712\n"}, 0},
		{"no files", nil, 0},
	} {
		if got := containerLimit(func(name string) ([]byte, error) {
			if text, ok := c.files[name]; ok {
				return []byte(text), nil
			}
			return nil, os.ErrNotExist
		}); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
