package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// terms are the settings that the daemon gives a client process.
type terms struct {
	percent float64           // percentage of a GPU's multiprocessors
	limits  map[string]string // memory limits by GPU index
}

// attached tracks client processes. Each keeps a connection open while it lives (test/fakenvml, src/mps.c).
type attached struct {
	mu   sync.Mutex
	pids []int
}

// attach sends a process its terms, and counts the process until it ends.
func (a *attached) attach(conn net.Conn, t terms) {
	pid := peer(conn)
	a.mu.Lock()
	a.pids = append(a.pids, pid)
	a.mu.Unlock()
	fmt.Fprintf(conn, "threads %g\n", t.percent)
	visible := strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ",") // the daemon's indexes refer to this list
	for gpu, limit := range t.limits {
		if i, err := strconv.Atoi(gpu); err == nil && i < len(visible) && visible[i] != "" {
			gpu = visible[i]
		}
		fmt.Fprintf(conn, "limit %s %s\n", gpu, limit)
	}
	fmt.Fprintln(conn)
	go func() {
		defer conn.Close()
		_, _ = io.Copy(io.Discard, conn)
		a.mu.Lock()
		defer a.mu.Unlock()
		i := slices.Index(a.pids, pid)
		a.pids = slices.Delete(a.pids, i, i+1)
	}()
}

// list returns the process IDs, one per line.
func (a *attached) list() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out strings.Builder
	for _, pid := range a.pids {
		fmt.Fprintln(&out, strconv.Itoa(pid))
	}
	return out.String()
}

// peer returns the process ID of the connection's other end, in this process's namespace.
func peer(conn net.Conn) (pid int) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
