package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplies verifies that the stand-in is as strict as a test of the supervisor needs.
func TestReplies(t *testing.T) {
	d := daemon{pipe: t.TempDir(), terms: terms{percent: 100, limits: make(map[string]string)}}
	for _, tc := range []struct{ command, reply, err string }{
		{"get_default_active_thread_percentage", "100.0", ""},
		{"set_default_active_thread_percentage 50", "50.0", ""},
		{"get_default_active_thread_percentage", "50.0", ""},
		{"set_default_active_thread_percentage 0", "", "Invalid percentage"},
		{"set_default_active_thread_percentage -1", "", "Invalid percentage"},
		{"set_default_active_thread_percentage 0.5", "0.5", ""},
		{"set_default_active_thread_percentage 100.5", "", "Invalid percentage"},
		{"set_default_active_thread_percentage 100", "100.0", ""},
		{"set_default_active_thread_percentage many", "", "Invalid percentage"},
		{"set_default_active_thread_percentage", "", "Unknown command"},
		{"set_default_active_thread_percentage 1 2", "", "Unknown command"},
		{"set_default_device_pinned_mem_limit 0 1M", "", ""},
		{"set_default_device_pinned_mem_limit 63 1024M", "", ""},
		{"set_default_device_pinned_mem_limit 64 1M", "", "Invalid device"},
		{"set_default_device_pinned_mem_limit -1 1M", "", "Invalid device"},
		{"set_default_device_pinned_mem_limit GPU-a 1M", "", "Invalid device"},
		{"set_default_device_pinned_mem_limit 0 0M", "", "Invalid limit"},
		{"set_default_device_pinned_mem_limit 0 1G", "", "Invalid limit"},
		{"set_default_device_pinned_mem_limit 0 xM", "", "Invalid limit"},
		{"set_default_device_pinned_mem_limit 0", "", "Unknown command"},
		{"get_server_list", "", ""},
		{"quit", "", ""},
		{"quit now", "", "Unknown command"},
		{"", "", "Unknown command"},
	} {
		reply, err := d.reply(strings.Fields(tc.command))
		if reply != tc.reply || (err == nil) != (tc.err == "") || err != nil && !strings.HasPrefix(err.Error(), tc.err) {
			t.Errorf("%q: %q, %v; want %q, %q", tc.command, reply, err, tc.reply, tc.err)
		}
	}
	if d.limits["0"] != "1M" || d.limits["63"] != "1024M" || len(d.limits) != 2 {
		t.Errorf("limits %v", d.limits)
	}
	for _, tc := range []struct{ file, content, command, reply string }{
		{"clients", "17\n23\n", "get_server_list", "4242"},
		{"broken", "quit get_server_list", "get_server_list", "Error: the operation failed"},
		{"broken", "quit", "get_server_list", "4242"},
		{"broken", "all", "get_server_list", "Error: the operation failed"},
		{"broken", "", "get_client_list 4242", "17\n23"},
	} {
		if err := os.WriteFile(filepath.Join(d.pipe, tc.file), []byte(tc.content), 0o644); err != nil {
			t.Fatal(err)
		}
		reply, err := d.reply(strings.Fields(tc.command))
		if err != nil {
			reply = err.Error()
		}
		if reply != tc.reply {
			t.Errorf("with %q in the file %s: %q, want %q", tc.content, tc.file, reply, tc.reply)
		}
	}
}

// TestStartsThatFail covers the files with which a test makes a daemon fail at its start.
func TestStartsThatFail(t *testing.T) {
	both, one := []string{"-f", "-multiuser-server"}, []string{"-f"}
	for name, tc := range map[string]struct {
		files map[string]string
		args  []string
		want  string
	}{
		"a refused option":                {map[string]string{"refused": "-multiuser-server", "dying": "no memory"}, both, "usage: "},
		"another option is refused":       {map[string]string{"refused": "-multiuser-server", "dying": "no memory"}, one, "no memory"},
		"no option is refused":            {map[string]string{"dying": "no memory"}, both, "no memory"},
		"a socket that cannot be created": {nil, one, "listen unix"},
	} {
		d := daemon{pipe: t.TempDir(), logs: t.TempDir()}
		for file, content := range tc.files {
			if err := os.WriteFile(filepath.Join(d.pipe, file), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if tc.files == nil {
			d.pipe = filepath.Join(d.pipe, "none")
		}
		if err := d.start(tc.args); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
