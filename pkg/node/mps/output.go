package mps

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	maxOutput = 200 // maximum bytes of the daemon's last line, which becomes part of the node's annotation
	// outputPatience is the wait for the remaining output of an ended daemon. The daemon's MPS server shares the
	// standard output, and may outlive the daemon.
	outputPatience = time.Second
)

// output copies a daemon's output to a writer and remembers the last line.
type output struct {
	ended chan struct{} // closed when no process writes anymore

	mu   sync.Mutex // guards last
	last []byte     // last bytes of the output
}

// newOutput returns the file for a daemon's standard output. The caller closes the file after the daemon has
// started. A pipe of package exec is unsuitable, because its Wait would also wait for the MPS server.
func newOutput(to io.Writer) (*output, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	o := &output{ended: make(chan struct{})}
	go func() {
		defer close(o.ended)
		defer r.Close()
		_, _ = io.Copy(io.MultiWriter(o, to), r) // the output is only for people: the daemon works without it
	}()
	return o, w, nil
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	const enough = 4 * maxOutput
	o.last = append(o.last, p...)
	o.last = bytes.Clone(o.last[max(0, len(o.last)-enough):])
	return len(p), nil
}

// lastLine returns the last line of an ended daemon's output, or an empty string.
func (o *output) lastLine() string {
	select {
	case <-o.ended:
	case <-time.After(outputPatience):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	text := strings.TrimSpace(string(o.last))
	line := strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	return strings.ToValidUTF8(line[:min(len(line), maxOutput)], "")
}
