// Package loopback finds addresses for the processes that a test starts.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Whoever listens at any port, or connects, gets one that the kernel chooses from 32768 on (from
// 49152 in other systems). An address of this package is below, so that nobody takes it between
// its choice and the process's start.
const (
	firstPort = 20000
	ports     = 12000
)

var last atomic.Uint32

func init() { last.Store(rand.Uint32N(ports)) } // other tests may run on this machine

// Address is a free one of 127.0.0.1, as host:port. No two calls of a process return the same
// one soon.
func Address() (string, error) {
	var failed error
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(firstPort+last.Add(1)%ports)))
		l, err := net.Listen("tcp", address)
		if err != nil {
			failed = err
			continue
		}
		return address, l.Close()
	}
	return "", fmt.Errorf("find a free port: %w", failed)
}
