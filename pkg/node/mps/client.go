package mps

import (
	"bytes"
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
	"strings"
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
	Reason   string `json:"reason,omitempty"` // why it is not
	Protocol int    `json:"protocol"`         // 2 or 3
	Restarts int    `json:"restarts"`         // of the daemon, by this supervisor
	Clients  int    `json:"clients"`          // at the last look
	GPUs     int    `json:"gpus"`             // that there were when the supervisor started
	Proven   []int  `json:"proven,omitempty"` // indexes of those on which a client was limited
}

// DirOf returns the directory of the daemon that serves a device, below that of the node's daemons: a MIG
// instance has a daemon of its own (NVIDIA, "Multi-Process Service", MPS on MIG).
func DirOf(dir string, d gpu.Device) string {
	if d.MIG() {
		return filepath.Join(dir, string(d.UUID))
	}
	return dir
}

// Check says why the daemons of a node do not limit the clients of these devices, which protocol they
// have, and the indexes of the devices on which they do; none of a supervisor that does not say.
func Check(ctx context.Context, dir string, devices []gpu.Device) (protocol int, limited []int, err error) {
	rest := len(devices)
	for _, d := range devices {
		if !d.MIG() {
			continue
		}
		if protocol, _, err = NewClient(DirOf(dir, d)).Check(ctx); err != nil {
			return 0, nil, fmt.Errorf("GPU %d (%s): %w", d.Index, d.Model, err)
		}
		limited = append(limited, d.Index)
		rest--
	}
	if rest == 0 && len(limited) > 0 {
		return protocol, limited, nil
	}
	of, gpus, err := NewClient(dir).Check(ctx)
	if err == nil && len(limited) > 0 && of != protocol {
		err = fmt.Errorf("the MPS daemon has protocol %d, and that of MIG instances %d", of, protocol)
	}
	return of, append(limited, gpus...), err
}

// CheckAll says why the daemons of a node do not work, whatever they are for.
func CheckAll(ctx context.Context, dir string) error {
	dirs, err := filepath.Glob(filepath.Join(dir, "MIG-*", statusSocket))
	if err != nil {
		return err
	}
	var errs []error
	for _, socket := range dirs {
		if _, _, err := NewClient(filepath.Dir(socket)).Check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Base(filepath.Dir(socket)), err))
		}
	}
	if _, err := os.Stat(filepath.Join(dir, statusSocket)); err == nil || len(dirs) == 0 {
		_, _, err := NewClient(dir).Check(ctx)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

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
		return Status{}, errors.New("no MPS daemon runs on the node")
	case errors.Is(err, syscall.ECONNREFUSED):
		return Status{}, errors.New("the supervisor of the MPS daemon has ended")
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

// serveTimeout bounds one wish for a namespace: the daemon gets a command.
const serveTimeout = 10 * time.Second

// Serve asks for a namespace.
func (c *Client) Serve(ctx context.Context, name string, want Namespace) error {
	ctx, cancel := context.WithTimeout(ctx, serveTimeout)
	defer cancel()
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://mps/namespaces/"+name, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("ask the MPS daemon for a namespace: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<12)) // what there is of it
	return fmt.Errorf("ask the MPS daemon for a namespace: %s", strings.TrimSpace(string(text)))
}

// Check says why the daemon does not work, which protocol it has, and the indexes of the GPUs on
// which it limits its clients; nil of a supervisor of version 0.1, which does not say.
func (c *Client) Check(ctx context.Context) (protocol int, gpus []int, err error) {
	s, err := c.Status(ctx)
	switch {
	case err != nil:
		return 0, nil, err
	case !s.Healthy:
		return 0, nil, fmt.Errorf("the MPS daemon: %s", s.Reason)
	case s.Proven == nil: // of a version that says how many it has
		for i := range s.GPUs {
			gpus = append(gpus, i)
		}
		return s.Protocol, gpus, nil
	default:
		return s.Protocol, s.Proven, nil
	}
}
