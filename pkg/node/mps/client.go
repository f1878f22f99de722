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
	"slices"
	"syscall"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

const (
	statusSocket = "status.sock" // in the supervisor's directory
	checkTimeout = time.Second   // per request: the supervisor answers from memory
)

// Status is a supervisor's report about its daemon.
type Status struct {
	Healthy  bool   `json:"healthy"`
	Reason   string `json:"reason,omitempty"`  // why the daemon is not healthy
	Protocol int    `json:"protocol"`          // the daemon's MPS version; 3 only with a supervisor of gpumem 0.2
	Restarts int    `json:"restarts"`          // daemon restarts by this supervisor
	Clients  int    `json:"clients"`           // number of client processes in the daemon's last answer
	Servers  []int  `json:"servers,omitempty"` // process IDs of the MPS servers, from the same answer
	Proven   []int  `json:"proven,omitempty"`  // indexes of the GPUs on which the daemon limited a client

	SingleUser bool `json:"singleUser,omitempty"` // the daemon serves the containers of one user at a time
}

// DirOf returns the directory of the daemon that serves a device. A MIG instance has a separate daemon in a
// subdirectory (NVIDIA, "Multi-Process Service", MPS on MIG).
func DirOf(dir string, d gpu.Device) string {
	if d.MIG() {
		return filepath.Join(dir, string(d.UUID))
	}
	return dir
}

// Check returns the indexes of the devices on which the node's daemons limit their clients. If there are no
// such devices, it returns an error.
func Check(ctx context.Context, dir string, devices []gpu.Device) (limited []int, err error) {
	whole := len(devices) == 0
	var errs []error
	for _, d := range devices {
		if !d.MIG() {
			whole = true
			continue
		}
		if _, err := NewClient(DirOf(dir, d)).Check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("GPU %d (%s): %w", d.Index, d.Model, err))
			continue
		}
		limited = append(limited, d.Index)
	}
	if whole {
		gpus, err := NewClient(dir).Check(ctx)
		limited, errs = append(limited, gpus...), append(errs, err)
	}
	if len(limited) > 0 {
		return limited, nil
	}
	return nil, errors.Join(errs...)
}

// CheckAll returns an error that lists the node's daemons that do not limit their clients.
func CheckAll(ctx context.Context, dir string) error {
	return forEachClient(dir, func(c *Client) error {
		_, err := c.Check(ctx)
		return err
	})
}

// Servers returns the process IDs of the MPS servers of the node's daemons. The error lists running supervisors
// that did not answer; their servers are missing from the result.
func Servers(ctx context.Context, dir string) (map[int]bool, error) {
	out := make(map[int]bool)
	err := forEachClient(dir, func(c *Client) error {
		s, err := c.Status(ctx)
		if errors.Is(err, errNoSupervisor) || errors.Is(err, errSupervisorEnded) {
			return nil
		}
		for _, pid := range s.Servers {
			out[pid] = true
		}
		return err
	})
	return out, err
}

// forEachClient calls f with a client for each supervisor socket of the node, and joins the errors. If the node has
// no socket, it calls f with a client for the supervisor of whole GPUs.
func forEachClient(dir string, f func(*Client) error) error {
	sockets, _ := filepath.Glob(filepath.Join(dir, "MIG-*", statusSocket)) // the pattern is well-formed
	whole := filepath.Join(dir, statusSocket)
	if _, err := os.Stat(whole); err == nil || len(sockets) == 0 {
		sockets = append(sockets, whole)
	}
	var errs []error
	for _, socket := range sockets {
		if err := f(NewClient(filepath.Dir(socket))); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Dir(socket), err))
		}
	}
	return errors.Join(errs...)
}

// Running reports whether a supervisor of the node answers. A supervisor answers until its daemon has ended.
func Running(ctx context.Context, dir string) bool {
	sockets, _ := filepath.Glob(filepath.Join(dir, "MIG-*", statusSocket)) // the pattern is well-formed
	return slices.ContainsFunc(append(sockets, filepath.Join(dir, statusSocket)), func(socket string) bool {
		_, err := NewClient(filepath.Dir(socket)).Status(ctx)
		return err == nil
	})
}

var (
	errNoSupervisor    = errors.New("no MPS daemon runs on the node")
	errSupervisorEnded = errors.New("the supervisor of the MPS daemon has ended")
)

// Client requests the status of one supervisor.
type Client struct{ http http.Client }

// NewClient returns a client for the supervisor in dir. It opens a connection for each request.
func NewClient(dir string) *Client {
	socket := filepath.Join(dir, statusSocket)
	return &Client{http: http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, // otherwise a supervisor that has ended could seem to answer
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", socket)
			},
		},
	}}
}

// Status returns the supervisor's report. The error is errNoSupervisor if there is no socket, and
// errSupervisorEnded if nobody listens on it.
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
		return Status{}, fmt.Errorf("query the MPS daemon: %w", err)
	}
	defer answer.Body.Close()
	var s Status
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<16)).Decode(&s); err != nil {
		return Status{}, fmt.Errorf("query the MPS daemon: %w", err)
	}
	return s, nil
}

// Protocol is the version of NVIDIA's MPS interface that Supervisor uses: commands on the program's standard
// input, and limits in the environment of each client.
const Protocol = 2

// CheckProtocol returns an error if gpumem no longer runs the MPS version for which a container or a claim was
// prepared. Parameter protocol is that version, or 0 if the container or the claim is not a client of MPS.
func CheckProtocol(protocol int) error {
	if protocol <= Protocol {
		return nil
	}
	return fmt.Errorf("it is a client of MPS protocol %d, which gpumem no longer runs: delete its pod, to have it placed again", protocol)
}

// Check returns the indexes of the GPUs on which the daemon limits its clients. If there are no such GPUs, it
// returns an error.
func (c *Client) Check(ctx context.Context) (gpus []int, err error) {
	s, err := c.Status(ctx)
	switch {
	case err != nil:
		return nil, err
	case s.Protocol > Protocol: // from a supervisor of version 0.2, because administrators update its DaemonSet manually
		return nil, fmt.Errorf("the MPS daemon has protocol %d, which gpumem no longer uses: delete the daemon's pod, with which its clients end", s.Protocol)
	case !s.Healthy:
		return nil, fmt.Errorf("the MPS daemon: %s", s.Reason)
	case len(s.Proven) == 0:
		return nil, errors.New("the MPS daemon has limited no client yet")
	default:
		return s.Proven, nil
	}
}
