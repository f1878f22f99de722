// Command standin replaces nvidia-cuda-mps-control in tests. It validates its input strictly, and appends every
// command as a line to standin.log in the log directory. It has no GPU: its clients are processes that use the
// simulated driver of test/fakenvml.
//
// A test controls it through files in the pipe directory:
//
//	clients   process IDs to report as clients, one per line
//	broken    first words of commands that fail; "all" makes every command fail
//	deaf      while it exists, the daemon answers nothing
//	refused   options with which the daemon does not start
//	dying     output of a daemon that exits at its start
//	locking   while it exists, the client tool needs write access to the pipe directory
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(args []string) error {
	pipe, logs := os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), os.Getenv("CUDA_MPS_LOG_DIRECTORY")
	for _, dir := range []string{pipe, logs} {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return fmt.Errorf("error: no directory %q", dir)
		}
	}
	d := daemon{pipe: pipe, logs: logs}
	switch {
	case slices.Equal(args, []string{"-f", "-multiuser-server"}), slices.Equal(args, []string{"-f"}):
		return d.start(args)
	case len(args) == 0:
		// Tests replace the read-only directory of clients by a symbolic link, which is writable.
		if _, err := os.Stat(filepath.Join(pipe, "locking")); err == nil && filepath.Base(pipe) == "clients" {
			return errors.New("Cannot open the lock: Read-only file system")
		}
		return d.ask(os.Stdin)
	default:
		return fmt.Errorf("error: unknown option %q", args)
	}
}

type daemon struct {
	pipe, logs string
	terms
	attached attached
}

func (d *daemon) socket() string { return filepath.Join(d.pipe, "control") }

// ask sends commands to the daemon, one per line, and prints the replies.
func (d *daemon) ask(commands io.Reader) error {
	lines := bufio.NewScanner(commands)
	for lines.Scan() {
		conn, err := net.Dial("unix", d.socket())
		if err != nil {
			return errors.New("Cannot find MPS control daemon process")
		}
		if _, err := fmt.Fprintln(conn, lines.Text()); err != nil {
			return err
		}
		if _, err := io.Copy(os.Stdout, conn); err != nil {
			return err
		}
	}
	return lines.Err()
}

// start runs the daemon, unless a file in the pipe directory makes the start fail.
func (d *daemon) start(args []string) error {
	refused, err := os.ReadFile(filepath.Join(d.pipe, "refused"))
	if i := slices.IndexFunc(args, func(arg string) bool { return slices.Contains(strings.Fields(string(refused)), arg) }); err == nil && i >= 0 {
		d.note("refused " + args[i])
		return fmt.Errorf("usage: nvidia-cuda-mps-control [-d | -f]\nunknown option %s", args[i])
	}
	if text, err := os.ReadFile(filepath.Join(d.pipe, "dying")); err == nil {
		return errors.New(string(text))
	}
	return d.serve(args)
}

// serve runs the daemon. It ends at the end of its standard input, like the real daemon in the foreground.
func (d *daemon) serve(args []string) error {
	if conn, err := net.Dial("unix", d.socket()); err == nil {
		conn.Close()
		return errors.New("An instance of this daemon is already running")
	}
	if err := os.RemoveAll(d.socket()); err != nil {
		return err
	}
	listener, err := net.Listen("unix", d.socket())
	if err != nil {
		return err
	}
	if err := os.Chmod(d.socket(), 0o777); err != nil { // clients have any user
		return err
	}
	if err := os.WriteFile(filepath.Join(d.pipe, "nvidia-cuda-mps-control.pid"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	d.percent, d.limits = 100, make(map[string]string)
	d.note("start " + strings.Join(args, " "))
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop <- syscall.SIGTERM
	}()
	go func() {
		<-stop
		listener.Close()
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			d.note("end")
			return nil
		}
		if d.answer(conn) {
			listener.Close()
		}
	}
}
