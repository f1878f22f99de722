package lease

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gpumem/gpumem/pkg/scheduler/controller"
)

// margin is the time that a binding may need to reach the API server, plus the difference between the clocks
// of the processes and of the API server.
const margin = time.Second

// Lock is the lock of a leader election. It records the start of this process's lead, and the time until
// which the process may send bindings.
type Lock struct {
	resourcelock.Interface
	now      func() time.Time
	valid    time.Duration // time after a renewal for which sending is allowed
	duration time.Duration // of the Lease
	drain    func()

	mu             sync.Mutex
	since, renewed time.Time // start of the lead and last renewal; zero while this process does not hold the Lease
	turns          int       // the Lease's number of transitions at the last renewal
	other          bool      // another process held the Lease at the last read
	from           time.Time // sending is allowed from this time on
}

// Watch replaces the lock of the configuration with a Lock. Before the Lock releases the Lease, Leads stops
// allowing sending, and the Lock calls drain. The function drain must return only when all bindings have been
// answered or can no longer land. Watch returns an error if the configured durations leave no time for sending.
func Watch(config *leaderelection.LeaderElectionConfig, now func() time.Time, drain func()) (*Lock, error) {
	valid := config.LeaseDuration - controller.BindDeadline - margin
	if valid <= config.RetryPeriod {
		return nil, fmt.Errorf("leaderElection.leaseDuration: %s, want more than %s: a binding may take %s, and the Lease is renewed every %s",
			config.LeaseDuration, controller.BindDeadline+margin+config.RetryPeriod, controller.BindDeadline, config.RetryPeriod)
	}
	l := &Lock{Interface: config.Lock, now: now, valid: valid, duration: config.LeaseDuration, drain: drain}
	config.Lock = l
	return l, nil
}

// Get reads the Lease. If another process holds the Lease, for example after somebody deleted it, Get records
// that this process does not lead.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.mu.Lock()
		l.other = record.HolderIdentity != "" && record.HolderIdentity != l.Identity()
		if l.other {
			l.since, l.renewed = time.Time{}, time.Time{}
		}
		l.mu.Unlock()
	}
	return record, raw, err
}

// Create writes a new Lease, and a new lead begins. If another process held the previous Lease, somebody has
// deleted that Lease, and its holder may not have noticed yet. The holder stops sending when the duration of the
// Lease has passed, so this process sends nothing until then.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	if l.other {
		l.from = l.now().Add(l.duration)
	}
	l.since, l.renewed = time.Time{}, time.Time{}
	l.mu.Unlock()
	return l.write(ctx, record, l.Interface.Create)
}

// Update renews, acquires or releases the Lease.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.Interface.Update)
}

func (l *Lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, send func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	own := record.HolderIdentity == l.Identity()
	if !own {
		l.set(time.Time{}, 0)
		l.drain()
	}
	sent := l.now()
	err := send(ctx, record)
	if own && err == nil {
		l.set(sent, record.LeaderTransitions)
	}
	return err
}

// set records a renewal, or a release with a zero time. If the number of transitions has changed, other
// processes have held the Lease, so a new lead begins.
func (l *Lock) set(renewed time.Time, turns int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if renewed.IsZero() || l.renewed.IsZero() || turns != l.turns {
		l.since = renewed
	}
	l.renewed, l.turns = renewed, turns
}

// Leads returns the time since which this process leads, and whether a binding that it sends at this moment
// is sure to land or fail before another process can lead.
func (l *Lock) Leads() (since time.Time, alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	return l.since, !l.renewed.IsZero() && Passed(l.renewed, now) < l.valid && !now.Before(l.from)
}

// Passed returns the time between two readings of the clock. It returns the longer of two measurements,
// because the monotonic clock stops while a virtual machine is paused, and the wall clock may be set back.
func Passed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// LeadAlone returns a Leads function for a process that runs without leader election.
func LeadAlone(since time.Time) func() (time.Time, bool) {
	return func() (time.Time, bool) { return since, true }
}
