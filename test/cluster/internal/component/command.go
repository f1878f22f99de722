package component

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// command returns the command that makes a component in the folder out.
func (b Builder) command(ctx context.Context, r recipe, out string) (*exec.Cmd, error) {
	if r.compiler != nil {
		files, err := b.files(r)
		if err != nil {
			return nil, err
		}
		args := slices.Concat(r.compiler[1:], []string{"-o", filepath.Join(out, r.output)})
		for _, name := range files {
			if strings.HasSuffix(name, ".c") {
				args = append(args, name)
			}
		}
		cmd := exec.CommandContext(ctx, r.compiler[0], append(args, "-lpthread", "-ldl")...)
		cmd.Dir = b.Sources
		return cmd, nil
	}
	// -v names each package as it is compiled, which is the progress.
	args := append([]string{"build", "-v", "-mod=readonly", "-buildvcs=false", "-o", out + "/"}, r.flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, r.packages...)...)
	cmd.Dir = filepath.Join(b.Sources, r.module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	return cmd, nil
}

// runWithProgress runs a command and says every few seconds how far it is.
func runWithProgress(cmd *exec.Cmd, log io.Writer, step string) error {
	progress := &counter{}
	cmd.Stdout = progress
	cmd.Stderr = progress
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			lines, last := progress.last()
			fmt.Fprintf(log, "%s: %s, %d packages compiled or downloaded %s\n", step, round(time.Since(start)), lines, last)
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%s (in %s): %w\n%s", strings.Join(cmd.Args, " "), cmd.Dir, err, progress.failure())
			}
			return nil
		}
	}
}

// counter collects the output of a command and counts its lines.
type counter struct {
	mu     sync.Mutex
	output bytes.Buffer
	lines  int
}

func (c *counter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines += bytes.Count(p, []byte("\n"))
	return c.output.Write(p)
}

func (c *counter) last() (lines int, last string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := bytes.TrimSpace(c.output.Bytes())
	return c.lines, string(text[bytes.LastIndexByte(text, '\n')+1:])
}

// failure returns the last lines that do not just name a package.
func (c *counter) failure() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for scanner := bufio.NewScanner(&c.output); scanner.Scan(); {
		if line := scanner.Text(); strings.ContainsAny(line, " \t:") && !strings.HasPrefix(line, "go: downloading ") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-40):], "\n")
}
