package binder

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/scheduler/lease/leasetest"
)

func requestAt(b *Binder, now time.Time) {
	b.Now = func() time.Time { return now }
	b.RecordRequest()
}

// The machines of a kube-scheduler and its extender are paused, another kube-scheduler leads, and both
// machines resume. The extender reads the Lease again.
func TestAPausedMachineIsASilence(t *testing.T) {
	now := time.Now()
	b := new(Binder)
	requestAt(b, now)
	leads := &b.leads
	leads.recordLead(&lead{leader: "a"}, leads.term)
	requestAt(b, leasetest.AfterPause(now.Add(IdleThreshold/2), time.Minute))
	if _, current := leads.last(leads.term); current {
		t.Error("a minute has passed, in which another may have led, and the Lease is not read again")
	}
}

// A new term begins during a read of the Lease. The next request reads the Lease again.
func TestASilenceDuringTheReadOfTheLease(t *testing.T) {
	now := time.Now()
	b := new(Binder)
	requestAt(b, now)
	leads := &b.leads
	before := leads.term
	requestAt(b, now.Add(IdleThreshold+1))
	leads.recordLead(&lead{leader: "a"}, before)
	if _, current := leads.last(leads.term); current {
		t.Error("the Lease is not read again")
	}
	leads.recordLead(&lead{leader: "b"}, leads.term)
	leads.recordLead(&lead{leader: "a"}, before) // a late response
	if last, current := leads.last(leads.term); !current || last.leader != "b" {
		t.Errorf("leader %q, current %t; want b", last.leader, current)
	}
}

// away is an API server that does not answer.
type away struct{ Cluster }

func (away) Revision(context.Context) (string, error) { return "", errors.New("no answer") }

// TestALeadThatCannotBegin covers a process that leads and cannot read the API server's resource version.
func TestALeadThatCannotBegin(t *testing.T) {
	b := Binder{Cluster: away{}, Reads: new(singleflight.Group), Now: time.Now, Leads: func() (time.Time, bool) { return time.Unix(0, 0), true }}
	if lead, err := b.currentLead(t.Context()); lead != nil || err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("lead %v, %v", lead, err)
	}
	if last := b.leads.lead; last != nil {
		t.Errorf("%+v has begun", last)
	}
}

// TestABindThatNamesTooLittle is refused before anything is read.
func TestABindThatNamesTooLittle(t *testing.T) {
	for _, tc := range []struct {
		ref  placement.PodRef
		node string
	}{
		{placement.PodRef{Namespace: "ns", UID: "u"}, "n"}, {placement.PodRef{Name: "p", UID: "u"}, "n"},
		{placement.PodRef{Namespace: "ns", Name: "p"}, "n"}, {placement.PodRef{Namespace: "ns", Name: "p", UID: "u"}, ""},
	} {
		b := Binder{Cluster: away{}, Reads: new(singleflight.Group), Now: time.Now, Leads: func() (time.Time, bool) { return time.Unix(0, 0), true }, Missing: func() string { return "" }}
		if err := b.prepare(t.Context(), t.Context(), tc.ref, tc.node); err == nil || !strings.HasPrefix(err.Error(), "the request must name") {
			t.Errorf("pod %+v to node %q: %v", tc.ref, tc.node, err)
		}
	}
}
