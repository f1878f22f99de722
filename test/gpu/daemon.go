package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// mpsControl is NVIDIA's program, daemon and tool in one.
const mpsControl = "nvidia-cuda-mps-control"

// What is asked of the MPS daemon.
const (
	takesSettings = "it starts, takes gpumem's settings, and limits a client"
	listsServers  = "it lists its servers"
	listsClients  = "it lists its clients"
	namespaces    = "it makes, changes, reads and deletes a namespace"
	readOnly      = "its folder is read only for containers"
	throughFolder = "a client works through that folder"
	askedThere    = "it can be asked through that folder"
	quits         = "it ends when it is told to"
)

// daemon asks the MPS daemon what gpumem asks it.
func (k kit) daemon(ctx context.Context, a *answers) error {
	if err := has(mpsControl); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	stop, err := k.startMPS(ctx, dir)
	defer stop()
	a.tell(takesSettings, fmt.Sprintf("protocol %d", k.facts.protocol()), err)
	if err != nil {
		return fmt.Errorf("the daemon does not serve: %w", err)
	}
	clients := filepath.Join(mpsDir(dir), "clients")
	pipe := clients
	if k.facts.protocol() == 3 {
		pipe = filepath.Join(clients, serverName, "kit") // made below
	}
	tell := func(name string, f func() (string, error)) {
		seen, err := f()
		a.tell(name, seen, err)
	}
	ask := func(commands ...string) func() (string, error) {
		return func() (string, error) { return k.ask(ctx, filepath.Join(mpsDir(dir), "pipe"), commands...) }
	}
	if k.facts.protocol() == 3 {
		const server = " --server=" + serverName
		tell(listsServers, ask("server list --format=csv,noheader"))
		tell(namespaces, ask("namespace create kit"+server, "namespace set kit"+server+" --pinned-memory-limit=2048M --active-thread-percentage=50",
			"namespace get kit "+serverName+" pinned-memory-limit", "namespace list"+server+" --format=csv,noheader",
			"namespace create other"+server, "namespace delete other"+server))
		tell(throughFolder, func() (string, error) { return k.client(ctx, pipe) })
		tell(listsClients, ask("client list --all --format=csv,noheader"))
		tell(askedThere, func() (string, error) { return k.ask(ctx, clients, "server list --format=csv,noheader") })
	} else {
		a.tell(namespaces, "", cannot("driver %s: its daemon speaks protocol 2, which has none", k.facts.version))
		tell(throughFolder, func() (string, error) { return k.client(ctx, pipe) })
		tell(listsServers, ask("get_server_list"))
		tell(listsClients, ask("get_server_list", "get_client_list SERVER"))
		tell(askedThere, func() (string, error) { return k.ask(ctx, clients, "get_default_active_thread_percentage") })
	}
	tell(readOnly, func() (string, error) { return "", mustNotWrite(clients) })
	tell(quits, func() (string, error) {
		if k.facts.protocol() == 3 {
			return k.ask(ctx, filepath.Join(mpsDir(dir), "pipe"), "-q")
		}
		return k.ask(ctx, filepath.Join(mpsDir(dir), "pipe"), "quit")
	})
	return nil
}

// has says that a program is not here.
func has(program string) error {
	if _, err := exec.LookPath(program); err != nil {
		return cannot("%s is not on this machine", program)
	}
	return nil
}

// client runs a program as a client, which may have half of 2 GiB and not twice as much.
func (k kit) client(ctx context.Context, pipe string) (string, error) {
	c := container{}.with("CUDA_MPS_PIPE_DIRECTORY=" + pipe)
	if k.facts.protocol() == 2 {
		c = c.with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2048M")
	}
	return "", errors.Join(about("1 GiB of 2", k.run(ctx, c, "alloc", "1024").wants(false)), about("4 GiB of 2", k.run(ctx, c, "alloc", "4096").wants(true)))
}

// mustNotWrite fails where a file can be made in a folder.
func mustNotWrite(dir string) error {
	file := filepath.Join(dir, "written-by-the-kit")
	if os.WriteFile(file, nil, 0o600) == nil {
		_ = os.Remove(file)
		return errors.New("a file could be made in it")
	}
	return nil
}

// ask gives the daemon commands, one after the other, and returns them with their answers.
// SERVER in a command is the first word of the answer before.
func (k kit) ask(ctx context.Context, pipe string, commands ...string) (string, error) {
	var said []string
	last := ""
	for _, command := range commands {
		if strings.Contains(command, "SERVER") {
			server, _, _ := strings.Cut(last, "\n")
			if server == "" {
				return "", cannot("it lists no server: there is none before a client comes, or after the last has gone")
			}
			command = strings.ReplaceAll(command, "SERVER", server)
		}
		answer, err := k.command(ctx, pipe, command)
		if err != nil {
			return "", err
		}
		last = answer
		said = append(said, fmt.Sprintf("%s: %q", command, answer))
	}
	return strings.Join(said, "; "), nil
}

// refusals are words by which the daemon refuses: it ends with success all the same.
var refusals = []string{"error", "invalid", "fail", "unknown", "cannot", "not found", "usage:"}

// command gives the daemon one command: by the program's arguments with protocol 3, on its standard
// input with protocol 2.
func (k kit) command(ctx context.Context, pipe, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, k.patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, mpsControl)
	if k.facts.protocol() == 3 {
		cmd.Args = append(cmd.Args, strings.Fields(command)...)
	} else {
		cmd.Stdin = strings.NewReader(command + "\n")
	}
	cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+pipe, "CUDA_MPS_LOG_DIRECTORY="+pipe)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	answer := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("%s: %w: %q", command, err, answer)
	}
	for _, word := range refusals {
		if strings.Contains(strings.ToLower(answer), word) {
			return "", fmt.Errorf("%s: refused: %q", command, answer)
		}
	}
	return answer, nil
}
