package link

import (
	"errors"
	"net"
	"sync"
)

// gate is a listener whose connections can be cut without their being closed, as by a
// network that drops every packet.
type gate struct {
	net.Listener

	mu     sync.Mutex
	cut    chan struct{} // closed when the cut is over; nil while there is none
	cuts   int           // how many have asked for it
	number int           // of the present time without a cut
	open   bool          // for good
}

// errCut is what a connection says that was open before a cut, or during it.
var errCut = errors.New("the network was cut")

func newGate(l net.Listener) *gate { return &gate{Listener: l} }

func (g *gate) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	number := g.number
	if g.cut != nil {
		number = -1 // it must not outlive the cut
	}
	return &gated{Conn: conn, gate: g, number: number}, nil
}

// close cuts until the returned function has been called, once for each call of close. A gate that stays open is
// not cut.
func (g *gate) close() (reopen func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open {
		return func() {}
	}
	g.cuts++
	if g.cut == nil {
		g.cut = make(chan struct{})
		g.number++
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.cuts--; g.cuts == 0 && g.cut != nil {
				close(g.cut)
				g.cut = nil
			}
		})
	}
}

// stayOpen ends all cuts, and lets no other begin: a connection can be closed only while the gate is open.
func (g *gate) stayOpen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	if g.cut != nil {
		close(g.cut)
		g.cut = nil
	}
}

// pass waits for the end of a cut, and says whether a connection of that number is still good.
func (g *gate) pass(number int) error {
	for {
		g.mu.Lock()
		cut, now := g.cut, g.number
		g.mu.Unlock()
		if cut == nil && number == now {
			return nil
		}
		if cut == nil {
			return errCut
		}
		<-cut
	}
}

type gated struct {
	net.Conn
	gate   *gate
	number int
}

// Read hands on what came before a cut, and nothing that came during it.
func (c *gated) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if cut := c.gate.pass(c.number); cut != nil {
		c.reset()
		return 0, cut
	}
	return n, err
}

func (c *gated) Write(p []byte) (int, error) {
	if cut := c.gate.pass(c.number); cut != nil {
		c.reset()
		return 0, cut
	}
	return c.Conn.Write(p)
}

// reset has the peer learn of it by an RST.
func (c *gated) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Conn.Close()
}
