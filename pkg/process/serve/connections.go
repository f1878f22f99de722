package serve

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// connections limits the open connections of one server. It accepts a connection beyond the limit and
// closes another one instead. If new connections had to wait, the kubelet's probes would wait too.
type connections struct {
	most int

	mu   sync.Mutex
	turn uint64 // number of changes
	open map[net.Conn]standing
}

// standing is the state of a connection.
type standing struct {
	served bool   // a request is being read or answered
	since  uint64 // turn of its last change
}

// before reports whether to close s rather than o: idle connections first, then the one with the oldest
// change.
func (s standing) before(o standing) bool {
	if s.served != o.served {
		return o.served
	}
	return s.since < o.since
}

// follow implements http.Server.ConnState.
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
		last = secure.NetConn() // a TLS close would wait for the client
	}
	_ = last.Close() // the connection is unusable even if this fails
}
