package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// statusSocket is where a supervisor answers, in its directory.
const statusSocket = "status.sock"

// checkTimeout bounds one question: the supervisor answers from memory.
const checkTimeout = time.Second

// Status is what a supervisor says of its daemon.
type Status struct {
	Healthy  bool   `json:"healthy"`
	Reason   string `json:"reason,omitempty"`  // why it is not
	Protocol int    `json:"protocol"`          // of the daemon; 3 only from a supervisor of version 0.2
	Restarts int    `json:"restarts"`          // of the daemon, by this supervisor
	Clients  int    `json:"clients"`           // at the last look
	Servers  []int  `json:"servers,omitempty"` // process IDs of the MPS servers, at the last look
	GPUs     int    `json:"gpus"`              // that there were when the supervisor started
	Proven   []int  `json:"proven,omitempty"`  // indexes of those on which a client was limited

	SingleUser bool `json:"singleUser,omitempty"` // the daemon serves the containers of one user at a time
}

// DirOf returns the directory of the daemon that serves a device, below that of the node's daemons: a MIG
// instance has a daemon of its own (NVIDIA, "Multi-Process Service", MPS on MIG).
func DirOf(dir string, d gpu.Device) string {
	if d.MIG() {
		return filepath.Join(dir, string(d.UUID))
	}
	return dir
}

// Check returns the indexes of the devices whose clients the node's daemons limit, and an error when they limit none. It
// returns no index for a supervisor that does not report them.
func Check(ctx context.Context, dir string, devices []gpu.Device) (limited []int, err error) {
	rest := len(devices)
	var errs []error
	for _, d := range devices {
		if !d.MIG() {
			continue
		}
		rest--
		if _, err := NewClient(DirOf(dir, d)).Check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("GPU %d (%s): %w", d.Index, d.Model, err))
			continue
		}
		limited = append(limited, d.Index)
	}
	if rest > 0 || len(devices) == 0 {
		gpus, err := NewClient(dir).Check(ctx)
		if err == nil && len(limited) == 0 {
			return gpus, nil
		}
		limited, errs = append(limited, gpus...), append(errs, err)
	}
	if len(limited) > 0 {
		return limited, nil
	}
	return nil, errors.Join(errs...)
}

// CheckAll says why the daemons of a node do not work, whatever they are for.
func CheckAll(ctx context.Context, dir string) error {
	dirs, err := filepath.Glob(filepath.Join(dir, "MIG-*", statusSocket))
	if err != nil {
		return err
	}
	var errs []error
	for _, socket := range dirs {
		if _, err := NewClient(filepath.Dir(socket)).Check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Base(filepath.Dir(socket)), err))
		}
	}
	if _, err := os.Stat(filepath.Join(dir, statusSocket)); err == nil || len(dirs) == 0 {
		_, err := NewClient(dir).Check(ctx)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Servers returns the process IDs of the MPS servers of a node's daemons. The error names the supervisors that run and did
// not answer: the servers of their daemons are missing.
func Servers(ctx context.Context, dir string) (map[int]bool, error) {
	sockets, _ := filepath.Glob(filepath.Join(dir, "MIG-*", statusSocket)) // the pattern is well formed
	out := make(map[int]bool)
	var errs []error
	for _, socket := range append(sockets, filepath.Join(dir, statusSocket)) {
		s, err := NewClient(filepath.Dir(socket)).Status(ctx)
		switch {
		case errors.Is(err, errNoSupervisor), errors.Is(err, errSupervisorEnded):
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Dir(socket), err))
		}
		for _, pid := range s.Servers {
			out[pid] = true
		}
	}
	return out, errors.Join(errs...)
}

var (
	errNoSupervisor    = errors.New("no MPS daemon runs on the node")
	errSupervisorEnded = errors.New("the supervisor of the MPS daemon has ended")
)

// Client asks the supervisor of a directory.
type Client struct{ http http.Client }

// NewClient returns a client that connects whenever it is asked.
func NewClient(dir string) *Client {
	socket := filepath.Join(dir, statusSocket)
	return &Client{http: http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, // a supervisor that has ended must not seem to answer
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		},
	}}
}

// Status asks how the daemon is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://mps/status", nil)
	if err != nil {
		return Status{}, err
	}
	answer, err := c.http.Do(request)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Status{}, errNoSupervisor
	case errors.Is(err, syscall.ECONNREFUSED):
		return Status{}, errSupervisorEnded
	case err != nil:
		return Status{}, fmt.Errorf("ask for the MPS daemon: %w", err)
	}
	defer answer.Body.Close()
	var s Status
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<16)).Decode(&s); err != nil {
		return Status{}, fmt.Errorf("ask for the MPS daemon: %w", err)
	}
	return s, nil
}

// Protocol is the version of NVIDIA's MPS interface that Supervisor speaks: commands on the program's standard input,
// and limits in the environment of each client.
const Protocol = 2

// CheckProtocol returns an error for a container or a claim that was set up for a protocol which gpumem no longer runs.
// The protocol is 0 for one that is no client of MPS.
func CheckProtocol(protocol int) error {
	if protocol <= Protocol {
		return nil
	}
	return fmt.Errorf("it is a client of MPS protocol %d, which gpumem no longer runs: delete its pod, to have it placed again", protocol)
}

// Check returns the indexes of the GPUs on which the daemon limits its clients, and an error when it limits none. A
// supervisor of version 0.1 does not report them: Check then returns nil.
func (c *Client) Check(ctx context.Context) (gpus []int, err error) {
	s, err := c.Status(ctx)
	switch {
	case err != nil:
		return nil, err
	case s.Protocol > Protocol: // its supervisor is of version 0.2, for its DaemonSet is updated by hand
		return nil, fmt.Errorf("the MPS daemon has protocol %d, which gpumem no longer uses: delete the daemon's pod, with which its clients end", s.Protocol)
	case !s.Healthy:
		return nil, fmt.Errorf("the MPS daemon: %s", s.Reason)
	case s.Proven == nil: // of a version that says how many it has
		for i := range s.GPUs {
			gpus = append(gpus, i)
		}
		return gpus, nil
	default:
		return s.Proven, nil
	}
}
