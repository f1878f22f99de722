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
	"path/filepath"
	"strings"
	"syscall"
	"time"
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
