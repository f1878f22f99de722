package binder

import (
	"testing"
	"time"

	"github.com/gpumem/gpumem/pkg/scheduler/lease/leasetest"
)

// The machines of a kube-scheduler and its extender are paused, another kube-scheduler leads, and both
// machines resume. The extender reads the Lease again.
func TestAPausedMachineIsASilence(t *testing.T) {
	var leads leadTracker
	now := time.Now()
	leads.recordRequest(now)
	_, term, _ := leads.last()
	leads.recordLead(&lead{leader: "a"}, term)
	leads.recordRequest(leasetest.AfterPause(now.Add(IdleThreshold/2), time.Minute))
	if _, _, current := leads.last(); current {
		t.Error("a minute has passed, in which another may have led, and the Lease is not read again")
	}
}

// If a request follows another silence during a read of the Lease, the Lease is read again.
func TestASilenceDuringTheReadOfTheLease(t *testing.T) {
	var leads leadTracker
	now := time.Now()
	leads.recordRequest(now)
	_, term, _ := leads.last()
	leads.recordRequest(now.Add(IdleThreshold + 1))
	leads.recordLead(&lead{leader: "a"}, term)
	if _, _, current := leads.last(); current {
		t.Error("the Lease is not read again")
	}
	_, term, _ = leads.last()
	leads.recordLead(&lead{leader: "b"}, term)
	leads.recordLead(&lead{leader: "a"}, term-1) // a late response
	if last, _, current := leads.last(); !current || last.leader != "b" {
		t.Errorf("leader %q, current %t; want b", last.leader, current)
	}
}
