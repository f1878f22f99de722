package stack

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Progress returns a writer that puts the time since now before each line. Many
// may write to it at once, each of them whole lines.
func Progress(out io.Writer) io.Writer { return &progress{out: out, start: time.Now()} }

type progress struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
}

func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Fprintf(p.out, "[%4.0fs] %s", time.Since(p.start).Seconds(), line); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}
