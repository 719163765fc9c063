package loopback

import (
	"net"
	"strconv"
	"testing"
)

// Addresses differ, also past the end of a block, and are below those of the kernel.
func TestAddress(t *testing.T) {
	seen := map[string]bool{}
	for range 2*block + 1 {
		address, err := Address()
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := net.SplitHostPort(address)
		if port, _ := strconv.Atoi(text); port < firstPort || port >= firstPort+ports || seen[address] {
			t.Fatalf("address %s, after %d others", address, len(seen))
		}
		seen[address] = true
	}
	if len(locks) != 3 {
		t.Errorf("%d blocks are locked, want 3", len(locks))
	}
}
