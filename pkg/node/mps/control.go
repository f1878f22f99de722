package mps

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// FindControl returns the path of the MPS control program: the given path, or the program on the PATH or under
// driverRoot.
func FindControl(path, driverRoot string) (string, error) {
	const name = "nvidia-cuda-mps-control"
	if path != "" {
		return path, nil
	}
	if found, err := exec.LookPath(name); err == nil {
		return found, nil
	}
	for _, dir := range []string{"usr/bin", "bin"} {
		if found, err := exec.LookPath(filepath.Join(driverRoot, dir, name)); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s is neither on the PATH nor under %s: NVIDIA's runtime brings it with the driver capability \"compute\"", name, driverRoot)
}

// control sends commands to a daemon through NVIDIA's control program.
type control struct {
	timeout time.Duration // per command
	program string
	env     []string
}

// refusals are words in replies that refuse a command. The program's exit status is 0 in any case.
var refusals = [...]string{"error", "invalid", "fail", "unknown", "cannot", "can't", "not found", "usage:"}

// command sends one command and returns the reply. It returns an error if the daemon refuses the command or
// does not answer in time.
func (c control) command(ctx context.Context, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program)
	cmd.Stdin = strings.NewReader(strings.Join(words, " ") + "\n")
	cmd.Env = c.env
	cmd.WaitDelay = time.Second
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	err := cmd.Run()
	reply := strings.TrimSpace(out.String())
	said := strings.TrimSpace(reply + " " + diagnostics.String())
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: no answer in %s", strings.Join(words, " "), c.timeout)
	case err != nil:
		return "", fmt.Errorf("%s: %w: %q", strings.Join(words, " "), err, said)
	case refuses(said):
		return "", fmt.Errorf("%s: refused: %q", strings.Join(words, " "), said)
	}
	return reply, nil
}

func refuses(reply string) bool {
	reply = strings.ToLower(reply)
	for _, word := range refusals {
		if strings.Contains(reply, word) {
			return true
		}
	}
	return false
}

// check sends a query that every working daemon answers.
func (c control) check(ctx context.Context) error {
	reply, err := c.command(ctx, "get_default_active_thread_percentage")
	if err != nil {
		return err
	}
	if percent, err := strconv.ParseFloat(reply, 64); err != nil || percent <= 0 || percent > 100 {
		return fmt.Errorf("get_default_active_thread_percentage: %q is not a percentage", reply)
	}
	return nil
}

func (c control) apply(ctx context.Context, gpus []inventory.Part) error {
	if _, err := c.command(ctx, "set_default_active_thread_percentage", "100"); err != nil {
		return err
	}
	for index, g := range gpus {
		if _, err := c.command(ctx, "set_default_device_pinned_mem_limit", strconv.Itoa(index), fmt.Sprintf("%dM", g.MiB)); err != nil {
			return err
		}
	}
	return nil
}

// clients returns the number of client processes, and the process IDs of the daemon's MPS servers.
func (c control) clients(ctx context.Context) (clients int, servers []int, err error) {
	list, err := c.command(ctx, "get_server_list")
	if err != nil {
		return 0, nil, err
	}
	for word := range strings.FieldsSeq(list) {
		n, err := c.count(ctx, "get_client_list", word)
		if err != nil {
			return 0, nil, err
		}
		clients += n
		if pid, err := strconv.Atoi(word); err == nil {
			servers = append(servers, pid)
		}
	}
	return clients, servers, nil
}

// count returns the number of processes in a reply: the distinct numbers at the start of its lines. A process
// that uses several GPUs has several lines.
func (c control) count(ctx context.Context, words ...string) (n int, err error) {
	reply, err := c.command(ctx, words...)
	if err != nil {
		return 0, err
	}
	pids := make(map[int]bool)
	for line := range strings.Lines(reply) {
		if fields := strings.FieldsFunc(line, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }); len(fields) > 0 {
			if pid, err := strconv.Atoi(fields[0]); err == nil {
				pids[pid] = true
			}
		}
	}
	return len(pids), nil
}

func (c control) quit(ctx context.Context) error {
	_, err := c.command(ctx, "quit")
	return err
}
