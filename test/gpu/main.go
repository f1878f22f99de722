// Command gpu measures on a machine with a GPU what limits hold there. It starts
// the real device plugin before a stand-in for the kubelet, takes the environment from
// its replies to Allocate, and runs CUDA programs with it. See run.sh.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}

// kit is how to measure.
type kit struct {
	plugin, probe string
	library       string // of NVML; empty: where the driver has it
	cgroups       string // where control groups of version 2 are mounted
	units         int    // of a grant
	seconds       float64
	sharers       []int
	patience      time.Duration // for a part to come up
	log           io.Writer
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	k := kit{sharers: []int{1, 2, 4, 8, 12}, log: stderr}
	f := flag.NewFlagSet("gpu", flag.ContinueOnError)
	f.StringVar(&k.plugin, "plugin", "", "the device plugin")
	f.StringVar(&k.probe, "probe", "", "the CUDA program")
	f.StringVar(&k.library, "nvml-library", "", "the library of NVML")
	f.StringVar(&k.cgroups, "cgroup-root", "/sys/fs/cgroup", "where control groups of version 2 are mounted")
	f.IntVar(&k.units, "units", 2, "GiB of a grant")
	f.Float64Var(&k.seconds, "seconds", 5, "how long to compute for a figure")
	f.DurationVar(&k.patience, "patience", 30*time.Second, "for a part to come up")
	levels := f.String("levels", "advisory,mps,kernel", "levels to measure, where they are to be had")
	file := f.String("json", "", "where to write the result")
	if err := f.Parse(args); err != nil {
		return err
	}
	result := Result{Date: time.Now().UTC().Format(time.DateOnly), GPU: k.describe(ctx)}
	result.TimeSlicing = k.sharing(ctx, container{})
	for level := range strings.SplitSeq(*levels, ",") {
		if !slices.Contains([]string{"advisory", "mps", "kernel"}, level) {
			return fmt.Errorf("level %q: want some of advisory, mps and kernel", level)
		}
		result.Levels = append(result.Levels, k.level(ctx, level))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	result.compare()
	fmt.Fprint(stdout, result.Table())
	if *file == "" {
		return nil
	}
	data, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(*file, append(data, '\n'), 0o644)
}

// describe says which driver and GPU these are.
func (k kit) describe(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--id=0", "--query-gpu=name,driver_version", "--format=csv,noheader").Output()
	if err != nil {
		return "a GPU that nvidia-smi does not describe"
	}
	return strings.TrimSpace(string(out))
}

// level measures one level.
func (k kit) level(ctx context.Context, level string) Level {
	l := Level{Level: level}
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		l.Missing = err.Error()
		return l
	}
	defer os.RemoveAll(dir)
	if level == "mps" { // at kernel a daemon could refuse what the driver is to refuse
		stop, err := k.startMPS(ctx, dir)
		defer stop()
		if err != nil {
			l.Missing = err.Error()
			return l
		}
	}
	var r *runtime
	if level == "kernel" {
		if r, err = startRuntime(dir, k.cgroups); err != nil {
			l.Missing = err.Error()
			return l
		}
		defer r.stop()
	}
	n, err := k.startPlugin(ctx, dir, level)
	if err != nil {
		l.Missing = err.Error()
		return l
	}
	defer n.stop()
	if l.Env, err = n.allocate(ctx, k.units); err != nil {
		l.Missing = err.Error()
		return l
	}
	if got := l.Env["GPUMEM_ENFORCEMENT"]; got != level {
		l.Missing = fmt.Sprintf("containers get the level %q", got)
		return l
	}
	k.measure(ctx, &l, container{l.Env, r})
	return l
}

// measure runs the CUDA programs of a level.
func (k kit) measure(ctx context.Context, l *Level, c container) {
	limit, err := strconv.Atoi(l.Env["GPUMEM_LIMIT_MIB"])
	if err != nil {
		l.Missing = "GPUMEM_LIMIT_MIB is no number"
		return
	}
	l.Within = k.run(ctx, c, "alloc", strconv.Itoa(limit/2))
	neighbour := make(chan Probe, 1)
	go func() { neighbour <- k.run(ctx, c, "spin", k.time()) }()
	l.Beyond = k.run(ctx, c, "alloc", strconv.Itoa(limit*2))
	l.Forked = k.run(ctx, c, "fork", strconv.Itoa(limit*2))
	l.Both = k.run(ctx, c, "both", strconv.Itoa(limit*3/4))
	l.Neighbour = <-neighbour
	l.Shared = k.sharing(ctx, c)
}

func (k kit) time() string { return strconv.FormatFloat(k.seconds, 'f', -1, 64) }

// sharing runs programs together that compute, some and then more.
func (k kit) sharing(ctx context.Context, c container) (out []Shared) {
	for _, sharers := range k.sharers {
		probes := make([]Probe, sharers)
		var all sync.WaitGroup
		for i := range probes {
			all.Go(func() { probes[i] = k.run(ctx, c, "spin", k.time()) })
		}
		all.Wait()
		out = append(out, share(probes))
	}
	return out
}

// A container is what programs run in: with an environment, and in a control group
// where there is a runtime.
type container struct {
	env     map[string]string
	runtime *runtime
}

// run runs the CUDA program in a container of its own.
func (k kit) run(ctx context.Context, c container, args ...string) Probe {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(k.seconds*float64(time.Second))+2*time.Minute)
	defer cancel()
	command := append([]string{k.probe}, args...)
	if c.runtime != nil {
		group, end, err := c.runtime.start(ctx, c.env)
		if err != nil {
			return Probe{Error: err.Error()}
		}
		defer end()
		command = append(entering(group), command...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "CUDA_") })
	for name, value := range c.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	// NVIDIA's runtime shows a container its GPUs; without a container, CUDA does.
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+cmp.Or(c.env["NVIDIA_VISIBLE_DEVICES"], "0"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, k.log
	err := cmd.Run()
	var p Probe
	if parsed := json.Unmarshal(out.Bytes(), &p); err != nil || parsed != nil {
		return Probe{Error: fmt.Sprintf("%v, and it said %q", errors.Join(err, parsed), out.String())}
	}
	return p
}

// startMPS starts the real supervisor, and waits until its daemon is healthy.
func (k kit) startMPS(ctx context.Context, dir string) (stop func(), err error) {
	args := []string{"mps", "--mps-dir=" + mpsDir(dir), "--drain=1s", "--log-format=console"}
	if k.library != "" {
		args = append(args, "--nvml-library="+k.library)
	}
	stop, err = k.start(ctx, args...)
	if err != nil {
		return stop, err
	}
	return stop, wait(ctx, k.patience, func() error {
		out, err := exec.CommandContext(ctx, k.plugin, "mps", "--mps-dir="+mpsDir(dir), "--check").CombinedOutput()
		if err != nil {
			return errors.New(strings.TrimSpace(string(out)))
		}
		return nil
	})
}

func mpsDir(dir string) string { return filepath.Join(dir, "mps") }

// start starts the plugin's program. What is returned ends it.
func (k kit) start(ctx context.Context, args ...string) (stop func(), err error) {
	cmd := exec.CommandContext(ctx, k.plugin, args...)
	cmd.Stdout, cmd.Stderr = k.log, k.log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		return func() {}, err
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		_ = cmd.Wait()
	}, nil
}

// wait asks until there is no error, and returns the last one when time is over.
func wait(ctx context.Context, patience time.Duration, f func() error) error {
	deadline := time.After(patience)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return err
		case <-ticker.C:
		}
	}
}
