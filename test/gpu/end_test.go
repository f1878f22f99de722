package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// Who asks the kit to end, by a signal to its script, or by Ctrl-C or the end of a terminal, which all programs hear, is left
// with nothing of it: no program, no memory that is kept for a control group, no file.
func (w world) testEnd(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "gcc", "-o", w.file("limits"), "../fakenvml/testdata/driver.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	signals := []os.Signal{syscall.SIGINT}
	if *long {
		signals = asked()
	}
	for _, part := range []string{mpsLevel, kernelLevel, "vendor"} {
		for _, signal := range signals {
			t.Run(part+", "+signal.String(), func(t *testing.T) { w.testEndOf(t, part, signal.(syscall.Signal)) })
		}
	}
}

func (w world) testEndOf(t *testing.T, part string, signal syscall.Signal) {
	w.machine(t, newDriver, 1)
	before, err := library{w.file("libnvidia-ml.so.1")}.settings()
	if err != nil {
		t.Fatal(err)
	}
	cmd, temp := w.begin(t, part)
	to := cmd.Process.Pid
	if signal != syscall.SIGTERM {
		to = -to
	}
	if err := syscall.Kill(to, signal); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a kit that was asked to end has measured all")
	}
	w.wantNothingLeft(t, temp)
	if after, err := (library{w.file("libnvidia-ml.so.1")}).settings(); err != nil || after != before {
		t.Errorf("before: %s; after: %s, %v", before, after, err)
	}
}

// begin starts the script as a job of a terminal, with files in a folder of its own, and returns when
// one of its programs runs, which comes to no end.
func (w world) begin(t *testing.T, part string) (cmd *exec.Cmd, temp string) {
	t.Helper()
	w.lies(t, "lie", `case $1 in spin|most) echo >"$here/program.log"; exec sleep 600;; esac`+"\n")
	t.Cleanup(func() { os.Remove(w.file("program.log")) })
	text, unread := os.ReadFile("run.sh")
	self, err := os.Executable()
	temp = w.file("t") // short: sockets are made below it
	if err := errors.Join(unread, err, os.Mkdir(temp, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	program(t, w.dir, "run.sh", string(text))
	program(t, w.file("prebuilt"), "gpu", fmt.Sprintf("#!/bin/sh\nexec env %s=1 %s \"$@\"\n", asTheKit, self))
	cmd = exec.CommandContext(t.Context(), w.file("run.sh"), "-results", "", "-parts", part, "-plugin", w.file("plugin"), "-probe", w.file("probe"),
		"-nvml-library", w.file("libnvidia-ml.so.1"), "-cgroup-root", w.file(cgroups))
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, inOwnMounts+"=") }), "TMPDIR="+temp)
	cmd.Stdout, cmd.Stderr = testLog{t}, testLog{t}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second // for those that it leaves
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	begun(t, w.file("program"))
	return cmd, temp
}

func (w world) wantNothingLeft(t *testing.T, temp string) {
	t.Helper()
	if left := processesWith("TMPDIR=" + temp); len(left) > 0 {
		t.Errorf("it has left processes: %q", left)
	}
	// The simulated control groups of programs do not go with their files, as Linux' do.
	for _, pattern := range []string{temp + "/*", w.file(cgroups, pods, "gpumem-*")} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("it has left %v, %v", left, err)
		}
	}
	cmd := exec.CommandContext(t.Context(), w.file("limits"), "limits", w.file("libnvidia-ml.so.1"))
	cmd.Stdin = strings.NewReader("get 0 " + w.file(cgroups, pods) + "\nget 0 " + w.file(cgroups, parent) + "\n")
	// NVML says NOT_FOUND of groups that have no limit.
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "get 6 0 0 0\nget 6 0 0 0\n" {
		t.Errorf("limits of control groups: %s, %v", out, err)
	}
}

// processesWith returns the command lines of processes with a variable.
func processesWith(variable string) (lines []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), variable+"\x00") {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
			lines = append(lines, string(line))
		}
	}
	return lines
}

// Nothing runs on once a kit was killed.
func (w world) testKilled(t *testing.T) {
	w.machine(t, newDriver, 1)
	cmd, temp := w.begin(t, mpsLevel)
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if err := wait(t.Context(), 20*time.Second, func() error {
		if left := processesWith("TMPDIR=" + temp); len(left) > 0 {
			return fmt.Errorf("it has left processes: %q", left)
		}
		return nil
	}); err != nil {
		t.Error(err)
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

// A daemon is not killed with the kit, which would leave its servers: it is asked to end.
func TestADaemonIsAskedToEnd(t *testing.T) {
	dir := t.TempDir()
	daemon := program(t, dir, mpsControl, `#!/bin/sh
trap 'echo ended >>"$0.log"; exit' TERM
: >"$CUDA_MPS_PIPE_DIRECTORY/control"
while :; do echo works >>"$0.log"; sleep 0.1; done
`)
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	_, stop, err := kit{facts: facts{version: oldDriver}, patience: 20 * time.Second}.startDaemon(ctx, dir)
	if err != nil {
		stop()
		t.Fatal(err)
	}
	cancel()
	lines := len(logOf(daemon))
	if err := wait(t.Context(), 20*time.Second, func() error {
		if len(logOf(daemon)) < lines+3*len("works\n") {
			return errors.New("it does not work any more")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if stop(); !strings.HasSuffix(logOf(daemon), "ended\n") {
		t.Errorf("it said %q", logOf(daemon))
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
