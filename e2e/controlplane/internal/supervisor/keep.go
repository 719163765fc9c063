package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// What a client of a kept control plane says first, as a line.
const (
	UseKept = "use" // and holds the connection for as long as it uses it
	endKept = "end"
)

// Keep runs a control plane for one client after the other, which connect to the socket,
// and empties it after each. It ends when nobody has come for so long as unused says, or
// when a client asks for the end. A client that comes while another is there waits.
func Keep(ctx context.Context, socket string, unused time.Duration, options Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_ = os.Remove(socket) // of one that was killed: whoever starts us has found nobody there
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("keep a control plane: %w", err)
	}
	defer listener.Close() // which removes the file
	resets, infos, ended := make(chan struct{}), make(chan Info), make(chan error, 1)
	options.Reset = resets
	go func() {
		ended <- Supervise(ctx, options, func(info Info) error {
			select {
			case infos <- info:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	end := func() error {
		listener.Close()
		cancel()
		return <-ended
	}
	for {
		var info Info
		select {
		case info = <-infos:
		case err := <-ended:
			return err
		}
		if err := listener.(*net.UnixListener).SetDeadline(time.Now().Add(unused)); err != nil {
			return errors.Join(err, end())
		}
		conn, err := acceptOrEnd(listener, ctx)
		if err != nil {
			return end()
		}
		again := serveOne(ctx, conn, info)
		if !again {
			return end()
		}
		select {
		case resets <- struct{}{}:
		case err := <-ended:
			return err
		}
	}
}

// acceptOrEnd waits for a client until the listener's deadline, or the end of the context.
func acceptOrEnd(listener net.Listener, ctx context.Context) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	return listener.Accept()
}

// serveOne returns when the client has gone, and whether there is to be another.
func serveOne(ctx context.Context, conn net.Conn, info Info) (again bool) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	said := bufio.NewReader(conn)
	line, err := said.ReadString('\n')
	switch {
	case err != nil:
		return true
	case line == endKept+"\n":
		return false
	}
	if err := json.NewEncoder(conn).Encode(info); err != nil {
		return true
	}
	_, _ = io.Copy(io.Discard, said)
	return ctx.Err() == nil
}

// EndKept ends the control planes whose sockets are in the directory, each after its
// present client, and returns how many there were.
func EndKept(ctx context.Context, dir string) (int, error) {
	sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil {
		return 0, fmt.Errorf("look for kept control planes: %w", err)
	}
	ended := 0
	for _, socket := range sockets {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			continue // nobody is there: it was killed
		}
		if _, err := io.WriteString(conn, endKept+"\n"); err == nil {
			_, _ = io.Copy(io.Discard, conn) // until it has heard
			ended++
		}
		conn.Close()
	}
	return ended, nil
}
