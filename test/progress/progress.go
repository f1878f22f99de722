// Package progress shows a person how far a long run is: numbered steps, the time since the start,
// and a line every few seconds while Go compiles. It imports the standard library only, so that a
// program that prints progress is itself compiled in seconds.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Writer returns a writer that puts the time since start before each line. Several goroutines may
// write to it at once, each of them whole lines.
func Writer(out io.Writer, start time.Time) io.Writer { return &writer{out: out, start: start} }

type writer struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

func (w *writer) Write(text []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
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
