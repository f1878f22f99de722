package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
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
	listed    = "limits of two GPUs in one process"
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

// give has the device plugin give a container memory of a GPU, by its index.
func (k kit) give(ctx context.Context, n *node, r *runtime, level, name string, index int) (container, error) {
	env, err := n.allocate(ctx, name, k.facts.gpus[index].uuid, k.units)
	if err != nil {
		return container{}, err
	}
	if got := env["GPUMEM_ENFORCEMENT"]; got != level {
		return container{}, fmt.Errorf("containers get the level %q", got)
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
	if level == mpsLevel {
		a.tell(listed, "", k.list(ctx, c, limit))
	}
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
	if got := c.env["NVIDIA_VISIBLE_DEVICES"]; got != k.facts.gpus[1].uuid {
		return fmt.Errorf("the container was given GPU %s", got)
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

// list asks whether a client's list of limits holds on both GPUs of a process.
func (k kit) list(ctx context.Context, c container, limitMiB int) error {
	switch {
	case len(k.facts.gpus) < 2:
		return cannot("the machine has one GPU")
	case c.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "":
		return cannot("with this driver the limits of a container are its namespace's, and it has no list")
	}
	uuids := k.facts.gpus[0].uuid + "," + k.facts.gpus[1].uuid
	c = c.with("NVIDIA_VISIBLE_DEVICES="+uuids, fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM,1=%dM", limitMiB, limitMiB))
	var errs []error
	for gpu := range 2 {
		index := strconv.Itoa(gpu)
		errs = append(errs, about("GPU "+index+", "+within, k.run(ctx, c, "alloc", strconv.Itoa(limitMiB/2), index).wants(false)),
			about("GPU "+index+", "+beyond, k.run(ctx, c, "alloc", strconv.Itoa(limitMiB*2), index).wants(true)))
	}
	return errors.Join(errs...)
}
