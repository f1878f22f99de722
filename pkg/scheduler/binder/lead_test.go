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

// led is an API server with a leader. It counts the reads of the leader.
type led struct {
	Cluster
	leader string
	reads  int
	during func() // runs once, during a read of the leader; nil: nothing runs
}

func (l *led) Leader(context.Context) (string, error) {
	leader, during := l.leader, l.during
	l.reads, l.during = l.reads+1, nil
	if during != nil {
		during()
	}
	return leader, nil
}

func (l *led) Revision(context.Context) (string, error) { return "1", nil }

// follower is a Binder that takes no part in the election.
type follower struct {
	*Binder
	*led
}

func newFollower() follower {
	api := &led{leader: "a"}
	return follower{&Binder{Cluster: api, Reads: new(singleflight.Group)}, api}
}

func (f follower) requestAt(now time.Time) {
	f.Now = func() time.Time { return now }
	f.RecordRequest()
}

// wantLead checks the current leader, and the number of times that the leader was read so far.
func (f follower) wantLead(t *testing.T, leader string, reads int) {
	t.Helper()
	current, err := f.currentLead(t.Context())
	if err != nil || current.leader != leader || f.reads != reads {
		t.Errorf("lead %+v, %v; the Lease was read %d times; want %s and %d", current, err, f.reads, leader, reads)
	}
}

// The machines of a kube-scheduler and its extender are paused, another kube-scheduler leads, and both
// machines resume. The extender reads the Lease again.
func TestAPausedMachineIsASilence(t *testing.T) {
	f, now := newFollower(), time.Now()
	f.requestAt(now)
	f.wantLead(t, "a", 1)
	f.requestAt(now.Add(IdleThreshold / 2))
	f.wantLead(t, "a", 1)
	f.leader = "b"
	f.requestAt(leasetest.AfterPause(now.Add(IdleThreshold/2), time.Minute))
	f.wantLead(t, "b", 2)
}

// A new term begins during a read of the Lease. The next request reads the Lease again, unless the Lease was
// read in the new term already: then the late response changes nothing.
func TestASilenceDuringTheReadOfTheLease(t *testing.T) {
	for name, readAgain := range map[string]bool{"the new term has no read yet": false, "a late response": true} {
		t.Run(name, func(t *testing.T) {
			f, now := newFollower(), time.Now()
			f.requestAt(now)
			f.during = func() {
				f.led.leader = "b"
				f.requestAt(now.Add(IdleThreshold + 1))
				if readAgain {
					f.wantLead(t, "b", 2)
				}
			}
			if _, err := f.currentLead(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.wantLead(t, "b", 2)
		})
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
	if last := b.lead.Load(); last != nil {
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
