// Command gpu measures on a machine with a GPU what limits hold there. It starts
// the real device plugin before a stand-in for the kubelet, takes the environment from
// its replies to Allocate, and runs CUDA programs with it. See run.sh.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
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
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}

// kit is how to measure.
type kit struct {
	plugin, probe string
	library       string // of NVML; empty: where the driver has it
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
	f.IntVar(&k.units, "units", 2, "GiB of a grant")
	f.Float64Var(&k.seconds, "seconds", 5, "how long to compute for a figure")
	f.DurationVar(&k.patience, "patience", 30*time.Second, "for a part to come up")
	levels := f.String("levels", "advisory,mps,kernel", "levels to measure, where they are to be had")
	file := f.String("json", "", "where to write the result")
	if err := f.Parse(args); err != nil {
		return err
	}
	result := Result{Date: time.Now().UTC().Format(time.DateOnly), GPU: k.describe(ctx)}
	for level := range strings.SplitSeq(*levels, ",") {
		if !slices.Contains([]string{"advisory", "mps", "kernel"}, level) {
			return fmt.Errorf("level %q: want some of advisory, mps and kernel", level)
		}
		result.Levels = append(result.Levels, k.level(ctx, level))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
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

// Result is what was seen on one machine.
type Result struct {
	Date   string  `json:"date"`
	GPU    string  `json:"gpu"` // model and driver
	Levels []Level `json:"levels"`
}

// Level is what was seen at one level.
type Level struct {
	Level   string            `json:"level"`
	Missing string            `json:"missing,omitempty"` // why it was not measured
	Env     map[string]string `json:"env,omitempty"`     // of a container, from Allocate

	Within    Probe `json:"within"`    // half of the grant
	Beyond    Probe `json:"beyond"`    // twice the grant
	Forked    Probe `json:"forked"`    // twice the grant, in a child
	Neighbour Probe `json:"neighbour"` // computed while another went beyond its grant

	Shared []Shared `json:"shared,omitempty"`
}

// Limits reports whether an allocation beyond the grant failed, and one within did
// not.
func (l Level) Limits() bool { return l.Within.OK && !l.Beyond.OK }

// Probe is what the CUDA program says.
type Probe struct {
	OK       bool    `json:"ok"`
	Error    string  `json:"error,omitempty"`
	Start    float64 `json:"start,omitempty"` // seconds until CUDA was ready
	Launches int     `json:"launches,omitempty"`
}

// Shared is what some programs did together on one GPU.
type Shared struct {
	Sharers  int     `json:"sharers"`
	Launches int     `json:"launches"` // of all
	Spread   float64 `json:"spread"`   // standard deviation by mean of their launches
	Start    float64 `json:"start"`    // seconds until the last was ready
	Failed   int     `json:"failed,omitempty"`
}

// share adds up what sharers say.
func share(probes []Probe) Shared {
	s := Shared{Sharers: len(probes)}
	for _, p := range probes {
		s.Launches += p.Launches
		s.Start = max(s.Start, p.Start)
		if !p.OK {
			s.Failed++
		}
	}
	mean := float64(s.Launches) / float64(len(probes))
	var squares float64
	for _, p := range probes {
		squares += (float64(p.Launches) - mean) * (float64(p.Launches) - mean)
	}
	if mean > 0 {
		s.Spread = math.Sqrt(squares/float64(len(probes))) / mean
	}
	return s
}

// Table is the result for people.
func (r Result) Table() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s, %s\n\n", r.GPU, r.Date)
	fmt.Fprintf(&out, "%-10s %-8s %-8s %-8s %-10s %-8s %-10s %-8s %s\n", "LEVEL", "WITHIN", "BEYOND", "FORKED", "NEIGHBOUR", "SHARERS", "LAUNCHES", "SPREAD", "START(s)")
	for _, l := range r.Levels {
		if l.Missing != "" {
			fmt.Fprintf(&out, "%-10s not here: %s\n", l.Level, l.Missing)
			continue
		}
		fmt.Fprintf(&out, "%-10s %-8s %-8s %-8s %-10s", l.Level, word(l.Within), word(l.Beyond), word(l.Forked), word(l.Neighbour))
		for i, s := range l.Shared {
			if i > 0 {
				fmt.Fprintf(&out, "%-48s", "")
			}
			fmt.Fprintf(&out, " %-8d %-10d %-8.2f %.2f", s.Sharers, s.Launches, s.Spread, s.Start)
			if s.Failed > 0 {
				fmt.Fprintf(&out, "  %d failed", s.Failed)
			}
			fmt.Fprintln(&out)
		}
	}
	return out.String()
}

func word(p Probe) string {
	if p.OK {
		return "works"
	}
	return "fails"
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
	if level != "advisory" {
		stop, err := k.startMPS(ctx, dir)
		defer stop()
		if err != nil {
			l.Missing = err.Error()
			return l
		}
	}
	n, err := k.startPlugin(ctx, dir, level)
	if err != nil {
		l.Missing = err.Error()
		return l
	}
	defer n.stop()
	env, err := n.allocate(ctx, k.units)
	if err != nil {
		l.Missing = err.Error()
		return l
	}
	l.Env = env
	if got := env["GPUMEM_ENFORCEMENT"]; got != level {
		l.Missing = fmt.Sprintf("containers get the level %q", got)
		return l
	}
	if level == "kernel" {
		l.Missing = "its limit is set for a container by its runtime: not shown by programs without one"
		return l
	}
	k.measure(ctx, &l)
	return l
}

// measure runs the CUDA programs of a level.
func (k kit) measure(ctx context.Context, l *Level) {
	limit, err := strconv.Atoi(l.Env["GPUMEM_LIMIT_MIB"])
	if err != nil {
		l.Missing = "GPUMEM_LIMIT_MIB is no number"
		return
	}
	seconds := strconv.FormatFloat(k.seconds, 'f', -1, 64)
	l.Within = k.run(ctx, l.Env, "alloc", strconv.Itoa(limit/2))
	neighbour := make(chan Probe, 1)
	go func() { neighbour <- k.run(ctx, l.Env, "spin", seconds) }()
	l.Beyond = k.run(ctx, l.Env, "alloc", strconv.Itoa(limit*2))
	l.Forked = k.run(ctx, l.Env, "fork", strconv.Itoa(limit*2))
	l.Neighbour = <-neighbour
	for _, sharers := range k.sharers {
		probes := make([]Probe, sharers)
		var all sync.WaitGroup
		for i := range probes {
			all.Go(func() { probes[i] = k.run(ctx, l.Env, "spin", seconds) })
		}
		all.Wait()
		l.Shared = append(l.Shared, share(probes))
	}
}

// run runs the CUDA program as a container would that has this environment.
func (k kit) run(ctx context.Context, env map[string]string, args ...string) Probe {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(k.seconds*float64(time.Second))+2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.probe, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "CUDA_") })
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	// NVIDIA's runtime shows a container its GPUs; without a container, CUDA does.
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+env["NVIDIA_VISIBLE_DEVICES"])
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
