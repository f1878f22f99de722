// Package progress shows a person how far a long run is: numbered steps, the time since the start,
// and a line every few seconds while Go compiles. It imports the standard library only, so that a
// program that prints progress is itself compiled in seconds.
package progress

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A Writer puts the time since its start before each line. Several goroutines may write to it at once,
// each of them whole lines.
type Writer struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
	last  time.Time // of the last write
}

// NewWriter returns a Writer with the time since start.
func NewWriter(out io.Writer, start time.Time) *Writer {
	return &Writer{out: out, start: start, last: time.Now()}
}

// Heartbeat prints a line whenever nothing has been written for some seconds, until ctx is done.
func (w *Writer) Heartbeat(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.mu.Lock()
			silent := time.Since(w.last) >= interval
			w.mu.Unlock()
			if silent {
				fmt.Fprintln(w, "still running")
			}
		}
	}
}

func (w *Writer) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = time.Now()
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Fprintf(w.out, "[%4.0fs] %s", time.Since(w.start).Seconds(), line); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// Steps prints the headings of a run's steps, numbered from 1.
type Steps struct {
	Out   io.Writer
	Total int
	Done  int // steps before the next one
}

// Next prints the heading of the next step.
func (s *Steps) Next(format string, args ...any) {
	s.Done++
	fmt.Fprintf(s.Out, "==> step %d of %d: %s\n", s.Done, s.Total, fmt.Sprintf(format, args...))
}
