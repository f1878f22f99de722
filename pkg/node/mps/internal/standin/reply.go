package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// answer replies to one command. It reports whether the command was quit.
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
		return d.servers(), nil
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

// servers returns the process ID of the daemon's only server, which runs while it has clients.
func (d *daemon) servers() string {
	if d.clients() == "" {
		return ""
	}
	return "4242"
}

// clients returns the attached processes, and those in the test's file clients.
func (d *daemon) clients() string {
	text, err := os.ReadFile(filepath.Join(d.pipe, "clients"))
	if err != nil {
		text = nil
	}
	return strings.TrimSpace(d.attached.list() + string(text))
}

// note appends a line to standin.log.
func (d *daemon) note(line string) {
	f, err := os.OpenFile(filepath.Join(d.logs, "standin.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}
