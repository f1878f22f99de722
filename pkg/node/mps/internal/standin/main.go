// Command standin takes the place of nvidia-cuda-mps-control in tests. It checks
// what it is told as strictly as it can, and writes it down: every command is a line
// of standin.log in the log directory. It has no GPU: its clients are processes that use
// the simulated driver of test/fakenvml.
//
// A test steers it by files in the pipe directory:
//
//	clients   process IDs, one a line, that it says are its clients
//	broken    commands fail whose first word is in it; "all" are all of them
//	deaf      while it is there, nothing is answered
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
	"time"
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
	case slices.Equal(args, []string{"-f", "-multiuser-server"}):
		d.protocol = 2
		return d.serve(args)
	case len(args) == 6 && slices.Equal(args[:5], []string{"-p", "3", "-m", "-f", "-a"}):
		d.protocol = 3
		config, err := os.ReadFile(args[5])
		if err == nil {
			err = d.configure(string(config))
		}
		if err != nil {
			return fmt.Errorf("error: configuration %s: %v", args[5], err)
		}
		return d.serve(args)
	case len(args) == 0:
		return d.ask(os.Stdin)
	case slices.Equal(args, []string{"-q"}):
		return d.ask(strings.NewReader("quit\n"))
	case slices.Contains([]string{"server", "client", "namespace"}, args[0]):
		return d.ask(strings.NewReader(strings.Join(args, " ") + "\n"))
	default:
		return fmt.Errorf("error: unknown option %q", args)
	}
}

type daemon struct {
	pipe, logs string
	protocol   int
	terms
	attached   attached
	namespaces namespaces // of version 3
}

func (d *daemon) socket() string { return filepath.Join(d.pipe, "control") }

// ask sends commands to the daemon, one a line, and prints the replies.
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

// serve is the daemon. It ends when its standard input does, as in the foreground.
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
	if err := os.Chmod(d.socket(), 0o777); err != nil { // for many users, as it is told to be
		return err
	}
	if err := os.WriteFile(filepath.Join(d.pipe, "nvidia-cuda-mps-control.pid"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	d.percent, d.limits = 100, make(map[string]string)
	if err := d.listenAll(); err != nil {
		return err
	}
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

// answer answers one command, and reports whether it was the last.
func (d *daemon) answer(conn net.Conn) (last bool) {
	for {
		if _, err := os.Stat(filepath.Join(d.pipe, "deaf")); err != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	command := strings.TrimSpace(line)
	if command == "attach" {
		d.attached.attach(conn, d.terms)
		return false
	}
	defer conn.Close()
	if err != nil {
		return false
	}
	reply, err := d.reply(strings.Fields(command))
	if err != nil {
		reply = err.Error()
	}
	d.note(command)
	fmt.Fprintln(conn, reply)
	return command == "quit"
}

func (d *daemon) reply(words []string) (string, error) {
	if len(words) == 0 {
		return "", errors.New("Unknown command")
	}
	if broken, err := os.ReadFile(filepath.Join(d.pipe, "broken")); err == nil {
		if f := strings.Fields(string(broken)); slices.Contains(f, words[0]) || slices.Contains(f, "all") {
			return "", errors.New("Error: the operation failed")
		}
	}
	switch command := strings.Join(words, " "); {
	case command == "quit":
		return "", nil
	case d.protocol == 3:
		return d.reply3(command)
	default:
		return d.reply2(words, command)
	}
}

// reply3 replies by the third protocol.
func (d *daemon) reply3(command string) (string, error) {
	switch {
	case command == "server list --format=csv,noheader":
		return serverName + ",0,4242,Ready," + filepath.Join(d.pipe, serverName) + ",all,-", nil
	case command == "client list --all --format=csv,noheader":
		return d.clients(), nil
	case strings.HasPrefix(command, "namespace "):
		return d.namespace(strings.Fields(command)[1:])
	default:
		return "", fmt.Errorf("Unknown command %q", command)
	}
}

// reply2 replies by the second protocol.
func (d *daemon) reply2(words []string, command string) (string, error) {
	switch {
	case command == "get_default_active_thread_percentage":
		return fmt.Sprintf("%.1f", d.percent), nil
	case words[0] == "set_default_active_thread_percentage" && len(words) == 2:
		percent, err := strconv.ParseFloat(words[1], 64)
		if err != nil || percent <= 0 || percent > 100 {
			return "", fmt.Errorf("Invalid percentage %q", words[1])
		}
		d.percent = percent
		return fmt.Sprintf("%.1f", percent), nil
	case words[0] == "set_default_device_pinned_mem_limit" && len(words) == 3:
		return "", d.limit(words[1], words[2])
	case command == "get_server_list":
		if d.clients() == "" {
			return "", nil
		}
		return "4242", nil
	case command == "get_client_list 4242":
		return d.clients(), nil
	default:
		return "", fmt.Errorf("Unknown command %q", command)
	}
}

func (d *daemon) limit(index, value string) error {
	if n, err := strconv.Atoi(index); err != nil || n < 0 || n > 63 {
		return fmt.Errorf("Invalid device %q", index)
	}
	amount, ok := strings.CutSuffix(value, "M")
	if n, err := strconv.Atoi(amount); !ok || err != nil || n <= 0 {
		return fmt.Errorf("Invalid limit %q", value)
	}
	d.limits[index] = value
	return nil
}

// clients returns the processes that use the daemon, and those that a test says do.
func (d *daemon) clients() string {
	text, err := os.ReadFile(filepath.Join(d.pipe, "clients"))
	if err != nil {
		text = nil
	}
	return strings.TrimSpace(d.attached.list() + string(text))
}

// note writes down what the daemon was told.
func (d *daemon) note(line string) {
	f, err := os.OpenFile(filepath.Join(d.logs, "standin.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}
