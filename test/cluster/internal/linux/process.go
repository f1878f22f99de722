package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Process names one process of this machine for good: a number is used
// again, together with the time of its start it is not.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

// Identify returns the process that has the number now.
func Identify(pid int) (Process, error) {
	start, _, _, err := stat(pid)
	return Process{PID: pid, Start: start}, err
}

// Alive says whether the process runs. One that has ended and waits for its
// parent to take notice does not. One that has lost its first thread alone does:
// its state is that of a zombie, and its ports are in use until the last ends.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	start, state, threads, err := stat(p.PID)
	return err == nil && start == p.Start && state != 'X' && (state != 'Z' || threads > 1)
}

// Signal sends a signal. To a process that has ended it does nothing.
func (p Process) Signal(signal unix.Signal) error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(signal), p.PID, err)
	}
	return nil
}

// Wait waits until the process has ended.
func (p Process) Wait(ctx context.Context) error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	for {
		// The descriptor becomes readable when the process ends; the time limit
		// only bounds how late an ended context is seen.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int((100 * time.Millisecond).Milliseconds()))
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", p.PID, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("process %d has not ended: %w", p.PID, context.Cause(ctx))
		}
	}
}

// open returns a descriptor of the process, or -1 when it has ended.
func (p Process) open() (int, error) {
	if !p.Alive() {
		return -1, nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	// The number may have got a new owner just before it was opened.
	if !p.Alive() {
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// stat returns the start time, the state and the number of threads of a process.
func stat(pid int) (start uint64, state byte, threads int, err error) {
	name := fmt.Sprintf("/proc/%d/stat", pid)
	content, err := os.ReadFile(name)
	if err != nil {
		return 0, 0, 0, err
	}
	// The second field, the program's name in parentheses, may hold anything.
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, 0, fmt.Errorf("%s: %d fields are too few", name, len(fields))
	}
	start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	threads, threadsErr := strconv.Atoi(string(fields[17]))
	return start, fields[0][0], threads, errors.Join(err, threadsErr)
}

// InnerPID returns the number of a process in the process namespace that lies
// directly in ours.
func InnerPID(pid int) (int, error) {
	name := fmt.Sprintf("/proc/%d/status", pid)
	content, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		// "NSpid:	4711	47	1": here, in the next namespace, and so on.
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "NSpid:" {
			return strconv.Atoi(fields[2])
		}
	}
	return 0, fmt.Errorf("process %d is in no process namespace within this one", pid)
}

// Members finds processes by where they run.
type Members struct {
	namespaces map[string]bool // targets of links such as /proc/1/ns/net
	cgroup     string          // path of a control group
}

// NewMembers returns the set of the processes in the namespaces of the given
// processes, as far as they are not this process's own, and of those in the
// control group at the path cgroup or below.
func NewMembers(cgroup string, anchors ...Process) Members {
	m := Members{namespaces: make(map[string]bool), cgroup: cgroup}
	for _, anchor := range anchors {
		if !anchor.Alive() {
			continue
		}
		for _, kind := range []string{"net", "mnt"} {
			ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", anchor.PID, kind))
			own, ownErr := os.Readlink("/proc/self/ns/" + kind)
			if err == nil && ownErr == nil && ns != own {
				m.namespaces[ns] = true
			}
		}
	}
	return m
}

// List returns the members that run now.
func (m Members) List() []Process {
	// What cannot be read has ended meanwhile.
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []Process
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() || !m.has(dir) {
			continue
		}
		if p, err := Identify(pid); err == nil && p.Alive() {
			found = append(found, p)
		}
	}
	return found
}

func (m Members) has(dir string) bool {
	for _, kind := range []string{"net", "mnt"} {
		if ns, err := os.Readlink(dir + "/ns/" + kind); err == nil && m.namespaces[ns] {
			return true
		}
	}
	paths, err := cgroups(dir)
	return err == nil && slices.ContainsFunc(paths, func(path string) bool { return within(path, m.cgroup) })
}

// Cgroups returns the paths of the control groups that a process is in: one, or
// in the first version one for each hierarchy.
func Cgroups(pid int) ([]string, error) { return cgroups(fmt.Sprintf("/proc/%d", pid)) }

func cgroups(dir string) ([]string, error) {
	content, err := os.ReadFile(dir + "/cgroup")
	if err != nil {
		return nil, err
	}
	var paths []string
	for line := range strings.Lines(string(content)) {
		// "4:memory:/path" or, in the second version, "0::/path"
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 {
			paths = append(paths, fields[2])
		}
	}
	return paths, nil
}

func within(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

// Kill kills all members, again until there are none.
func (m Members) Kill(ctx context.Context) error {
	for {
		processes := m.List()
		if len(processes) == 0 {
			return nil
		}
		for _, p := range processes {
			if err := p.Signal(unix.SIGKILL); err != nil {
				return err
			}
		}
		if err := thaw(m.cgroup); err != nil {
			return err
		}
		for _, p := range processes {
			if err := p.Wait(ctx); err != nil {
				return err
			}
		}
	}
}
