package main

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// serverName is the one server that a configuration may have.
const serverName = "gpumem"

// namespaces are those of a server: a folder each in the pipe directory, with a socket of its own
// (NVIDIA, "MPS v3 Namespaces").
type namespaces struct {
	mu sync.Mutex
	of map[string]*namespace
}

type namespace struct {
	terms
	listener net.Listener
}

var nameOf = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)

// listenAll opens the sockets of all namespaces of the configuration, and the server's own, which
// leads to the default one.
func (d *daemon) listenAll() error {
	for name, n := range d.namespaces.of {
		if err := d.listen(name, n); err != nil {
			return err
		}
	}
	if n := d.namespaces.of["default"]; n != nil {
		return d.listen("", n)
	}
	return nil
}

func (d *daemon) listen(name string, n *namespace) error {
	dir := filepath.Join(d.pipe, serverName, name)
	socket := filepath.Join(dir, "control")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.RemoveAll(socket)); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	n.listener = listener
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "attach\n" {
				conn.Close()
				continue
			}
			d.namespaces.mu.Lock()
			granted := terms{percent: n.percent, limits: maps.Clone(n.limits)}
			d.namespaces.mu.Unlock()
			d.attached.attach(conn, granted)
		}
	}()
	return os.Chmod(socket, 0o777) // for many users, as is wanted of it
}

// namespace does what a command says (NVIDIA, "MPS v3 Interface").
func (d *daemon) namespace(words []string) (string, error) {
	d.namespaces.mu.Lock()
	defer d.namespaces.mu.Unlock()
	server := "--server=" + serverName
	if slices.Equal(words, []string{"list", server, "--format=csv,noheader"}) {
		return d.listNamespaces(), nil
	}
	if len(words) < 3 {
		return "", unknown(words)
	}
	if words[0] == "create" && len(words) == 3 && words[2] == server && nameOf.MatchString(words[1]) {
		return "", d.createNamespace(words[1])
	}
	if d.namespaces.of[words[1]] == nil {
		return "", fmt.Errorf("Namespace %q not found", words[1])
	}
	if words[2] == server {
		return "", d.change(words)
	}
	if slices.Equal(words[2:], []string{serverName, "pinned-memory-limit"}) && words[0] == "get" {
		return d.namespaces.of[words[1]].limits["all"], nil
	}
	return "", unknown(words)
}

func unknown(words []string) error { return fmt.Errorf("Unknown command %q", words) }

// change sets terms of a namespace that is there, or deletes it.
func (d *daemon) change(words []string) error {
	name, options := words[1], words[3:]
	n := d.namespaces.of[name]
	switch {
	case words[0] == "set" && len(options) > 0:
		return n.setAll(options)
	case words[0] == "delete" && len(options) == 0:
		delete(d.namespaces.of, name)
		n.listener.Close()
		return os.RemoveAll(filepath.Join(d.pipe, serverName, name))
	default:
		return unknown(words)
	}
}

func (n *namespace) setAll(options []string) error {
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		if err := n.set(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemon) listNamespaces() string {
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(d.namespaces.of)) {
		n := d.namespaces.of[name]
		fmt.Fprintf(&out, "%s,%s,Ready,%s,%.2f,0,%s\n", name, serverName, n.limits["all"], n.percent, filepath.Join(d.pipe, serverName, name))
	}
	return strings.TrimSpace(out.String())
}

func (d *daemon) createNamespace(name string) error {
	if d.namespaces.of[name] != nil {
		return fmt.Errorf("Error: namespace %s exists", name)
	}
	n := &namespace{terms: terms{percent: 100, limits: make(map[string]string)}}
	d.namespaces.of[name] = n
	return d.listen(name, n)
}
