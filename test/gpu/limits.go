package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// The levels of enforcement, and sharing without any of them.
const (
	advisory    = "advisory"
	mpsLevel    = "mps"
	kernelLevel = "kernel"
)

// What is asked at each level.
const (
	within    = "half of the grant can be had"
	beyond    = "twice the grant can not"
	forked    = "twice the grant can not by a child"
	both      = "three quarters of the grant in each of two processes"
	neighbour = "a neighbour goes on meanwhile"
	managed   = "managed memory of twice the grant can be had"
	second    = "the same on the second GPU, while the first is used"
	pair      = "the same on each GPU of a pod of two"
)

// atLevel is the part that allocates memory at a level.
func atLevel(level string, asks ...string) part {
	return part{level, asks, func(k kit, ctx context.Context, a *answers) error {
		return k.at(ctx, level, func(n *node, r *runtime, c container) error { return k.allocations(ctx, level, a, n, r, c) })
	}}
}

// at has the real device plugin give a container memory of the first GPU at a level, and uses it.
// Where that cannot be had, the error says why it could not be tried.
func (k kit) at(ctx context.Context, level string, use func(*node, *runtime, container) error) error {
	dir, err := os.MkdirTemp("", "gpu") // short: sockets are made below it
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if level == mpsLevel { // at kernel a daemon could refuse what the driver is to refuse
		stop, err := k.startMPS(ctx, dir)
		defer stop()
		if err != nil {
			return cannot("%v", err)
		}
	}
	var r *runtime
	if level == kernelLevel {
		if r, err = startRuntime(dir, k.cgroups); err != nil {
			return cannot("%v", err)
		}
		defer r.stop()
	}
	n, err := k.startPlugin(ctx, dir, level, r)
	if err != nil {
		return cannot("%v", err)
	}
	defer n.stop()
	c, err := k.give(ctx, n, r, level, "main", 0)
	if err != nil {
		return cannot("%v", err)
	}
	return use(n, r, c)
}

// give has the device plugin give a container memory of GPUs, by their indexes.
func (k kit) give(ctx context.Context, n *node, r *runtime, level, name string, indexes ...int) (container, error) {
	var uuids []string
	for _, i := range indexes {
		uuids = append(uuids, k.facts.gpus[i].uuid)
	}
	env, err := n.allocate(ctx, name, k.units, uuids...)
	if err != nil {
		return container{}, err
	}
	want := level
	if level == mpsLevel && len(indexes) > 1 && k.facts.protocol() < 3 {
		want = advisory // the list of limits that protocol 2 has holds while a program sees all of its GPUs
	}
	if got := env["GPUMEM_ENFORCEMENT"]; got != want {
		return container{}, fmt.Errorf("containers get the level %q, want %q", got, want)
	}
	if got, want := env["NVIDIA_VISIBLE_DEVICES"], strings.Join(uuids, ","); got != want {
		return container{}, fmt.Errorf("the container was given GPU %s, want %s", got, want)
	}
	return container{name: name, env: env, node: n, runtime: r}, nil
}

// allocations are the questions of one level.
func (k kit) allocations(ctx context.Context, level string, a *answers, n *node, r *runtime, c container) error {
	limit, err := strconv.Atoi(c.env["GPUMEM_LIMIT_MIB"])
	if err != nil {
		return errors.New("GPUMEM_LIMIT_MIB is no number")
	}
	half, threeQuarters, twice := strconv.Itoa(limit/2), strconv.Itoa(limit*3/4), strconv.Itoa(limit*2)
	tell := func(question string, p Probe, refused bool) {
		a.tell(question, p.Error, p.wants(refused))
	}
	tell(within, k.run(ctx, c, "alloc", half), false)
	computed := make(chan Probe, 1)
	go func() { computed <- k.run(ctx, c, "spin", k.time()) }()
	tell(beyond, k.run(ctx, c, "alloc", twice), level != advisory)
	tell(forked, k.run(ctx, c, "fork", twice), level != advisory)
	tell(both, k.run(ctx, c, "both", threeQuarters), level == kernelLevel) // each process has its own limit at mps
	tell(neighbour, <-computed, false)
	tell(managed, k.run(ctx, c, "managed", twice), false)
	a.tell(second, "", k.onSecond(ctx, level, n, r, c, half, twice))
	a.tell(pair, "", k.onBoth(ctx, level, n, r, half, twice))
	return nil
}

// wants is nil where the program was refused memory, or was not, as it is to be.
func (p Probe) wants(refused bool) error {
	switch {
	case refused && p.OK:
		return errors.New("it was given the memory: there is no limit")
	case refused && !p.refused(), !refused && !p.OK:
		return errors.New(p.Error)
	default:
		return nil
	}
}

// onSecond asks for memory of the second GPU while the first computes.
func (k kit) onSecond(ctx context.Context, level string, n *node, r *runtime, first container, half, twice string) error {
	if len(k.facts.gpus) < 2 {
		return cannot("the machine has one GPU")
	}
	c, err := k.give(ctx, n, r, level, "other", 1)
	if err != nil {
		return err
	}
	computed := make(chan Probe, 1)
	go func() { computed <- k.run(ctx, first, "spin", k.time()) }()
	return errors.Join(
		about(within, k.run(ctx, c, "alloc", half).wants(false)),
		about(beyond, k.run(ctx, c, "alloc", twice).wants(level != advisory)),
		about("the first GPU computes", (<-computed).wants(false)))
}

func about(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// onBoth asks for memory of each GPU of a container that has two, and of each alone, as a launcher
// of workers does.
func (k kit) onBoth(ctx context.Context, level string, n *node, r *runtime, half, twice string) error {
	if len(k.facts.gpus) < 2 {
		return cannot("the machine has one GPU")
	}
	c, err := k.give(ctx, n, r, level, "pair", 0, 1)
	if err != nil {
		return err
	}
	var errs []error
	for i, index := range []string{"0", "1"} {
		errs = append(errs, about("GPU "+index+", "+within, k.run(ctx, c, "alloc", half, index).wants(false)),
			about("GPU "+index+", "+beyond, k.run(ctx, c, "alloc", twice, index).wants(level != advisory)))
		worker := c.with("CUDA_VISIBLE_DEVICES=" + k.facts.gpus[i].uuid)
		errs = append(errs, about("GPU "+index+" alone, "+beyond, k.run(ctx, worker, "alloc", twice).wants(c.env["GPUMEM_ENFORCEMENT"] != advisory)))
	}
	return errors.Join(errs...)
}
