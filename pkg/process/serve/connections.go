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
	limit int

	mu      sync.Mutex
	changes uint64 // number of changes
	open    map[net.Conn]connectionState
}

// connectionState is the state of a connection.
type connectionState struct {
	served     bool   // a request is being read or answered
	lastChange uint64 // value of changes at its last change
}

// closesBefore reports whether to close s rather than o: idle connections first, then the one with the oldest
// change.
func (s connectionState) closesBefore(o connectionState) bool {
	if s.served != o.served {
		return o.served
	}
	return s.lastChange < o.lastChange
}

// trackState implements http.Server.ConnState.
func (c *connections) trackState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(c.open, conn)
		return
	}
	c.changes++
	c.open[conn] = connectionState{served: state == http.StateActive, lastChange: c.changes}
	if len(c.open) <= c.limit {
		return
	}
	var victim net.Conn
	for other, s := range c.open {
		if other != conn && (victim == nil || s.closesBefore(c.open[victim])) {
			victim = other
		}
	}
	delete(c.open, victim)
	if secure, ok := victim.(*tls.Conn); ok {
		victim = secure.NetConn() // a TLS close would wait for the client
	}
	_ = victim.Close() // the connection is unusable even if this fails
}
