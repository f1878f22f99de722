package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// untilAsked is a program that ends in order when it is asked to.
const untilAsked = "#!/bin/sh\ntrap 'sleep 0.3; echo ended >>\"$0.log\"; exit 3' TERM\necho started >>\"$0.log\"\nwhile :; do sleep 0.1; done\n"

// program writes a script into a folder.
func program(t *testing.T, dir, name, script string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(path, []byte(script), 0o755)); err != nil {
		t.Fatal(err)
	}
	return path
}

func logOf(path string) string {
	text, err := os.ReadFile(path + ".log")
	if err != nil {
		return ""
	}
	return string(text)
}

// begun waits until a program has said that it has.
func begun(t *testing.T, path string) {
	t.Helper()
	if err := wait(t.Context(), 20*time.Second, func() error {
		if logOf(path) == "" {
			return errors.New("it has not begun")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A script that is asked to end asks the kit, and waits for it.
func TestTheScriptEndsAfterTheKit(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		dir := t.TempDir()
		text, err := os.ReadFile("run.sh")
		if err != nil {
			t.Fatal(err)
		}
		script := program(t, dir, "run.sh", string(text))
		kit := program(t, filepath.Join(dir, "prebuilt"), "gpu", untilAsked)
		cmd := exec.CommandContext(t.Context(), script)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		begun(t, kit)
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 3 || logOf(kit) != "started\nended\n" {
			t.Errorf("%s: the script ended with %v, and the kit said %q", signal, err, logOf(kit))
		}
	}
}

// The script ends as the kit does.
func TestTheScriptEndsAsTheKit(t *testing.T) {
	for exit, want := range map[string]int{"true": 0, "exit 1": 1} {
		dir := t.TempDir()
		text, err := os.ReadFile("run.sh")
		if err != nil {
			t.Fatal(err)
		}
		script := program(t, dir, "run.sh", string(text))
		program(t, filepath.Join(dir, "prebuilt"), "gpu", "#!/bin/sh\nsleep 0.2\n"+exit+"\n")
		cmd := exec.CommandContext(t.Context(), script)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != want {
			t.Errorf("%s: %v, want %d: %s", exit, err, want, out)
		}
	}
}

// A signal to the process that runs the kit in mounts of its own reaches the kit, which is waited for.
func TestTheKitInItsMountsHearsOfIt(t *testing.T) {
	kit := program(t, t.TempDir(), "gpu", untilAsked)
	ended := make(chan error, 1)
	go func() { ended <- runToItsEnd(exec.CommandContext(t.Context(), kit)) }()
	begun(t, kit)
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; logOf(kit) != "started\nended\n" {
		t.Errorf("%v, and the kit said %q", err, logOf(kit))
	}
}

// A container does not outlive the kit, though ctr was killed that had started it.
func TestAContainerGoesWithTheKit(t *testing.T) {
	dir := t.TempDir()
	ctr := program(t, dir, containrd, "#!/bin/sh\necho \"$@\" >>\"$0.log\"\n[ $1 != run ] || exec sleep 60\n")
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan Probe, 1)
	go func() { ended <- kit{probe: "/probe", log: testLog{t}}.contained(ctx, "", nil, nil, "alloc", "1") }()
	begun(t, ctr)
	cancel()
	<-ended
	lines := strings.Split(logOf(ctr), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[1], "tasks delete --force gpumem-kit-") || !strings.HasPrefix(lines[2], "containers delete gpumem-kit-") {
		t.Errorf("ctr was asked for %q", lines)
	}
}
