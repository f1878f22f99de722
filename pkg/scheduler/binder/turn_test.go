package binder

import (
	"testing"
	"time"

	"github.com/gpumem/gpumem/pkg/scheduler/lease/leasetest"
)

// The machine of a kube-scheduler and its extender is paused, another leads meanwhile, and both go on:
// the Lease is read again.
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

// A question that comes while the Lease is read, after another silence, has it read again.
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
	turn.found(&lead{leader: "a"}, silences-1) // an answer that was long on its way
	if last, _, current := turn.last(); !current || last.leader != "b" {
		t.Errorf("leader %q, current %t; want b", last.leader, current)
	}
}
