package lease

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gpumem/gpumem/pkg/scheduler/lease/leasetest"
)

// server is a lock at the API server. Each write takes some time, and may fail.
type server struct {
	resourcelock.Interface
	takes func()
	err   error
	has   string // holder of the Lease
}

func (*server) Identity() string { return "a" }

func (s *server) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return s.Update(ctx, r)
}

func (s *server) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	if s.takes(); s.err == nil {
		s.has = r.HolderIdentity
	}
	return s.err
}

// A process may send bindings for nine of the fifteen seconds after it sent the last renewal.
func TestWhenAProcessDecidesAlone(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	type step struct {
		write   string // the holder to write: "a", or "" to release the Lease; "none": no write
		takes   time.Duration
		fails   bool
		turns   int // the written number of transitions
		creates bool
		after   time.Duration // time that passes after the write
		since   time.Duration // start of the lead, relative to the begin of the test; -1: the process does not lead
		alone   bool
	}
	own := func(after time.Duration, alone bool) step { return step{write: "a", after: after, alone: alone} }
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"before it has the Lease", []step{{write: "none", since: -1}}},
		{"until the last seconds", []step{own(9*time.Second-1, true)}},
		{"not in the last seconds", []step{own(9*time.Second, false)}},
		{"renewals count from when they were sent", []step{{write: "a", takes: 4 * time.Second, after: 5 * time.Second}}},
		{"a renewal does not begin a lead", []step{own(2*time.Second, true), own(8*time.Second, true)}},
		{"a renewal that failed is none", []step{own(5*time.Second, true), {write: "a", fails: true, after: 4 * time.Second}}},
		{"one that was frozen and has it still", []step{own(14*time.Second, false), own(0, true)}},
		{"the Lease was deleted, and is created", []step{own(time.Second, true), {write: "a", creates: true, since: time.Second, alone: true}}},
		{"one that was frozen, and another has had it meanwhile and given it back", []step{
			own(time.Minute, false), {write: "a", turns: 2, since: time.Minute, alone: true},
		}},
		{"given back", []step{own(0, true), {write: "", since: -1}}},
		{"given back, and taken again", []step{own(time.Second, true), {write: "", since: -1}, {write: "a", since: time.Second, alone: true}}},
		{"to give it back has failed", []step{own(0, true), {write: "", fails: true, since: -1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := begin
			api := &server{}
			config := &leaderelection.LeaderElectionConfig{Lock: api, LeaseDuration: 15 * time.Second, RetryPeriod: 2 * time.Second}
			lock, err := Watch(config, func() time.Time { return now }, func() {})
			if err != nil || config.Lock != resourcelock.Interface(lock) {
				t.Fatalf("Watch: %v, the lock is %v", err, config.Lock)
			}
			for i, s := range tc.steps {
				api.takes, api.err = func() { now = now.Add(s.takes) }, nil
				if s.fails {
					api.err = errors.New("etcd has no leader")
				}
				if s.write != "none" {
					write := lock.Update
					if s.creates {
						write = lock.Create
					}
					if err := write(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: s.write, LeaderTransitions: s.turns}); !errors.Is(err, api.err) {
						t.Errorf("step %d: %v, want %v", i, err, api.err)
					}
				}
				now = now.Add(s.after)
				want := time.Time{}
				if s.since >= 0 {
					want = begin.Add(s.since)
				}
				since, alone := lock.Leads()
				if diff := cmp.Diff([]any{want, s.alone}, []any{since, alone}); diff != "" {
					t.Errorf("step %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

// shared is a Lease at the API server that several processes use.
type shared struct {
	resourcelock.Interface // nil: the test calls no other method
	record                 *resourcelock.LeaderElectionRecord
	version, read          int // the version of the Lease, and the version that this process has read
	frozen                 func()
}

func (*shared) Identity() string   { return "a" }
func (*shared) Describe() string   { return "lease" }
func (*shared) RecordEvent(string) {}

func (s *shared) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if s.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{}, "lease")
	}
	s.read = s.version
	record := *s.record
	return &record, []byte(strconv.Itoa(s.version)), nil
}

func (s *shared) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return s.Update(ctx, r)
}

func (s *shared) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	if s.read != s.version {
		return errors.New("it has been written since")
	}
	s.record, s.version = &r, s.version+1
	s.read = s.version
	s.frozen()
	return nil
}

// While a process is frozen, another one acquires the Lease and releases it. client-go then renews the Lease
// as usual, but this process does not know the other process's bindings.
func TestALeadIsAnotherOnceOthersHaveLed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		api := &shared{}
		config := leaderelection.LeaderElectionConfig{
			Lock: api, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {
				if ctx.Err() == nil {
					t.Error("it has stopped to lead")
				}
			}},
		}
		lock, err := Watch(&config, time.Now, func() {})
		if err != nil {
			t.Fatal(err)
		}
		var before time.Time
		api.frozen = func() {
			if api.version != 3 {
				return
			}
			before, _ = lock.Leads()
			time.Sleep(time.Minute)
			api.record = &resourcelock.LeaderElectionRecord{LeaderTransitions: api.record.LeaderTransitions + 1, LeaseDurationSeconds: 1}
			api.version += 2 // another process has acquired and released the Lease
		}
		elector, err := leaderelection.NewLeaderElector(config)
		if err != nil {
			t.Fatal(err)
		}
		go elector.Run(ctx)
		time.Sleep(70 * time.Second)
		since, alone := lock.Leads()
		if !alone || !since.After(before) || before.IsZero() {
			t.Errorf("it decides alone: %t; it leads since %v, and it did so since %v before another led", alone, since, before)
		}
		cancel()
	})
}

