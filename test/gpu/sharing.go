package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timeSlicing is sharing with no grant and no MPS daemon. One program alone has exclusive use.
const timeSlicing = "time-slicing"

// ways are how programs share a GPU.
var ways = []string{timeSlicing, mpsLevel, kernelLevel}

// What is asked of each way to share.
const (
	allRun     = "all programs of every number run"
	throughput = "throughput is not less than with time-slicing"
	latency    = "latency is told"
	fair       = "equal programs get equal shares"
	startUp    = "start-up takes at most 10 s more than with time-slicing"
)

func sharingNames() (names []string) {
	for _, how := range ways {
		for _, question := range []string{allRun, throughput, latency, fair, startUp} {
			if how != timeSlicing || question != throughput && question != startUp {
				names = append(names, how+": "+question)
			}
		}
	}
	return names
}

// sharing runs programs together that compute, one and then more, in each way.
func (k kit) sharing(ctx context.Context, a *answers) error {
	var sliced Series
	for _, how := range ways {
		var s Series
		err := k.sharedBy(ctx, how, func(c container) error {
			s = k.series(ctx, how, c)
			return nil
		})
		if how == timeSlicing {
			sliced = s
		}
		if err != nil {
			for _, name := range sharingNames() {
				if strings.HasPrefix(name, how+": ") {
					a.tell(name, "", cannot("%v", err))
				}
			}
			continue
		}
		a.result.Sharing = append(a.result.Sharing, s)
		judgeSharing(a, how, s, sliced)
	}
	return nil
}

// sharedBy has programs share the GPU in one way.
func (k kit) sharedBy(ctx context.Context, how string, use func(container) error) error {
	if how == timeSlicing {
		return use(container{})
	}
	return k.at(ctx, how, func(_ *node, _ *runtime, c container) error { return use(c) })
}

// series measures one way for each number of programs.
func (k kit) series(ctx context.Context, how string, c container) Series {
	s := Series{How: how}
	for _, n := range k.sharers {
		s.Points = append(s.Points, share(k.together(ctx, c, n, "spin", k.time()), k.seconds))
	}
	return s
}

// The bounds of what passes. Throughput and spread are of programs that ran for some seconds.
const (
	mostSpread   = 0.25
	leastOfSlice = 0.9
	mostStart    = 10.0 // seconds
)

// judgeSharing answers what is asked of a way, by its points and those of time-slicing.
func judgeSharing(a *answers, how string, s, sliced Series) {
	var failed, slow, unfair, late []error
	rates, latencies, spreads, starts := "kernels/s:", "p50/p99 in ms:", "spread:", "seconds:"
	for i, p := range s.Points {
		than := sliced.Points[i]
		n := strconv.Itoa(p.Sharers)
		rates += fmt.Sprintf(" %s: %.0f", n, p.PerSecond)
		latencies += fmt.Sprintf(" %s: %.1f/%.1f", n, p.P50, p.P99)
		spreads += fmt.Sprintf(" %s: %.2f", n, p.Spread)
		starts += fmt.Sprintf(" %s: %.2f", n, p.Start)
		if p.Failed > 0 {
			failed = append(failed, fmt.Errorf("%d of %d: %s", p.Failed, p.Sharers, p.Error))
			continue
		}
		if p.PerSecond < than.PerSecond*leastOfSlice {
			slow = append(slow, fmt.Errorf("%s programs ran %.0f kernels/s, and %.0f with time-slicing", n, p.PerSecond, than.PerSecond))
		}
		if p.Spread > mostSpread {
			unfair = append(unfair, fmt.Errorf("%s programs have a spread of %.2f", n, p.Spread))
		}
		if p.Start > than.Start+mostStart {
			late = append(late, fmt.Errorf("%s programs took %.1f s, and %.1f with time-slicing", n, p.Start, than.Start))
		}
	}
	var untold error
	if len(s.Points) == 0 || s.Points[0].P50 <= 0 || s.Points[0].P99 < s.Points[0].P50 {
		untold = errors.New(latencies + ": that makes no sense")
	}
	a.tell(how+": "+allRun, starts, errors.Join(failed...))
	a.tell(how+": "+latency, latencies, untold)
	a.tell(how+": "+fair, spreads, errors.Join(unfair...))
	if how != timeSlicing {
		a.tell(how+": "+throughput, rates, errors.Join(slow...))
		a.tell(how+": "+startUp, starts, errors.Join(late...))
	}
}

// percents are the shares of a GPU's multiprocessors that are asked for one after the other.
var percents = []int{10, 25, 50, 75, 100}

