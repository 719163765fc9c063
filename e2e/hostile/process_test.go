package hostile

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// siege holds connections to a daemon: most ask for its metrics, and read the answer a byte at a
// time; the rest never ask. Whoever is thrown out comes again.
func siege(ctx context.Context, url string, readers int) {
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			for ctx.Err() == nil {
				sit(ctx, strings.TrimPrefix(url, "http://"), i%4 != 0)
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})
	}
	wg.Wait()
}

func sit(ctx context.Context, address string, asks bool) {
	dialer := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2048) })
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer conn.Close()
	if asks {
		if _, err := fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return
		}
	}
	for r := bufio.NewReaderSize(conn, 16); ; time.Sleep(time.Second) {
		if _, err := r.ReadByte(); err != nil {
			return
		}
	}
}

// probe asks a daemon whether it lives, as the kubelet does, and returns how often at most it has
// not answered in a row.
func probe(ctx context.Context, url string) (missed int) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	inRow := 0
	for {
		select {
		case <-ctx.Done():
			return missed
		case <-time.After(2 * time.Second):
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
		if err != nil {
			return missed
		}
		answer, err := client.Do(request)
		if err == nil {
			_ = answer.Body.Close()
		}
		if err == nil && answer.StatusCode == http.StatusOK {
			inRow = 0
		} else if ctx.Err() == nil {
			inRow++
			missed = max(missed, inRow)
		}
	}
}
