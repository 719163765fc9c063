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
	"sync/atomic"
	"syscall"
)

// A port that the kernel chooses, for a listener or a connection, is 32768 or higher (49152 on other systems). Those of
// this package are below, so nobody takes one between its choice and the start of a process.
//
// A process has a block of them to itself, as others may run tests on this machine at the same time.
const (
	firstPort = 20000
	blocks    = 24
	block     = 500
)

var (
	first = sync.OnceValues(takeBlock)
	next  atomic.Int64
	lock  *os.File // of the block: the kernel drops it with the process
)

// Address is a free one of 127.0.0.1, as host:port. No two calls of a process return the same
// one soon, and no other process gets it from here.
func Address() (string, error) {
	port, err := first()
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	for range block {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port+int(next.Add(1)%block)))
		l, listenErr := net.Listen("tcp", address)
		if listenErr == nil {
			return address, l.Close()
		}
		err = listenErr
	}
	return "", fmt.Errorf("find a free port: %w", err)
}

// takeBlock returns the first port of a block that no other process has.
func takeBlock() (int, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("spot-handler-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	for _, n := range rand.Perm(blocks) {
		file, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(n)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return 0, err
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			lock = file
			return firstPort + n*block, nil
		}
		file.Close()
	}
	return 0, fmt.Errorf("all %d blocks of ports are in use", blocks)
}