// If the wall clock and the monotonic clock differ, Passed uses the one that has advanced further.
func TestAPausedMachineDoesNotDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		later func(time.Time) time.Time
		want  bool
	}{
		"paused":                     {func(now time.Time) time.Time { return leasetest.AfterPause(now.Add(time.Second), time.Minute) }, false},
		"without a monotonic clock":  {func(now time.Time) time.Time { return now.Round(0).Add(time.Minute) }, false},
		"set back in the meantime":   {func(now time.Time) time.Time { return leasetest.AfterPause(now.Add(time.Minute), -time.Hour) }, false},
		"set back, and in good time": {func(now time.Time) time.Time { return leasetest.AfterPause(now.Add(time.Second), -time.Hour) }, true},
	} {
		t.Run(name, func(t *testing.T) { testLater(t, tc.later, tc.want) })
	}
}

func testLater(t *testing.T, later func(time.Time) time.Time, want bool) {
	now := time.Now()
	lock, err := Watch(&leaderelection.LeaderElectionConfig{
		Lock: &server{takes: func() {}}, LeaseDuration: 15 * time.Second, RetryPeriod: 2 * time.Second,
	}, func() time.Time { return now }, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); err != nil {
		t.Fatal(err)
	}
	now = later(now)
	if _, alone := lock.Leads(); alone != want {
		t.Errorf("it decides alone: %t, want %t", alone, want)
	}
}

// A process stops sending bindings, waits until all have been answered, and then releases the Lease.
func TestTheLeaseIsGivenBackWhenAllIsAnswered(t *testing.T) {
	api, drained := &server{takes: func() {}}, false
	config := &leaderelection.LeaderElectionConfig{Lock: api, LeaseDuration: 15 * time.Second, RetryPeriod: 2 * time.Second}
	var lock *Lock
	lock, err := Watch(config, time.Now, func() {
		if _, alone := lock.Leads(); alone || api.has != "a" {
			t.Errorf("it waits while it still sends (%t), and %q has the Lease", alone, api.has)
		}
		drained = true
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []string{"a", ""} {
		if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: who}); err != nil {
			t.Fatal(err)
		}
		if drained != (who == "") || api.has != who {
			t.Errorf("%q has the Lease, and all is answered: %t", api.has, drained)
		}
	}
}

func TestTimesThatLeaveNoneForSendingAreRefused(t *testing.T) {
	config := &leaderelection.LeaderElectionConfig{Lock: &server{}, LeaseDuration: 8 * time.Second, RetryPeriod: 2 * time.Second}
	if _, err := Watch(config, time.Now, func() {}); err == nil {
		t.Error("8 s are taken")
	}
}

// replica is one of several processes that compete for one Lease.
type replica struct {
	resourcelock.Interface // nil: the test calls no other method
	lease                  *oneLease
	id                     string
	knows                  int // the version that the replica has read
}

// oneLease is a Lease at the API server that can be deleted.
type oneLease struct {
	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int
}

func (r *replica) Identity() string   { return r.id }
func (*replica) Describe() string     { return "lease" }
func (*replica) RecordEvent(_ string) {}

func (r *replica) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r.lease.mu.Lock()
	defer r.lease.mu.Unlock()
	if r.lease.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{}, "lease")
	}
	r.knows = r.lease.version
	record := *r.lease.record
	return &record, []byte(strconv.Itoa(r.knows)), nil
}

func (r *replica) Create(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	r.lease.mu.Lock()
	defer r.lease.mu.Unlock()
	if r.lease.record != nil {
		return apierrors.NewAlreadyExists(schema.GroupResource{}, "lease")
	}
	r.write(&record)
	return nil
}

func (r *replica) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	r.lease.mu.Lock()
	defer r.lease.mu.Unlock()
	switch {
	case r.lease.record == nil:
		return apierrors.NewNotFound(schema.GroupResource{}, "lease")
	case r.knows != r.lease.version:
		return apierrors.NewConflict(schema.GroupResource{}, "lease", errors.New("it has changed"))
	}
	r.write(&record)
	return nil
}

func (r *replica) write(record *resourcelock.LeaderElectionRecord) {
	r.lease.version++
	r.lease.record, r.knows = record, r.lease.version
}

// The Lease is deleted, and either replica creates it again first. The two replicas never decide at the same
// time, and soon one of them does.
func TestADeletedLeaseHasOneLeader(t *testing.T) {
	for try := range 20 {
		deleted := time.Duration(try) * 200 * time.Millisecond
		t.Run(deleted.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testDeleted(t, deleted) })
		})
	}
}

func testDeleted(t *testing.T, deleted time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	lease := &oneLease{}
	run := func(id string) *Lock {
		config := leaderelection.LeaderElectionConfig{
			Lock: &replica{lease: lease, id: id}, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
		}
		lock, err := Watch(&config, time.Now, func() {})
		if err != nil {
			t.Fatal(err)
		}
		elector, err := leaderelection.NewLeaderElector(config)
		if err != nil {
			t.Fatal(err)
		}
		go elector.Run(ctx)
		time.Sleep(time.Second)
		return lock
	}
	first, other := run("first"), run("other")
	if _, alone := first.Leads(); !alone {
		t.Error("the first has made the Lease, and does not decide")
	}
	time.Sleep(9*time.Second + deleted)
	lease.mu.Lock()
	lease.record = nil
	lease.version++
	lease.mu.Unlock()
	const step = 50 * time.Millisecond
	decides := false
	for range 25 * time.Second / step {
		time.Sleep(step)
		_, byFirst := first.Leads()
		_, byOther := other.Leads()
		if byFirst && byOther {
			t.Fatal("both decide")
		}
		decides = byFirst || byOther
	}
	if !decides {
		t.Error("nobody decides in the end")
	}
	cancel()
	synctest.Wait()
}
