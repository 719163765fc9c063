package loopback

import (
	"net"
	"strconv"
	"testing"
)

// Addresses differ, are below those of the kernel, and one that is in use is passed over.
func TestAddress(t *testing.T) {
	seen := map[string]bool{}
	for range block - 1 {
		address, err := Address()
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := net.SplitHostPort(address)
		if port, _ := strconv.Atoi(text); port < firstPort || port >= firstPort+blocks*block || seen[address] {
			t.Fatalf("address %s, after %d others", address, len(seen))
		}
		seen[address] = true
	}
	last, err := Address()
	if err != nil {
		t.Fatal(err)
	}
	for address := range seen { // the next round begins
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	if again, err := Address(); again != last {
		t.Errorf("address %s (%v), want %s, which is the only free one", again, err, last)
	}
}

func TestBlocksDiffer(t *testing.T) {
	own, err := first()
	if err != nil {
		t.Fatal(err)
	}
	held := lock
	defer func() { lock = held }()
	other, err := takeBlock()
	if err != nil || other == own {
		t.Errorf("block %d (%v) beside %d", other, err, own)
	}
	lock.Close()
}
