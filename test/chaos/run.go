package chaos

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// placesPerNode is how many pods there are at once.
	placesPerNode = 12
	// stormTime is how long faults go on between two rests.
	stormTime = 100 * time.Second
)

// RunConfig describes a run.
type RunConfig struct {
	Config
	Duration time.Duration // of the chaos, rests included
	Nodes    int
}

// Run starts a cluster, lets chaos loose on it, and takes it away.
func Run(ctx context.Context, config RunConfig) (report Report, err error) {
	nodes, err := mixedNodes(config.Nodes)
	if err != nil {
		return Report{}, err
	}
	err = withBench(ctx, config.Config, nodes, func(ctx context.Context, b *bench) (bool, error) {
		fmt.Fprintf(b.log, "chaos: seed %d, %s, %d nodes with %d GPUs, %d pods at once\n",
			config.Seed, config.Duration, config.Nodes, len(b.devices), placesPerNode*config.Nodes)
		r := &run{
			bench:    b,
			workload: &workload{client: b.client, tracker: b.tracker, nodes: b.cluster.Nodes(), seed: config.Seed},
			faults:   newFaults(b, config.Seed),
		}
		if r.tenant, err = newTenant(ctx, b, config.Seed); err != nil {
			return false, err
		}
		leaked, err := r.all(ctx, config.Duration)
		report = Report{
			Seed: config.Seed, Created: int(r.workload.created.Load()), Pods: b.tracker.count().ran,
			Faults: r.faults.total(), Kinds: r.faults.String(), Refused: b.tracker.refusals(),
			Duration: config.Duration, Corrected: b.tracker.count().corrected, Leaked: leaked, Findings: b.watcher.findings(), Idle: b.watcher.count(idle),
		}
		report.Forged, report.Harmed = r.tenant.result()
		return report.OK() && err == nil, err
	})
	return report, err
}

type run struct {
	*bench
	workload *workload
	faults   *faults
	tenant   *tenant

	exchanged int // pairs of pods
}

// all is the whole of a run on a cluster that stands. It returns the units
// leaked.
func (r *run) all(ctx context.Context, duration time.Duration) (leaked int64, err error) {
	group, ctx := errgroup.WithContext(ctx)
	beside, done := context.WithCancel(ctx)
	group.Go(func() error { return r.faults.revive(beside) })
	group.Go(func() error {
		r.progress(beside, func() string {
			return fmt.Sprintf("; %d created; faults %d", r.workload.created.Load(), r.faults.total())
		})
		return nil
	})
	group.Go(func() error {
		defer done()
		if err := r.storms(ctx, duration); err != nil {
			return err
		}
		fmt.Fprintln(r.log, "delete all, and fill each GPU")
		leaked, err = r.leaks(ctx)
		return err
	})
	err = group.Wait()
	return leaked, err
}

// storms runs the workload, with faults and with rests between them.
func (r *run) storms(ctx context.Context, duration time.Duration) error {
	working, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { r.tenant.run(working) })
	work.Go(func() { r.workload.run(working, placesPerNode*len(r.cluster.Nodes())) })
	defer work.Wait()
	defer stop()
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if err := r.storm(ctx, min(stormTime, time.Until(end))); err != nil {
			return err
		}
	}
	return nil
}

// storm kills parts for a time, and then checks the rest.
func (r *run) storm(ctx context.Context, d time.Duration) error {
	storm, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var exchanges sync.WaitGroup
	exchanges.Go(func() { r.exchanges(storm) })
	err := r.faults.run(storm)
	exchanges.Wait()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	start, violations := time.Now(), r.watcher.count()
	// Nothing more is made or deleted; what was begun goes on.
	resume := r.workload.pause()
	defer resume()
	if err := r.awaitFitting(ctx, start, r.faults.lastOutage()); err != nil {
		return err
	}
	if err := r.healthy(ctx); err != nil {
		return err
	}
	if err := r.watcher.rest(ctx); err != nil {
		return err
	}
	fmt.Fprintf(r.log, "at rest after %.1f s, with %d pods: %d violations\n", time.Since(start).Seconds(), r.tracker.count().exist, r.watcher.count())
	if r.watcher.count() > violations {
		r.stack.SaveLogs(ctx, r.cluster, namespace) // while the pods in question are there
	}
	return nil
}
