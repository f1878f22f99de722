package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"
	"golang.org/x/sync/errgroup"
)

// Timeouts that are far above the needs of legitimate clients.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute

	// maxConnections exceeds the number of concurrent bindings of kube-scheduler, and limits the memory for
	// connections to tens of MiB.
	maxConnections = 1024
	maxHeaderBytes = 16 << 10

	// Grace is the timeout for requests in progress when a server stops.
	Grace = 10 * time.Second
)

// Run serves a handler until the context is done, and then waits up to Grace for requests in progress.
// It closes the listener.
func Run(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return run(ctx, listener, handler, maxConnections)
}

func run(ctx context.Context, listener net.Listener, handler http.Handler, maxOpen int) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         (&connections{limit: maxOpen, open: make(map[net.Conn]connectionState)}).trackState,
	}
	var group errgroup.Group
	stopped := make(chan struct{})
	group.Go(func() error {
		defer close(stopped)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		select {
		case <-stopped:
			return nil
		case <-ctx.Done():
		}
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), Grace)
		defer cancel()
		return server.Shutdown(grace)
	})
	return group.Wait()
}

// Check is a condition for readiness. Missing describes the problem, or returns an empty string if there
// is none.
type Check struct {
	Name    string
	Missing func() string
}

// Probes serves /healthz, /readyz and /version, and /metrics if metrics is not nil.
//
// /healthz returns 200 after checkLocks has returned. Parameter checkLocks must take the lock that all work
// needs, so that it blocks in a deadlocked process. /readyz returns 200 if no check reports a problem, else
// 503. Its body has one line per check, with the problem.
func Probes(version string, metrics http.Handler, checkLocks func(), checks ...Check) http.Handler {
	router := httprouter.New()
	router.GET("/healthz", func(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
		checkLocks()
		writeText(w, http.StatusOK, "ok\n")
	})
	router.GET("/readyz", func(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
		status, body := readiness(checks)
		writeText(w, status, body)
	})
	router.GET("/version", Version(version))
	if metrics != nil {
		router.Handler(http.MethodGet, "/metrics", metrics)
	}
	return router
}

func readiness(checks []Check) (status int, body string) {
	var b strings.Builder
	status = http.StatusOK
	for _, c := range checks {
		if missing := c.Missing(); missing != "" {
			status = http.StatusServiceUnavailable
			fmt.Fprintf(&b, "[-] %s: %s\n", c.Name, missing)
			continue
		}
		fmt.Fprintf(&b, "[+] %s\n", c.Name)
	}
	if status == http.StatusOK {
		b.WriteString("ready\n")
	} else {
		b.WriteString("not ready\n")
	}
	return status, b.String()
}

// Version serves the versions of the binary and of Go as JSON.
func Version(version string) httprouter.Handle {
	body, err := json.Marshal(map[string]string{
		"version":   version,
		"goVersion": runtime.Version(),
		"platform":  runtime.GOOS + "/" + runtime.GOARCH,
	})
	if err != nil { // impossible for a map of strings
		body = []byte("{}")
	}
	body = append(body, '\n')
	return func(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // fails only if the client is gone
	}
}

func writeText(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // fails only if the client is gone
}