func coreNames() []string {
	return namesOf(percents, func(n int) string { return fmt.Sprintf("a task of %d %% of the multiprocessors", n) })
}

// cores runs a task that could use the whole GPU with less and less of it.
func (k kit) cores(ctx context.Context, a *answers) error {
	return k.at(ctx, mpsLevel, func(_ *node, _ *runtime, c container) error {
		most := k.run(ctx, c, "most", fmt.Sprint(step))
		if !most.OK {
			return fmt.Errorf("a client of MPS: %s", most.Error)
		}
		a.result.SMs = most.SMs
		blocks := strconv.Itoa(most.SMs * 16) // as many as fit on all multiprocessors at once
		whole := k.run(ctx, c, "spin", k.time(), blocks)
		if !whole.OK || whole.Launches == 0 {
			return fmt.Errorf("a task with the whole GPU: %d kernels, %s", whole.Launches, whole.Error)
		}
		for i, percent := range percents {
			got := k.run(ctx, c.with("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+strconv.Itoa(percent)), "spin", k.time(), blocks)
			share := 100 * float64(got.Launches) / float64(whole.Launches)
			err := got.wants(false)
			if least, most := 0.6*float64(percent), 1.4*float64(percent)+3; err == nil && (share < least || share > most) {
				err = fmt.Errorf("it ran %.0f %% of the kernels of a task with all of them, want %.0f to %.0f %%", share, least, most)
			}
			a.tell(coreNames()[i], fmt.Sprintf("%.0f %% of the kernels of a task with all of them", share), err)
		}
		return nil
	})
}

// What is asked of NVML's samples.
const (
	busyTold  = "each program that computes has a sample"
	idleQuiet = "a program that does nothing has none, or one of 0"
)

// used are the ways to share of which it is asked.
var used = []string{timeSlicing, mpsLevel}

func useNames() (names []string) {
	for _, how := range used {
		names = append(names, how+": "+busyTold, how+": "+idleQuiet)
	}
	return names
}

// use asks NVML what it tells of programs that share a GPU.
func (k kit) use(ctx context.Context, a *answers) error {
	for _, how := range used {
		if err := k.sharedBy(ctx, how, func(c container) error { return k.useOf(ctx, a, how, c) }); err != nil {
			return err
		}
	}
	return nil
}

// useOf runs two programs that compute and one that does not, and asks when they have worked for
// a while.
func (k kit) useOf(ctx context.Context, a *answers, how string, c container) error {
	pids := make(chan int, 3)
	ended := make(chan Probe, 3)
	var names []int
	for _, args := range [][]string{{"hold", k.time()}, {"spin", k.time()}, {"spin", k.time()}} {
		go func() { ended <- k.runAs(ctx, c, func(pid int) { pids <- pid }, args...) }()
		select {
		case pid := <-pids:
			names = append(names, pid)
		case p := <-ended:
			return fmt.Errorf("a program does not start: %s", p.Error)
		}
	}
	shares, err := k.sampled(ctx, names[1:])
	for range names {
		if p := <-ended; !p.OK {
			return fmt.Errorf("a program has failed: %s", p.Error)
		}
	}
	if err != nil {
		a.tell(how+": "+busyTold, "", err)
		a.tell(how+": "+idleQuiet, "", err)
		return nil
	}
	said := fmt.Sprintf("the programs that compute: %d %% and %d %%, that which does not: %d %%; NVML has samples of %d processes", shares[names[1]], shares[names[2]], shares[names[0]], len(shares))
	var busy, idle error
	if slices.ContainsFunc(names[1:], func(pid int) bool { return shares[pid] == 0 }) {
		busy = errors.New(said)
	}
	if shares[names[0]] > 0 {
		idle = errors.New(said)
	}
	a.tell(how+": "+busyTold, said, busy)
	a.tell(how+": "+idleQuiet, said, idle)
	return nil
}

// sampled asks NVML until it has samples of these processes, or most of the time is over in which
// they compute.
func (k kit) sampled(ctx context.Context, pids []int) (shares map[int]int, err error) {
	began := time.Now()
	patience := time.Duration(k.seconds * 0.8 * float64(time.Second))
	told := wait(ctx, patience, func() error {
		shares, err = k.driver.use(k.facts.gpus[0].uuid, began)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(pids, func(pid int) bool { return shares[pid] == 0 }) {
			return errors.New("not all have a sample")
		}
		return nil
	})
	if told != nil && ctx.Err() != nil {
		return nil, told
	}
	return shares, err
}
