package nri

import (
	"errors"
	"testing"

	"go.uber.org/zap"
)

// TestHoldReportsWhetherContainersWait verifies that the plugin tries again only while a container lacks its limit,
// and that it reconnects first.
func TestHoldReportsWhetherContainersWait(t *testing.T) {
	c := &fakeContainers{fail: errors.New("busy")}
	p := New("", c, zap.NewNop())
	if p.hold(t.Context(), nil) {
		t.Error("a container waits, and none runs")
	}
	p.waiting = []waiting{{pod: sandbox, container: container()}}
	if !p.hold(t.Context(), nil) {
		t.Error("no container waits, although its limit could not be set")
	}
	closed := make(chan struct{})
	close(closed)
	if asked := len(c.asked); !p.hold(t.Context(), closed) || len(c.asked) != asked {
		t.Errorf("after the connection was lost: calls %v", c.asked[asked:])
	}
	c.fail = nil
	if p.hold(t.Context(), nil) || len(p.waiting) != 0 {
		t.Error("a container waits that has its limit")
	}
}
