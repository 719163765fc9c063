package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"spot-handler/e2e/controlplane/internal/supervisor"
	"spot-handler/e2e/internal/assets"
)

// KeepVariable makes Borrow use a control plane that outlives this process, and start it
// if there is none. It ends when nobody has used it for half an hour, or by -end-kept of
// cmd/controlplane. One test at a time uses it; the others start theirs.
const KeepVariable = "SPOT_HANDLER_E2E_KEEP"

const (
	// longestSocket is what the address of a Unix socket holds on Linux and elsewhere.
	longestSocket = 100

	// keptStart is above the supervisor's own limit.
	keptStart = 3 * time.Minute
)

// errKeptInUse says that another test has the kept cluster.
var errKeptInUse = errors.New("the kept control plane is in use")

// keptSocket is where a kept cluster of this kind listens. The supervisor's path changes with
// its program, so a cluster of an older state is not used.
func keptSocket(program string, karpenter bool) string {
	if karpenter {
		return program + "-k.sock"
	}
	return program + ".sock"
}

// useKept connects to the kept cluster, and starts it if there is none.
func useKept(ctx context.Context, options Options) (*Cluster, error) {
	program, err := assets.Supervisor(ctx)
	if err != nil {
		return nil, err
	}
	socket := keptSocket(program, options.Karpenter)
	if len(socket) > longestSocket {
		return nil, fmt.Errorf("keep a control plane: %s is too long for a socket", socket)
	}
	// The kernel drops the lock with this process, however that ends.
	lock, err := os.OpenFile(socket+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep a control plane: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, errKeptInUse
	}
	conn, err := dialKept(ctx, program, socket, options)
	if err != nil {
		lock.Close()
		return nil, err
	}
	c := &Cluster{stdin: closers{conn, lock}, info: make(chan []byte, 1), exited: make(chan struct{}), stderr: &lastOutput{next: io.Discard}}
	go c.read(conn)
	info, err := c.awaitInfo(ctx)
	if err == nil {
		err = c.connect(info)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	if file, err := os.Stat(c.auditLog); err == nil {
		c.auditFrom = file.Size()
	}
	return c, nil
}

// closers close the lock after the connection.
type closers struct {
	net.Conn
	lock *os.File
}

func (c closers) Close() error { return errors.Join(c.Conn.Close(), c.lock.Close()) }

func dialKept(ctx context.Context, program, socket string, options Options) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, keptStart)
	defer cancel()
	for started := false; ; {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			_, err = io.WriteString(conn, supervisor.UseKept+"\n")
			return conn, err
		}
		if !started {
			if err := startKept(program, socket, options); err != nil {
				return nil, err
			}
			started = true
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the kept control plane, see %s.log: %w", socket, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func startKept(program, socket string, options Options) error {
	checkout, err := assets.Checkout()
	if err != nil {
		return err
	}
	log, err := os.Create(socket + ".log")
	if err != nil {
		return fmt.Errorf("keep a control plane: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program, fmt.Sprintf("-karpenter=%t", options.Karpenter), "-audit", "-keep="+socket)
	cmd.Dir, cmd.Stdout, cmd.Stderr = checkout, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("keep a control plane: %w", err)
	}
	return cmd.Process.Release()
}
