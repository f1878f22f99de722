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

// margin is for the way of a binding to the API server, and for clocks that do not run alike.
const margin = time.Second

// Lock is the lock of leader election, which knows since when this process has the Lease, and for
// how long it may send.
type Lock struct {
	resourcelock.Interface
	now      func() time.Time
	valid    time.Duration // after each renewal
	duration time.Duration // of the Lease
	drain    func()

	mu             sync.Mutex
	since, renewed time.Time // zero where this process has not the Lease
	turns          int       // how often it had changed hands then
	other          bool      // the last read of the Lease has shown that another has it
	from           time.Time // nothing may be sent before
}

// Watch puts a Lock in the place of the configuration's. Drain returns when all that was sent is
// answered; it is called when Leads says no more that something may be sent. It returns an error
// where the times of the configuration leave none for sending.
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

// Get reads the Lease. After a deletion another may have made it again while this process had it.
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

// Create writes a new Lease. If another process had the one before, somebody has deleted that under it, and it may
// not have noticed yet. It sends nothing any more when the duration of the Lease has passed.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	if l.other {
		l.from = l.now().Add(l.duration)
	}
	l.mu.Unlock()
	return l.write(record, true, func() error { return l.Interface.Create(ctx, record) })
}

// Update renews the Lease, takes it, or gives it back.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, false, func() error { return l.Interface.Update(ctx, record) })
}

func (l *Lock) write(record resourcelock.LeaderElectionRecord, created bool, send func() error) error {
	own := record.HolderIdentity == l.Identity()
	if !own {
		l.set(time.Time{}, 0, true)
		l.drain()
	}
	sent := l.now()
	err := send()
	if own && err == nil {
		l.set(sent, record.LeaderTransitions, created)
	}
	return err
}

// set records a renewal, or that the Lease is given back. Where it was created, or has changed hands,
// others may have had it: a lead begins.
func (l *Lock) set(renewed time.Time, turns int, begins bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if begins || l.renewed.IsZero() || turns != l.turns {
		l.since = renewed
	}
	l.renewed, l.turns = renewed, turns
}

// Leads returns since when this process leads, and whether what it sends now lands before another
// can lead.
func (l *Lock) Leads() (since time.Time, alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	return l.since, !l.renewed.IsZero() && Passed(l.renewed, now) < l.valid && !now.Before(l.from)
}

// Passed returns how much time has passed between two readings of the clock. The monotonic clock stands
// still while a virtual machine is paused, and the time of the day may be set back.
func Passed(since, now time.Time) time.Duration {
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// Alone is Leads of a process that shares with none.
func Alone(since time.Time) func() (time.Time, bool) {
	return func() (time.Time, bool) { return since, true }
}
