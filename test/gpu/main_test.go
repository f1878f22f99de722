package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumem/gpumem/test/fakenvml"
)

// probe runs the CUDA program with the simulated driver, and tells the driver in which control
// group that is. The driver has no kernels: how many were launched is made up.
const probe = `#!/bin/sh
[ -n "$CUDA_VISIBLE_DEVICES" ] || { echo '{"ok": false, "error": "no GPU"}'; exit; }
[ $1 != spin ] || { echo '{"ok": true, "start": 0.25, "launches": 100}'; exit; }
here=$(dirname "$0")
group=$(grep -lsx $$ "$here"/gpus.json.d/cgroup/kubepods/pod-gpumem-gpu-kit/*/cgroup.procs)
group=${group%/cgroup.procs}
export FAKENVML_CGROUP="${group#"$here"/gpus.json.d/cgroup}" LD_LIBRARY_PATH="$here"
exec "$here/cuda" "$@"
`

// plugin is the device plugin, as one who may set limits: the driver asks for CAP_SYS_ADMIN.
const plugin = `#!/bin/sh
[ $(id -u) = 0 ] || [ "$1" = mps ] || exec unshare --user --map-root-user "$(dirname "$0")/gpumem" "$@"
exec "$(dirname "$0")/gpumem" "$@"
`

// parts are what the kit runs: the real plugin, a simulated driver, and stand-ins for
// the MPS daemon and for the CUDA program.
type parts struct {
	t   *testing.T
	dir string
}

// cgroups is where the simulated driver has its control groups, and controllers what they hand down.
const (
	cgroups     = "gpus.json.d/cgroup"
	controllers = "cpu memory dmem\n"
)

