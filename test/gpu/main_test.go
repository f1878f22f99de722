package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumem/gpumem/test/fakenvml"
)

// probe stands in for the CUDA program: it obeys the limit of MPS, and none else.
const probe = `#!/bin/sh
limit=${CUDA_MPS_PINNED_DEVICE_MEM_LIMIT#0=}
limit=${limit%M}
[ -n "$CUDA_VISIBLE_DEVICES" ] || { echo '{"ok": false, "error": "no GPU"}'; exit; }
case $1 in
spin) echo '{"ok": true, "start": 0.25, "launches": 100}' ;;
*) if [ -n "$limit" ] && [ "$2" -gt "$limit" ]; then echo '{"ok": false, "error": "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"}'; else echo '{"ok": true, "start": 0.25, "launches": 0}'; fi ;;
esac
`

// TestTheKit runs all of it with the real plugin, a simulated driver and stand-ins
// for the MPS daemon and for the CUDA program.
func TestTheKit(t *testing.T) {
	dir, err := os.MkdirTemp("", "kit") // short: sockets are made below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	build := func(name, source string, env ...string) string {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, name), source)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
		return filepath.Join(dir, name)
	}
	plugin := build("plugin", "./cmd/gpumem-device-plugin", "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	build("nvidia-cuda-mps-control", "./pkg/mps/internal/standin")
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	library, err := fakenvml.Build(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "gpus.json")
	if err := fakenvml.WriteConfig(config, fakenvml.NewMachine(fakenvml.T4("kit"))); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKENVML_CONFIG", config)
	program := filepath.Join(dir, "probe")
	if err := os.WriteFile(program, []byte(probe), 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "result.json")
	var table strings.Builder
	err = run(t.Context(), []string{
		"-plugin", plugin, "-probe", program, "-nvml-library", library, "-json", out, "-seconds", "0.1", "-patience", "10s", "-levels", "advisory,mps,kernel",
	}, &table, testLog{t})
	if err != nil {
		t.Fatal(err)
	}
	var r Result
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	byLevel := make(map[string]Level)
	for _, l := range r.Levels {
		byLevel[l.Level] = l
	}
	if l := byLevel["advisory"]; l.Missing != "" || l.Limits() || !l.Beyond.OK || l.Env["GPUMEM_LIMIT_MIB"] != "2048" {
		t.Errorf("advisory: %+v", l)
	}
	l := byLevel["mps"]
	if l.Missing != "" || !l.Limits() || l.Forked.OK || !l.Neighbour.OK || l.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] != "0=2048M" {
		t.Errorf("mps: %+v", l)
	}
	if len(l.Shared) != 5 || l.Shared[4].Sharers != 12 || l.Shared[4].Launches != 1200 || l.Shared[4].Spread != 0 {
		t.Errorf("sharers: %+v", l.Shared)
	}
	if l := byLevel["kernel"]; l.Missing == "" {
		t.Errorf("kernel, on an old driver: %+v", l)
	}
	for _, words := range []string{"mps        works    fails    fails    works", "kernel     not here: "} {
		if !strings.Contains(table.String(), words) {
			t.Errorf("the table does not have %q:\n%s", words, table.String())
		}
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
	if p := k.run(t.Context(), nil, "alloc", "1"); p.OK || p.Error == "" {
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
