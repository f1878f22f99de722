package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumem/gpumem/test/cluster/internal/component"
	"github.com/gpumem/gpumem/test/cluster/internal/linux"
)

// process is one daemon of the cluster: how it is started, and the one that
// was started last.
type process struct {
	Where string   `json:"where"` // fabric or the name of a node
	Path  string   `json:"path"`
	Args  []string `json:"args"`
	Env   []string `json:"env"`
	linux.Process
}

// Processes returns the names of the cluster's processes: "etcd", "apiserver",
// "controller-manager", "scheduler", and for each node "containerd@NODE",
// "kubelet@NODE", "kube-proxy@NODE".
func (c *Cluster) Processes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.state.Processes))
}

// Running says whether the process called name runs, and its number.
func (c *Cluster) Running(name string) (pid int, running bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.state.Processes[name]
	if p == nil || !p.Alive() {
		return 0, false
	}
	return p.PID, true
}

// Signal sends a signal to the process called name.
func (c *Cluster) Signal(name string, signal syscall.Signal) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	return p.Signal(signal)
}

// Kill kills the process called name, with no chance to end in order, and
// returns when it is gone. It stays down until StartProcess.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	return c.end(ctx, name, unix.SIGKILL)
}

// Terminate asks the process called name to end and waits until it has.
func (c *Cluster) Terminate(ctx context.Context, name string) error {
	return c.end(ctx, name, unix.SIGTERM)
}

// Restart kills the process called name and starts it again.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	if err := c.Kill(ctx, name); err != nil {
		return err
	}
	return c.StartProcess(name)
}

// StartProcess starts the process called name, which was killed or has ended.
// It does not wait until the process is ready: WaitReady does.
func (c *Cluster) StartProcess(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.state.Processes[name]
	if p == nil {
		return c.unknown(name)
	}
	if p.Alive() {
		return fmt.Errorf("the process %s runs already", name)
	}
	return c.launch(name, p)
}

// LogFile returns the file with the output of the process called name, from
// all its runs.
func (c *Cluster) LogFile(name string) string {
	return filepath.Join(c.dir, "logs", name+".log")
}

func (c *Cluster) end(ctx context.Context, name string, signal syscall.Signal) error {
	p, err := c.process(name)
	if err != nil {
		return err
	}
	if err := p.Signal(signal); err != nil {
		return fmt.Errorf("end %s: %w", name, err)
	}
	if err := p.Wait(ctx); err != nil {
		return fmt.Errorf("end %s: %w", name, err)
	}
	return nil
}

func (c *Cluster) process(name string) (linux.Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.state.Processes[name]
	if p == nil {
		return linux.Process{}, c.unknown(name)
	}
	return p.Process, nil
}

func (c *Cluster) unknown(name string) error {
	return fmt.Errorf("the cluster %s has no process %q, only %s", c.state.Name, name, strings.Join(slices.Sorted(maps.Keys(c.state.Processes)), ", "))
}

// run adds a process to the cluster and starts it.
func (c *Cluster) run(name, where, path string, args ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &process{Where: where, Path: path, Args: args, Env: c.environment()}
	c.state.Processes[name] = p
	return c.launch(name, p)
}

// environment is that of the cluster's processes. They do not inherit ours: a
// proxy, for one, is none of theirs.
func (c *Cluster) environment() []string {
	path := []string{c.state.Components[component.Base], "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
	return []string{"PATH=" + strings.Join(path, ":"), "HOME=" + c.dir, "LANG=C"}
}

// launch starts p; c.mu is held.
func (c *Cluster) launch(name string, p *process) error {
	anchor, err := c.state.anchor(p.Where)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(c.LogFile(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	fmt.Fprintf(log, "---- %s start: %s %s\n", time.Now().UTC().Format(time.RFC3339), p.Path, strings.Join(p.Args, " "))
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = p.Env
	cmd.Stdout = log
	cmd.Stderr = log
	// In a session of its own, it outlives a terminal and its signals.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := linux.StartIn(anchor.PID, cmd); err != nil {
		return fmt.Errorf("start %s in the namespaces of %s: %w", name, p.Where, err)
	}
	if p.Process, err = adopt(cmd); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return c.state.write(c.dir)
}

// adopt identifies the process that cmd has started, and takes notice of its
// end whenever that comes.
func adopt(cmd *exec.Cmd) (linux.Process, error) {
	p, err := linux.Identify(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }()
	return p, err
}

// logTail returns the last lines of a process's log, for messages.
func (c *Cluster) logTail(name string) string {
	f, err := os.Open(c.LogFile(name))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	const limit = 16 << 10
	if info, err := f.Stat(); err == nil && info.Size() > limit {
		if _, err := f.Seek(-limit, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	lines = lines[max(0, len(lines)-30):]
	return fmt.Sprintf("the end of %s:\n%s", c.LogFile(name), bytes.Join(lines, []byte("\n")))
}

// checkRunning returns an error that shows the log of the first of the named
// processes that has ended.
func (c *Cluster) checkRunning(names ...string) error {
	for _, name := range names {
		if _, running := c.Running(name); !running {
			return fmt.Errorf("%s has ended; %s", name, c.logTail(name))
		}
	}
	return nil
}

// poll calls f until it says nil, and returns its last error when ctx ends.
// The processes named must go on running meanwhile.
func (c *Cluster) poll(ctx context.Context, what string, f func(context.Context) error, names ...string) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if err := c.checkRunning(names...); err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			var tails []string
			for _, name := range names {
				tails = append(tails, c.logTail(name))
			}
			return fmt.Errorf("wait until %s: %w: %w\n%s", what, context.Cause(ctx), err, strings.Join(tails, "\n"))
		case <-ticker.C:
		}
	}
}
