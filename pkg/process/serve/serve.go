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

// Time limits that no legitimate client of ours comes near.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 30 * time.Second
	idleTimeout   = 2 * time.Minute

	// maxConnections is how many are open to one server: more than kube-scheduler has bindings
	// on their way, and few enough that those of strangers cost some ten MiB.
	maxConnections = 1024
	maxHeaderBytes = 16 << 10

	// Grace is how long requests that are under way may take to end when a
	// server has to stop.
	Grace = 10 * time.Second
)

// Run serves a handler until the context is done, and then lets requests end.
// It closes the listener.
func Run(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return run(ctx, listener, handler, maxConnections)
}

func run(ctx context.Context, listener net.Listener, handler http.Handler, most int) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         (&connections{most: most, open: make(map[net.Conn]standing)}).follow,
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

// Check is one thing that must be so before a process is ready. Missing says
// what is not, and returns an empty string when all is well.
type Check struct {
	Name    string
	Missing func() string
}

// Probes answers /healthz, /readyz and /version.
//
// /healthz is 200 once alive has returned, which does not in a process that hangs:
// it takes the lock that all work needs. /readyz is 200 when no check misses
// anything, else 503; either way its body has a line for each check that says what
// is missing. metrics may be nil.
func Probes(version string, metrics http.Handler, alive func(), checks ...Check) http.Handler {
	router := httprouter.New()
	router.GET("/healthz", func(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
		alive()
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

// Version answers with the version of the binary and of Go, as JSON.
func Version(version string) httprouter.Handle {
	body, err := json.Marshal(map[string]string{
		"version":   version,
		"goVersion": runtime.Version(),
		"platform":  runtime.GOOS + "/" + runtime.GOARCH,
	})
	if err != nil { // cannot be: a map of strings
		body = []byte("{}")
	}
	body = append(body, '\n')
	return func(w http.ResponseWriter, _ *http.Request, _ httprouter.Params) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // the client is gone
	}
}

func writeText(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // the client is gone
}
