package binder

import (
	"testing"
	"time"

	"github.com/gpumem/gpumem/pkg/scheduler/lease/leasetest"
)

// The machines of a kube-scheduler and its extender are paused, another kube-scheduler leads, and both
// machines resume. The extender reads the Lease again.
func TestAPausedMachineIsASilence(t *testing.T) {
	var turn turn
	now := time.Now()
	turn.ask(now)
	_, silences, _ := turn.last()
	turn.found(&lead{leader: "a"}, silences)
	turn.ask(leasetest.AfterPause(now.Add(Silence/2), time.Minute))
	if _, _, current := turn.last(); current {
		t.Error("a minute has passed, in which another may have led, and the Lease is not read again")
	}
}

// If a request follows another silence during a read of the Lease, the Lease is read again.
func TestASilenceDuringTheReadOfTheLease(t *testing.T) {
	var turn turn
	now := time.Now()
	turn.ask(now)
	_, silences, _ := turn.last()
	turn.ask(now.Add(Silence + 1))
	turn.found(&lead{leader: "a"}, silences)
	if _, _, current := turn.last(); current {
		t.Error("the Lease is not read again")
	}
	_, silences, _ = turn.last()
	turn.found(&lead{leader: "b"}, silences)
	turn.found(&lead{leader: "a"}, silences-1) // a late response
	if last, _, current := turn.last(); !current || last.leader != "b" {
		t.Errorf("leader %q, current %t; want b", last.leader, current)
	}
}