func newParts(t *testing.T) parts {
	t.Helper()
	dir, err := os.MkdirTemp("", "kit") //nolint:usetesting // short: sockets are made below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	p := parts{t, dir}
	p.build("gpumem", "./cmd/gpumem-device-plugin", "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	p.program("plugin", plugin)
	p.build("nvidia-cuda-mps-control", "./pkg/node/mps/internal/standin")
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	if _, err := fakenvml.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKENVML_CONFIG", filepath.Join(dir, "gpus.json"))
	if out, err := exec.Command("gcc", "-o", filepath.Join(dir, "cuda"), "probe/probe.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	p.program("probe", probe)
	return p
}

// program writes a script that can be run.
func (p parts) program(name, script string) {
	p.t.Helper()
	p.write(script, name)
	if err := os.Chmod(filepath.Join(p.dir, name), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func (p parts) build(name, source string, env ...string) {
	p.t.Helper()
	cmd := exec.Command("go", "build", "-o", filepath.Join(p.dir, name), source)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("build %s: %v\n%s", name, err, out)
	}
}

// driver installs another driver.
func (p parts) driver(version string) {
	p.t.Helper()
	machine := fakenvml.NewMachine(fakenvml.T4("kit"))
	machine.DriverVersion = version
	if err := fakenvml.WriteConfig(filepath.Join(p.dir, "gpus.json"), machine); err != nil {
		p.t.Fatal(err)
	}
}

func (p parts) write(text string, path ...string) {
	p.t.Helper()
	file := filepath.Join(append([]string{p.dir}, path...)...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		p.t.Fatal(err)
	}
}

// run runs all of the kit at some levels.
func (p parts) run(levels string) (r Result, table string) {
	p.t.Helper()
	out := filepath.Join(p.dir, "result.json")
	var text strings.Builder
	err := run(p.t.Context(), []string{
		"-plugin", filepath.Join(p.dir, "plugin"), "-probe", filepath.Join(p.dir, "probe"), "-nvml-library", filepath.Join(p.dir, "libnvidia-ml.so.1"),
		"-cgroup-root", filepath.Join(p.dir, cgroups), "-json", out, "-seconds", "0.1", "-patience", "20s", "-levels", levels,
	}, &text, testLog{p.t})
	if err != nil {
		p.t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		p.t.Fatal(err)
	}
	return r, text.String()
}

func TestTheKit(t *testing.T) {
	p := newParts(t)
	t.Run("an old driver", p.testOldDriver)
	p.driver("615.10.01")
	p.write(controllers, cgroups, "cgroup.controllers")
	p.write("nvidia/0000:10:00.0/vidmem 16106127360\n", cgroups, "dmem.capacity")
	p.write(controllers, cgroups, "cgroup.subtree_control")
	p.write(controllers, cgroups, pods, "cgroup.subtree_control")
	t.Run("a limit that cannot be set", p.testNoLimit)
	t.Run("the kernel's limit", p.testKernel)
}

func (p parts) testOldDriver(t *testing.T) {
	p.driver("580.65.06")
	r, table := p.run("advisory,mps,kernel")
	byLevel := make(map[string]Level)
	for _, l := range r.Levels {
		byLevel[l.Level] = l
	}
	if l := byLevel["advisory"]; l.Missing != "" || l.Limits() || !l.Beyond.OK || l.Env["GPUMEM_LIMIT_MIB"] != "2048" {
		t.Errorf("advisory: %+v", l)
	}
	l := byLevel["mps"]
	if l.Missing != "" || !l.Limits() || l.Forked.OK || !l.Both.OK || !l.Neighbour.OK || l.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != "0=2048M" {
		t.Errorf("mps: %+v", l)
	}
	want := Shared{Sharers: 12, Launches: 1200, Start: 0.25, OfExclusive: 12, OfTimeSlicing: 1}
	if len(l.Shared) != 5 || l.Shared[4] != want || len(r.TimeSlicing) != 5 || r.TimeSlicing[4] != want {
		t.Errorf("sharers: %+v, by time-slicing %+v", l.Shared, r.TimeSlicing)
	}
	if l := byLevel["kernel"]; l.Missing == "" {
		t.Errorf("kernel, on an old driver: %+v", l)
	}
	for _, words := range []string{
		"advisory      not enforced  works   works   works   works     works",
		"mps           enforced      works   fails   fails   works     works",
		"kernel        not here: ",
		"time-slicing  8        800       8.00          1.00             0.00    0.25     +0.00",
	} {
		if !strings.Contains(table, words) {
			t.Errorf("the table does not have %q:\n%s", words, table)
		}
	}
}

// The driver has passed the plugin's test, and cannot limit containers: those above theirs do not
// hand dmem down, and what the kit writes there does nothing in a plain folder. No program runs
// in a container without its limit.
func (p parts) testNoLimit(t *testing.T) {
	p.write("cpu memory\n", cgroups, parent, "cgroup.subtree_control")
	r, table := p.run("kernel")
	l := r.Levels[0]
	if l.Missing != "" || l.Limits() || l.Shared[4].Failed != 12 {
		t.Errorf("%+v", l)
	}
	for _, probe := range []Probe{l.Within, l.Beyond, l.Forked, l.Both, l.Neighbour} {
		if probe.OK || !strings.Contains(probe.Error, "its limit of GPU memory does not hold") {
			t.Errorf("%+v", probe)
		}
	}
	if words := "kernel        not enforced  fails   fails   fails   fails     fails"; !strings.Contains(table, words) {
		t.Errorf("the table does not have %q:\n%s", words, table)
	}
}

// The driver has the limit from the plugin, which is asked as by a container runtime. It is one for
// all processes of a container. No MPS daemon runs.
func (p parts) testKernel(t *testing.T) {
	p.write(controllers, cgroups, parent, "cgroup.subtree_control")
	r, table := p.run("kernel")
	l := r.Levels[0]
	if l.Missing != "" || !l.Limits() || l.Env["CUDA_MPS_PIPE_DIRECTORY"] != "" || l.Forked.OK || l.Both.OK || !l.Neighbour.OK || l.Shared[4].Launches != 1200 {
		t.Errorf("%+v\n%s", l, table)
	}
	if words := "kernel        enforced      works   fails   fails   fails     works"; !strings.Contains(table, words) {
		t.Errorf("the table does not have %q:\n%s", words, table)
	}
}

// testLog is where the programs' output goes.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func TestShare(t *testing.T) {
	got := share([]Probe{{OK: true, Launches: 90, Start: 1}, {OK: true, Launches: 110, Start: 3}, {Error: "out of memory"}})
	if got.Launches != 200 || got.Start != 3 || got.Failed != 1 || fmt.Sprintf("%.2f", got.Spread) != "0.72" {
		t.Errorf("%+v", got)
	}
}

func TestProgramsThatSayNothing(t *testing.T) {
	k := kit{probe: "/bin/true", log: testLog{t}}
	if p := k.run(t.Context(), container{}, "alloc", "1"); p.OK || p.Error == "" {
		t.Errorf("%+v", p)
	}
}

// TestTheProgramBuilds: it needs gcc alone, and without a driver it says so.
func TestTheProgramBuilds(t *testing.T) {
	program := filepath.Join(t.TempDir(), "probe")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-o", program, "probe/probe.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("there is a driver: run.sh is for that")
	}
	out, err := exec.Command(program, "alloc", "1").Output()
	if err != nil || !strings.Contains(string(out), "no libcuda.so.1") {
		t.Errorf("%q, %v", out, err)
	}
}
