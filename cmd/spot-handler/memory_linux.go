package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// startTakes is when the start is over: clients made, Nodes listed, the source asked.
const startTakes = 10 * time.Second

// unmapStart lets go of the pages of the program's own file once the start is over. The
// kernel maps code and constants in runs of 16 pages when one of them is touched, so that
// after the start nearly all of the file is resident, and most of it is never used again
// by a process that idles. What is used later comes back from the page cache, in
// microseconds.
//
// Only pages that are as they are in the file are let go: a segment that the loader has
// changed, as in a position-independent executable, stays.
func unmapStart(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(startTakes):
	}
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return // as good as it was
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	for _, m := range cleanMappings(string(text), program) {
		// The error is of no use: the pages stay.
		_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, m.from, m.to-m.from, syscall.MADV_DONTNEED)
	}
}

// mapping is a range of addresses.
type mapping struct{ from, to uintptr }

// cleanMappings are those of the file in /proc/self/smaps that cannot be written to and
// have no page of their own.
// https://www.kernel.org/doc/html/latest/filesystems/proc.html
func cleanMappings(smaps, file string) []mapping {
	var found []mapping
	var candidate *mapping
	for line := range strings.Lines(smaps) {
		fields := strings.Fields(line)
		switch {
		case len(fields) >= 6 && strings.Contains(fields[0], "-"):
			candidate = nil
			if (fields[1] == "r-xp" || fields[1] == "r--p") && strings.Join(fields[5:], " ") == file {
				candidate = parseRange(fields[0])
			}
		case candidate != nil && len(fields) == 3 && fields[0] == "Anonymous:":
			if fields[1] == "0" {
				found = append(found, *candidate)
			}
			candidate = nil
		}
	}
	return found
}

func parseRange(text string) *mapping {
	var ends [2]uintptr
	for i, part := range strings.SplitN(text, "-", 2) {
		n, err := strconv.ParseUint(part, 16, strconv.IntSize)
		if err != nil {
			return nil
		}
		ends[i] = uintptr(n)
	}
	return &mapping{ends[0], ends[1]}
}
