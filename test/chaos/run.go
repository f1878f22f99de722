package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Config describes a run.
type Config struct {
	Name     string        // of the cluster
	Duration time.Duration // of the chaos, rests included
	Seed     uint64
	Nodes    int
	Places   int  // how many pods there are at once; 0 means 12 a node
	KeepLogs bool // also when all is well
	Log      io.Writer
}

// stormTime is how long faults go on between two rests.
const stormTime = 100 * time.Second

// Run starts a cluster, lets chaos loose on it, and takes it away.
func Run(ctx context.Context, config Config) (report Report, err error) {
	log := stamp(config.Log)
	places := cmp.Or(config.Places, 12*config.Nodes)
	descriptions, err := nodes(config.Nodes)
	if err != nil {
		return Report{}, err
	}
	b, err := startBench(ctx, config.Name, descriptions, log)
	if err != nil {
		return Report{}, err
	}
	defer func() {
		if err != nil || !report.OK() || config.KeepLogs {
			b.keepLogs(ctx)
		}
		err = errors.Join(err, b.stop(ctx))
	}()

	r := &run{bench: b, tracker: newTracker(), faults: newFaults(b.cluster, config.Seed, log)}
	if r.watcher, err = newWatcher(b, r.tracker); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, r.watcher.close()) }()
	r.workload = &workload{client: b.client, tracker: r.tracker, nodes: b.cluster.Nodes(), seed: config.Seed, gate: newGate()}

	fmt.Fprintf(log, "chaos: seed %d, %s, %d nodes with %d GPUs, %d pods at once\n", config.Seed, config.Duration, config.Nodes, len(b.devices), places)
	leaked, err := r.all(ctx, config.Duration, places)
	report = Report{
		Seed: config.Seed, Created: int(r.workload.created.Load()), Faults: r.faults.total(), Kinds: r.faults.String(),
		Refused: r.tracker.refusals(), Leaked: leaked,
	}
	_, _, report.Pods, _ = r.tracker.counts()
	report.fill(r.watcher)
	return report, err
}

type run struct {
	*bench
	tracker  *tracker
	watcher  *Watcher
	workload *workload
	faults   *faults
}

// all is the whole of a run on a cluster that stands. It returns the units
// leaked.
func (r *run) all(ctx context.Context, duration time.Duration, places int) (leaked int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel(nil)
	background := func(f func(context.Context) error) {
		group.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	background(func(ctx context.Context) error { return r.tracker.run(ctx, r.client) })
	background(func(ctx context.Context) error { r.watcher.run(ctx); return nil })
	background(r.faults.revive)
	background(r.progress)

	working, rested := context.WithCancel(ctx)
	defer rested()
	var work sync.WaitGroup
	work.Go(func() { r.workload.run(working, places) })
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if err := r.storm(ctx, min(stormTime, time.Until(end))); err != nil {
			return 0, err
		}
	}
	rested()
	work.Wait()
	fmt.Fprintln(r.log, "delete all, and fill each GPU")
	leaked, err = r.leaks(ctx, r.watcher)
	return leaked, errors.Join(err, context.Cause(ctx))
}

// storm kills parts for a time, and then checks the rest.
func (r *run) storm(ctx context.Context, d time.Duration) error {
	storm, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if err := r.faults.run(storm); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	start := time.Now()
	// Nothing more is made or deleted; what was begun goes on.
	r.workload.gate.shut()
	defer r.workload.gate.lift()
	if err := r.healthy(ctx); err != nil {
		return err
	}
	if err := r.watcher.rest(ctx); err != nil {
		return err
	}
	alive, _, _, _ := r.tracker.counts()
	fmt.Fprintf(r.log, "at rest after %.1f s, with %d pods: %d violations\n", time.Since(start).Seconds(), alive, r.watcher.count())
	return nil
}

// progress prints a line now and then.
func (r *run) progress(ctx context.Context) error {
	for {
		sleep(ctx, 10*time.Second)
		if ctx.Err() != nil {
			return nil
		}
		alive, bound, ran, refused := r.tracker.counts()
		fmt.Fprintf(r.log, "pods: %d created, %d bound, %d ran, %d refused, %d now; faults %d; violations %d\n",
			r.workload.created.Load(), bound, ran, refused, alive, r.faults.total(), r.watcher.count())
	}
}
