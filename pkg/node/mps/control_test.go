package mps

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
)

// TestFindControl searches the PATH first, and then the driver's root.
func TestFindControl(t *testing.T) {
	const name = "nvidia-cuda-mps-control"
	path, root := t.TempDir(), t.TempDir()
	t.Setenv("PATH", path)
	want := func(given, want string) {
		t.Helper()
		if got, err := FindControl(given, root); got != want || (err == nil) != (want != "") {
			t.Errorf("found %q, %v; want %q", got, err, want)
		}
	}
	program := func(dir string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	want("/given", "/given")
	want("", "")
	for _, dir := range []string{filepath.Join(root, "bin"), filepath.Join(root, "usr/bin"), path} { // each directory takes precedence over the earlier ones
		want("", program(dir))
	}
	want("/given", "/given")
}

// fixed returns a control program that logs its commands and always gives one reply.
func fixed(t *testing.T, reply string) (c control, commands func() []string) {
	t.Helper()
	dir := t.TempDir()
	program, log := filepath.Join(dir, "control"), filepath.Join(dir, "log")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ncat >>'"+log+"'\necho '"+reply+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return control{timeout: 10 * time.Second, program: program, env: os.Environ()}, func() []string {
		text, _ := os.ReadFile(log)
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

func TestCheckWantsAPercentage(t *testing.T) {
	for reply, want := range map[string]bool{
		"100.0": true, "100": true, "0.5": true, "0": false, "-1": false, "100.5": false, "": false, "many": false, "Cannot connect": false,
	} {
		c, _ := fixed(t, reply)
		if err := c.check(t.Context()); (err == nil) != want {
			t.Errorf("reply %q: %v", reply, err)
		}
	}
}

// TestApplyEndsWithTheFirstRefusal verifies that apply sends no setting after a refusal.
func TestApplyEndsWithTheFirstRefusal(t *testing.T) {
	c, commands := fixed(t, "")
	if err := c.apply(t.Context(), twoGPUs()); err != nil || !slices.Equal(commands(), []string{
		"set_default_active_thread_percentage 100", "set_default_device_pinned_mem_limit 0 14336M", "set_default_device_pinned_mem_limit 1 80896M",
	}) {
		t.Errorf("%v, commands %q", err, commands())
	}
	c, commands = fixed(t, "invalid")
	if err := c.apply(t.Context(), twoGPUs()); err == nil || len(commands()) != 1 {
		t.Errorf("%v, commands %q", err, commands())
	}
}

// TestModesThatCannotBeChanged verifies that no mode is changed without a record of the original ones.
func TestModesThatCannotBeChanged(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		lost bool
		file string
		want string
	}{
		"no GPU answers":               {true, filepath.Join(dir, "modes.json"), "read the compute modes: GPU is lost"},
		"the record cannot be read":    {false, broken, "read the compute modes: " + broken},
		"the record cannot be written": {false, filepath.Join(dir, "none", "modes.json"), "record the compute modes: "},
		"the record is a directory":    {false, dir, "read the compute modes: "},
	} {
		m := &modes{is: map[string]int{"GPU-a": 0}, lost: tc.lost}
		if err := (exclusive{modes: m, file: tc.file, log: zap.NewNop()}).set(); err == nil || !strings.HasPrefix(err.Error(), tc.want) || m.is["GPU-a"] != 0 {
			t.Errorf("%s: %v, mode %d", name, err, m.is["GPU-a"])
		}
	}
	m := &modes{is: map[string]int{"GPU-a": exclusiveProcess}}
	if err := (exclusive{modes: m, file: broken, log: zap.NewNop()}).restore(); err == nil || !strings.HasPrefix(err.Error(), "restore the compute modes: ") {
		t.Errorf("a record that cannot be read: %v", err)
	}
	if _, err := os.Stat(broken); errors.Is(err, fs.ErrNotExist) {
		t.Error("it is removed")
	}
}
