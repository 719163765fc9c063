package main

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// tuneMemory trades a little CPU for memory: the daemon idles nearly all the time,
// on every spot node, and its heap is a few MiB. Near the container's limit the garbage collector
// works harder, before the kernel ends the process. GOMEMLIMIT overrides that.
func tuneMemory() {
	debug.SetGCPercent(50)
	if limit := containerLimit(os.ReadFile); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 8) // the rest is for stacks of the kernel, and pages of the program's file
	}
}

// containerLimit is the container's memory limit in bytes; zero if there is none or it cannot be read.
// https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
func containerLimit(read func(string) ([]byte, error)) int64 {
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := read(file)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit > 0 && limit < math.MaxInt64/2 { // version 1 writes a number for none
			return limit
		}
	}
	return 0
}
