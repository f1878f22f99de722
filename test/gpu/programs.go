package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	kubewait "k8s.io/apimachinery/pkg/util/wait"
)

// A container is what programs run in: with an environment, and in a control group where there is
// a runtime.
type container struct {
	name    string
	env     map[string]string
	node    *node
	runtime *runtime
	group   string // a control group that is there already
}

// with returns the container with more variables.
func (c container) with(variables ...string) container {
	env := make(map[string]string)
	maps.Copy(env, c.env)
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	c.env = env
	return c
}

// run runs the CUDA program in a container of its own, and returns what it says.
func (k kit) run(ctx context.Context, c container, args ...string) Probe {
	return k.runAs(ctx, c, func(int) {}, args...)
}

// runAs is run, and tells the program's process ID.
func (k kit) runAs(ctx context.Context, c container, started func(pid int), args ...string) (p Probe) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(k.seconds*float64(time.Second))+2*time.Minute)
	defer cancel()
	command := append([]string{k.probe}, args...)
	if c.node != nil {
		if err := c.node.preStart(ctx, c.name); err != nil {
			return Probe{Error: err.Error()}
		}
	}
	if c.runtime != nil {
		group, end, err := c.runtime.start(ctx, c)
		if err != nil {
			return Probe{Error: err.Error()}
		}
		defer end()
		c.group = group
	}
	if c.group != "" {
		command = append(entering(c.group), command...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "CUDA_") })
	for name, value := range c.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	// NVIDIA's runtime shows a container its GPUs; without a container, CUDA does.
	visible := cmp.Or(c.env["CUDA_VISIBLE_DEVICES"], c.env["NVIDIA_VISIBLE_DEVICES"], k.facts.gpus[0].uuid)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+visible)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, k.log
	if err := cmd.Start(); err != nil {
		return Probe{Error: err.Error()}
	}
	started(cmd.Process.Pid)
	err := cmd.Wait()
	if parsed := json.Unmarshal(out.Bytes(), &p); err != nil || parsed != nil {
		return Probe{Error: fmt.Sprintf("%v, and it said %q", errors.Join(err, parsed), out.String())}
	}
	return p
}

func (k kit) time() string { return strconv.FormatFloat(k.seconds, 'f', -1, 64) }

// together runs the CUDA program in several containers at the same time.
func (k kit) together(ctx context.Context, c container, programs int, args ...string) []Probe {
	probes := make([]Probe, programs)
	var all sync.WaitGroup
	for i := range probes {
		all.Go(func() { probes[i] = k.run(ctx, c, args...) })
	}
	all.Wait()
	return probes
}

// startMPS starts the real supervisor, and waits until its daemon is healthy.
func (k kit) startMPS(ctx context.Context, dir string) (stop func(), err error) {
	if err := has(mpsControl); err != nil {
		return func() {}, err
	}
	args := []string{"mps", "--mps-dir=" + mpsDir(dir), "--drain=1s", "--log-format=console"}
	if k.library != "" {
		args = append(args, "--nvml-library="+k.library)
	}
	stop, err = k.start(ctx, k.log, args...)
	if err != nil {
		return stop, err
	}
	ended := stop
	stop = func() {
		ended()
		unmount(mpsDir(dir))
	}
	return stop, wait(ctx, k.patience, func() error {
		out, err := exec.CommandContext(ctx, k.plugin, "mps", "--mps-dir="+mpsDir(dir), "--check").CombinedOutput()
		if err != nil {
			return fmt.Errorf("no MPS daemon: %s", strings.TrimSpace(string(out)))
		}
		return nil
	})
}

// unmount takes away what the supervisor has mounted, which outlives it for the sake of containers.
// The kit has mounts of its own (see withOwnMounts): the machine's are not touched.
func unmount(mps string) {
	for _, at := range []string{filepath.Join(mps, "clients"), "/dev/shm", filepath.Join(mps, "shm")} {
		_ = syscall.Unmount(at, syscall.MNT_DETACH)
	}
}

// start starts the plugin's program, whose log is JSON or for people. What is returned ends it: nothing
// else does before, for until then it takes away what it has set up.
func (k kit) start(ctx context.Context, log io.Writer, args ...string) (stop func(), err error) {
	cmd, end := lasting(ctx, k.plugin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		end()
		return func() {}, err
	}
	return func() {
		end()
		_ = cmd.Wait() // it was asked to end
	}, nil
}

// lasting is a command that outlives its context, and hears of no Ctrl-C: end asks it to end, and so
// does the end of this process.
func lasting(ctx context.Context, program string, args ...string) (cmd *exec.Cmd, end context.CancelFunc) {
	ctx, end = context.WithCancel(context.WithoutCancel(ctx))
	cmd = exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	return cmd, end
}

// wait asks until there is no error, and returns the last one when time is over.
func wait(ctx context.Context, patience time.Duration, f func() error) (last error) {
	_ = kubewait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = f()
		return last == nil, nil
	})
	if last != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return last
}

// reasons reads the device plugin's log for why the node does not have the level that it was told.
type reasons struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte
	last string
}

// Write implements io.Writer.
func (r *reasons) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest = append(r.rest, p...)
	for {
		at := bytes.IndexByte(r.rest, '\n')
		if at < 0 {
			return r.to.Write(p)
		}
		r.read(r.rest[:at])
		r.rest = r.rest[at+1:]
	}
}

func (r *reasons) read(line []byte) {
	var said struct{ Msg, Weaker, Reason, Error string }
	if json.Unmarshal(line, &said) != nil {
		return
	}
	switch {
	case said.Weaker != "":
		r.last = said.Weaker
	case said.Reason != "" && r.last == "":
		r.last = said.Msg + ": " + said.Reason
	}
}

// why is the last reason that the plugin gave.
func (r *reasons) why() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.last, "its log does not say why")
}

func mpsDir(dir string) string { return filepath.Join(dir, "mps") }
