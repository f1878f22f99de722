package serve

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// connections are those of one server. One too many is served all the same, and another is closed
// for it: a limit at which new ones wait would keep out the kubelet, too.
type connections struct {
	most int

	mu   sync.Mutex
	turn uint64 // counts changes
	open map[net.Conn]standing
}

// standing is how a connection is.
type standing struct {
	served bool   // a request is read or answered
	since  uint64 // the turn of its last change
}

// before reports whether a connection is closed rather than another: one on which nothing
// happens, and of those the one on which nothing has for the longest.
func (s standing) before(o standing) bool {
	if s.served != o.served {
		return o.served
	}
	return s.since < o.since
}

// follow is an http.Server's ConnState.
func (c *connections) follow(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(c.open, conn)
		return
	}
	c.turn++
	c.open[conn] = standing{served: state == http.StateActive, since: c.turn}
	if len(c.open) <= c.most {
		return
	}
	var last net.Conn
	for other, s := range c.open {
		if other != conn && (last == nil || s.before(c.open[last])) {
			last = other
		}
	}
	delete(c.open, last)
	if secure, ok := last.(*tls.Conn); ok {
		last = secure.NetConn() // to take leave of its client could take time
	}
	_ = last.Close() // it is gone either way
}
