package mps

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// TestASupervisorWithoutGPUs verifies that a supervisor without GPUs publishes the reason, and starts once it has
// GPUs.
func TestASupervisorWithoutGPUs(t *testing.T) {
	n := newNode(t)
	var away, none atomic.Bool
	away.Store(true)
	none.Store(true)
	n.cfg.GPUs = func() ([]inventory.Part, bool, error) {
		switch {
		case away.Load():
			return nil, false, errors.New("NVML is away")
		case none.Load():
			return nil, false, nil
		default:
			return twoGPUs(), true, nil
		}
	}
	n.run()
	n.eventually("the list fails", sick("list its GPUs: NVML is away"))
	away.Store(false)
	n.eventually("the list is empty", sick("none of its GPUs answers"))
	none.Store(false)
	n.eventually("the daemon is healthy", healthy)
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestGPUsThatDoNotAnswerTheProbe covers a list that fails after the daemon's start, and a GPU that is missing from
// it.
func TestGPUsThatDoNotAnswerTheProbe(t *testing.T) {
	n := newNode(t)
	var calls, there atomic.Int32
	n.cfg.GPUs = func() ([]inventory.Part, bool, error) {
		switch gpus := twoGPUs(); {
		case calls.Add(1) == 1 || there.Load() == 2:
			return gpus, true, nil
		case there.Load() == 1:
			return gpus[:1], true, nil
		default:
			return nil, true, errors.New("NVML is away")
		}
	}
	n.run()
	n.eventually("no GPU is listed", sick("no client was seen to be limited: NVML is away"))
	there.Store(1)
	n.eventually("one of two answers", func(s Status, err error) bool { return healthy(s, err) && slices.Equal(s.Proven, []int{0}) })
	there.Store(2)
	n.eventually("both answer", func(s Status, err error) bool { return healthy(s, err) && slices.Equal(s.Proven, []int{0, 1}) })
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestADaemonThatIsAskedDirectly verifies that a supervisor that cannot use the directory of clients notices when
// the daemon fails.
func TestADaemonThatIsAskedDirectly(t *testing.T) {
	n := newNode(t)
	if err := os.MkdirAll(n.pipe(""), 0o755); err != nil {
		t.Fatal(err)
	}
	n.steer("locking", "x")
	n.run()
	n.eventually("the daemon is healthy", healthy)
	n.steer("broken", "get_default_active_thread_percentage")
	n.eventually("it is not", sick("the operation failed"))
	n.steer("broken", "")
	n.eventually("it is again", healthy)
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestADaemonThatEndsWhileItDrains verifies that the supervisor no longer waits for clients of an ended daemon.
func TestADaemonThatEndsWhileItDrains(t *testing.T) {
	n := newNode(t).run()
	n.eventually("the daemon is healthy", healthy)
	n.steer("clients", "17\n")
	n.eventually("a client", func(s Status, err error) bool { return healthy(s, err) && s.Clients == 1 })
	n.stop()
	n.eventually("it drains", sick("about to end"))
	if err := syscall.Kill(n.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestASupervisorWithoutADirectory verifies that Run returns an error if it cannot create its directories.
func TestASupervisorWithoutADirectory(t *testing.T) {
	n := newNode(t)
	file := filepath.Join(n.cfg.Dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.cfg.Dir = file
	if err := n.run().end(); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("%v, want that it is no directory", err)
	}
}

// TestAnAnswerThatIsNoStatus verifies that such an answer is an error, and not a status without GPUs.
func TestAnAnswerThatIsNoStatus(t *testing.T) {
	n := newNode(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(n.cfg.Dir, statusSocket))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler()} //nolint:gosec // for one test
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	if _, err := NewClient(n.cfg.Dir).Status(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "query the MPS daemon: ") {
		t.Errorf("error %v", err)
	}
	if err := errors.Join(server.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// TestAReasonIsLoggedOnce verifies that the supervisor logs a reason again only after another state.
func TestAReasonIsLoggedOnce(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	s := New(Config{}, &modes{}, zap.New(core))
	for i, tc := range []struct {
		reason string // empty if the daemon is healthy
		lines  int
	}{{"a", 1}, {"a", 1}, {"b", 2}, {"a", 3}, {"", 3}, {"a", 4}, {"a", 4}} {
		if tc.reason == "" {
			s.update(func(st *Status) { st.Healthy, st.Reason = true, "" })
		} else {
			s.sick(tc.reason)
		}
		if got := s.Status(); logs.Len() != tc.lines || got.Healthy != (tc.reason == "") || got.Reason != tc.reason {
			t.Errorf("state %d, %q: %d lines, want %d; %+v", i, tc.reason, logs.Len(), tc.lines, got)
		}
	}
}
