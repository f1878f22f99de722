package nri

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestHoldReportsWhetherContainersWait verifies that the plugin tries again only while a container lacks its limit,
// and that it reconnects first.
func TestHoldReportsWhetherContainersWait(t *testing.T) {
	c := &fakeContainers{fail: errors.New("busy")}
	p := New("", c, zap.NewNop())
	if p.setWaitingLimits(t.Context(), nil) {
		t.Error("a container waits, and none runs")
	}
	p.waiting = []waiting{{pod: sandbox, container: container()}}
	if !p.setWaitingLimits(t.Context(), nil) {
		t.Error("no container waits, although its limit could not be set")
	}
	closed := make(chan struct{})
	close(closed)
	if asked := len(c.asked); !p.setWaitingLimits(t.Context(), closed) || len(c.asked) != asked {
		t.Errorf("after the connection was lost: calls %v", c.asked[asked:])
	}
	c.fail = nil
	if p.setWaitingLimits(t.Context(), nil) || len(p.waiting) != 0 {
		t.Error("a container waits that has its limit")
	}
}

// TestMessagesOfTheLibraryAreForPeopleWhoDebug verifies that the logger records all messages of NRI's library,
// at level debug.
func TestMessagesOfTheLibraryAreForPeopleWhoDebug(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	l := logger{zap.New(core).Sugar()}
	for i, log := range []func(context.Context, string, ...any){l.Debugf, l.Infof, l.Warnf, l.Errorf} {
		log(t.Context(), "line %d", i)
	}
	for i, line := range logs.All() {
		if want := fmt.Sprint("line ", i); line.Message != want || line.Level != zap.DebugLevel {
			t.Errorf("%s: %q, want %q", line.Level, line.Message, want)
		}
	}
	if logs.Len() != 4 {
		t.Errorf("%d lines of 4", logs.Len())
	}
}
