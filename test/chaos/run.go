package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpumem/gpumem/test/fakenvml"
)

const (
	placesPerNode = 12 // pods at once
	// stormTime is how long faults go on between two rests.
	stormTime = 100 * time.Second
)

// A config has the choices of the command line.
type config struct {
	seed     uint64
	duration time.Duration // of TestChaos, rests included
	pods     int           // of TestFailover
	log      io.Writer
}

type storms struct {
	*bench
	workload *workload
	faults   *faults
	refused  int // writes of the tenant
}

// runChaos starts a cluster, lets faults loose on it, and removes it.
func runChaos(ctx context.Context, c config) (text string, err error) {
	type models = []func(string) fakenvml.GPU
	nodes, err := nodesWith(models{fakenvml.T4, fakenvml.T4}, models{fakenvml.A100_80GB, fakenvml.T4}, models{fakenvml.T4, fakenvml.T4, fakenvml.T4, fakenvml.T4})
	if err != nil {
		return "", err
	}
	var result string
	text, err = run(ctx, c.seed, c.log, nodes, func(ctx context.Context, b *bench) error {
		fmt.Fprintf(b.log, "chaos: seed %d, %s, %d nodes with %d GPUs\n", c.seed, c.duration, len(nodes), len(b.gpus))
		s := &storms{bench: b, workload: &workload{bench: b}, faults: newFaults(b)}
		err := s.run(ctx, c.duration)
		pods, faults := b.tracker.count().ran, s.faults.total
		result = fmt.Sprintf("result: chaos pods=%d faults=%d violations=%d leaked=%d waiting-though-fits=%d forgeries-refused=%d",
			pods, faults, b.watcher.count(), b.watcher.count("leaked"), b.watcher.count("idle"), s.refused)
		if err == nil && (pods == 0 || faults == 0 || s.refused == 0) {
			err = errors.New("nothing was tested: " + result)
		}
		return err
	})
	return text + result, err
}

func (s *storms) run(ctx context.Context, duration time.Duration) error {
	group, ctx := errgroup.WithContext(ctx)
	beside, done := context.WithCancel(ctx)
	group.Go(func() error { return s.faults.revive(beside) })
	group.Go(func() error {
		for sleep(beside, 10*time.Second); beside.Err() == nil; sleep(beside, 10*time.Second) {
			c := s.tracker.count()
			faults, _ := s.faults.count()
			fmt.Fprintf(s.log, "pods: %d created, %d bound, %d ran, %d refused; faults %d; violations %d\n", s.workload.created.Load(), c.bound, c.ran, c.refused, faults, s.watcher.count())
		}
		return nil
	})
	group.Go(func() error {
		defer done()
		if err := s.runStorms(ctx, duration); err != nil {
			return err
		}
		return s.checkLeaks(ctx)
	})
	return group.Wait()
}

func (s *storms) runStorms(ctx context.Context, duration time.Duration) (err error) {
	working, stop := context.WithCancel(ctx)
	var work errgroup.Group
	work.Go(func() (err error) { s.refused, err = s.forge(working); return err })
	work.Go(func() error { s.workload.run(working, placesPerNode*len(s.cluster.Nodes())); return nil })
	defer func() { stop(); err = errors.Join(err, work.Wait()) }()
	round := uint64(0)
	for end := time.Now().Add(duration); time.Now().Before(end); round++ {
		if err := s.storm(ctx, round, min(stormTime, time.Until(end))); err != nil {
			return err
		}
	}
	return nil
}

// storm kills parts for a time, and then checks at rest.
func (s *storms) storm(ctx context.Context, round uint64, d time.Duration) error {
	storm, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if err := s.faults.run(storm, round); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	start := time.Now()
	s.workload.calls.Lock()
	defer s.workload.calls.Unlock()
	_, outage := s.faults.count()
	if err := s.awaitRunning(ctx, start, outage); err != nil {
		return err
	}
	if err := s.cluster.WaitReady(ctx); err != nil {
		return err
	}
	if err := s.checkRest(ctx); err != nil {
		return err
	}
	fmt.Fprintf(s.log, "at rest after %.1f s: %d violations\n", time.Since(start).Seconds(), s.watcher.count())
	return nil
}
