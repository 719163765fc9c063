// Package loopback finds addresses for the processes that a test starts.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// Whoever listens at any port, or connects, gets one that the kernel chooses from 32768 on (from
// 49152 in other systems). An address of this package is below, so that nobody takes it between
// its choice and the process's start.
const (
	firstPort = 20000
	ports     = 12000
)

// Other tests may run on this machine, and each control plane has a process of its own that asks
// for addresses. So a process has blocks of ports to itself, of this size, for as long as it
// lives: a lock tells the others.
const block = 100

var (
	mu    sync.Mutex
	first int        // port of the present block
	next  = block    // within it
	locks []*os.File // of all blocks: the kernel drops them with the process
)

// Address is a free one of 127.0.0.1, as host:port. No two calls of a process return the same
// one soon, and no other process gets it from here.
func Address() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	var failed error
	for range 2 * block {
		if next == block {
			if err := takeBlock(); err != nil {
				return "", fmt.Errorf("find a free port: %w", err)
			}
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+next))
		next++
		l, err := net.Listen("tcp", address)
		if err != nil {
			failed = err
			continue
		}
		return address, l.Close()
	}
	return "", fmt.Errorf("find a free port: %w", failed)
}

// takeBlock takes another block, or begins the present one again when there is none left.
func takeBlock() error {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("spot-handler-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	const blocks = ports / block
	start := rand.IntN(blocks)
	for i := range blocks {
		n := (start + i) % blocks
		lock, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(n)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			locks = append(locks, lock)
			first, next = firstPort+n*block, 0
			return nil
		}
		lock.Close()
	}
	if len(locks) == 0 {
		return fmt.Errorf("all %d blocks of ports are in use", blocks)
	}
	next = 0
	return nil
}
