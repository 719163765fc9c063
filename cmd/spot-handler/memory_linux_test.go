package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Only what is exactly as it is in the file may be let go: anything else would be lost.
func TestCleanMappings(t *testing.T) {
	const smaps = `00400000-00401000 r-xp 00000000 fe:00 1   /usr/bin/spot-handler
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
00401000-00402000 r--p 00001000 fe:00 1   /usr/bin/spot-handler
Anonymous:             4 kB
00402000-00403000 r--p 00002000 fe:00 1   /usr/bin/spot-handler
Anonymous:             0 kB
00403000-00404000 rw-p 00003000 fe:00 1   /usr/bin/spot-handler
Anonymous:             0 kB
00404000-00405000 r--p 00000000 fe:00 2   /usr/lib/other
Anonymous:             0 kB
7f0000000000-7f0000001000 r-xp 00000000 00:00 0  [vdso]
Anonymous:             0 kB
7f0000002000-7f0000003000 r--p 00000000 00:00 0
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0x401000}, {0x402000, 0x403000}}
	if diff := cmp.Diff(want, cleanMappings(smaps, "/usr/bin/spot-handler"), cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The format is that of this machine's kernel.
func TestCleanMappingsOfThisProcess(t *testing.T) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	if found := cleanMappings(string(text), program); len(found) == 0 {
		t.Errorf("none of %s in:\n%s", program, strings.Join(strings.SplitAfterN(string(text), "\n", 20), ""))
	}
}
