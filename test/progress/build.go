package progress

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// interval is the time between two lines of progress.
const interval = 8 * time.Second

// A Build is one run of "go build".
type Build struct {
	Name     string // begins each line of progress
	Dir      string // folder of the Go module
	Packages []string
	Flags    []string // of "go build", "go list" and their like: -tags
	Link     []string // further flags of "go build"
	Env      []string // added to this process's environment
	Output   string   // a file, or a folder if it ends in a slash
}

// Run downloads the modules that the packages need, compiles them and prints progress to log.
func (b Build) Run(ctx context.Context, log io.Writer) error {
	list := b.command(ctx, slices.Concat([]string{"list", "-deps"}, b.Flags, b.Packages))
	listed, err := watch(list, log, func(_, stderr *lines) string {
		return fmt.Sprintf("%s: %d modules downloaded", b.Name, stderr.count("go: downloading "))
	})
	if err != nil {
		return err
	}
	if n := listed.stderr.count("go: downloading "); n > 0 {
		fmt.Fprintf(log, "%s: %d modules downloaded\n", b.Name, n)
	}
	all := listed.stdout.count("")
	// -v prints each package when its compilation begins.
	build := b.command(ctx, slices.Concat([]string{"build", "-v", "-buildvcs=false", "-o", b.Output}, b.Flags, b.Link, b.Packages))
	_, err = watch(build, log, func(_, stderr *lines) string {
		compiled := stderr.count("")
		if compiled == 0 {
			return fmt.Sprintf("%s: checking %d packages, or linking", b.Name, all)
		}
		return fmt.Sprintf("%s: %d of at most %d packages compiled", b.Name, compiled, all)
	})
	return err
}

func (b Build) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	cmd.Env = append(cmd.Env, b.Env...)
	return cmd
}

// Run runs a command and prints a line every few seconds until it ends.
func Run(cmd *exec.Cmd, log io.Writer, name string) error {
	_, err := watch(cmd, log, func(*lines, *lines) string { return name + ": running" })
	return err
}

type output struct{ stdout, stderr *lines }

// watch runs a command and prints a line of status every few seconds until it ends. An error
// contains the last lines that the command printed to stderr.
func watch(cmd *exec.Cmd, log io.Writer, status func(stdout, stderr *lines) string) (output, error) {
	out := output{stdout: &lines{}, stderr: &lines{}}
	cmd.Stdout, cmd.Stderr = out.stdout, out.stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return out, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			fmt.Fprintf(log, "%s, %s\n", status(out.stdout, out.stderr), time.Since(start).Round(time.Second))
		case err := <-done:
			if err != nil {
				return out, fmt.Errorf("%s (in %s): %w\n%s", strings.Join(cmd.Args, " "), cmp.Or(cmd.Dir, "."), err, out.stderr.failure())
			}
			return out, nil
		}
	}
}

// lines collects the output of a command.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// count returns how many lines begin with a prefix.
func (l *lines) count(prefix string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		if bytes.HasPrefix(line, []byte(prefix)) {
			n++
		}
	}
	return n
}

// failure returns the last lines that do more than name a package or a download.
func (l *lines) failure() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var kept []string
	for scanner := bufio.NewScanner(bytes.NewReader(l.text.Bytes())); scanner.Scan(); {
		if line := scanner.Text(); strings.ContainsAny(line, " \t:") && !strings.HasPrefix(line, "go: downloading ") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-40):], "\n")
}
