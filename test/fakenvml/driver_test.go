//go:build cgo

package fakenvml

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// These are the codes that the C driver prints.
const (
	success, uninitialized, invalidArgument, notSupported = "0", "1", "2", "3"
)

// run runs the driver and returns its standard output.
func run(t *testing.T, config, stdin string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = append(os.Environ(), ConfigEnv+"="+config)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, stderr.String())
	}
	return string(out)
}

// sanitized builds the driver and the library into one program.
func sanitized(t *testing.T, sanitizer string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "driver")
	err := compile(t.Context(), program, "-g", "-O1", "-fno-sanitize-recover=all", "-fsanitize="+sanitizer,
		"-DWITH_SOURCES", "-Isrc", "-rdynamic", filepath.Join("testdata", "driver.c"))
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func fullMachine() Machine {
	m := NewMachine(A100_80GB("a"), T4("b"), H100("c"))
	m.GPUs[0].NVLinks = []NVLink{{PeerPCI: m.GPUs[2].PCI}}
	m.GPUs[0].Topology = []Topology{{Peer: m.GPUs[2].UUID, Level: "single"}}
	m.GPUs[0].Processes = []Process{{PID: 12, UsedMiB: 512, SMUtil: 7, Name: "tr\u00e4iner \"x\""}, {PID: 13, UsedMiB: 1, Type: "graphics+mps"}}
	m.Events = []Event{{Seq: 1, XID: 79, GPU: m.GPUs[0].UUID}}
	return m
}

func writeMachine(t *testing.T, m Machine) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fakenvml.json")
	if err := WriteConfig(path, m); err != nil {
		t.Fatal(err)
	}
	return path
}

var goCall = regexp.MustCompile(`\bC\.(nvml\w+)\(`)

func TestEveryFunctionAnswersNull(t *testing.T) {
	t.Parallel()
	header := nvmlHeader(t)
	functions := declaredFunctions(t, header)

	// What the header's regular expression missed, go-nvml's own calls would show.
	source, err := os.ReadFile(filepath.Join(filepath.Dir(header), "nvml.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range goCall.FindAllStringSubmatch(string(source), -1) {
		if functions[m[1]] == "" {
			t.Errorf("go-nvml calls %s, which is not in the list", m[1])
		}
	}

	// These have a meaning of their own and are tested elsewhere.
	for _, name := range []string{"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"} {
		delete(functions, name)
	}
	var names strings.Builder
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		takesDevice := 0
		if functions[name] == "nvmlDevice_t" {
			takesDevice = 1
		}
		fmt.Fprintln(&names, name, takesDevice)
	}
	plain := filepath.Join(t.TempDir(), "driver")
	if out, err := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-o", plain, filepath.Join("testdata", "driver.c")).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	config := writeMachine(t, fullMachine())

	for name, command := range map[string][]string{
		"shared library":  {plain, "calls", libraryPath},
		"under sanitizer": {sanitized(t, "address,undefined"), "calls", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := 0
			for line := range strings.Lines(run(t, config, names.String(), command...)) {
				var function, before, zero, unknown, known string
				if _, err := fmt.Sscan(line, &function, &before, &zero, &unknown, &known); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				seen++
				if before != uninitialized {
					t.Errorf("%s before nvmlInit: %s", function, before)
				}
				if zero != invalidArgument && zero != notSupported {
					t.Errorf("%s of NULL: %s", function, zero)
				}
				if functions[function] != "nvmlDevice_t" {
					continue
				}
				if unknown != invalidArgument {
					t.Errorf("%s of an unknown handle: %s", function, unknown)
				}
				want := []string{invalidArgument, notSupported}
				if function == "nvmlDeviceSetComputeMode" { // 0 is a mode, not a missing argument
					want = []string{success}
				}
				if !slices.Contains(want, known) {
					t.Errorf("%s of a handle and NULL: %s", function, known)
				}
			}
			if seen != len(functions) {
				t.Errorf("%d of %d functions answered", seen, len(functions))
			}
		})
	}
}

func TestParserSurvivesBrokenFiles(t *testing.T) {
	t.Parallel()
	config := writeMachine(t, fullMachine())
	t.Log(run(t, config, "", sanitized(t, "address,undefined"), "mutate", config))
}

func TestThreadsWhileFileChanges(t *testing.T) {
	t.Parallel()
	for _, sanitizer := range []string{"thread", "address,undefined"} {
		t.Run(sanitizer, func(t *testing.T) {
			other := NewMachine(T4("b"))
			a, b := writeMachine(t, fullMachine()), writeMachine(t, other)
			config := writeMachine(t, other)
			run(t, config, "", sanitized(t, sanitizer), "threads", config, a, b)
		})
	}
}

func TestUtilizationIsAskedTwice(t *testing.T) {
	t.Parallel()
	m := NewMachine(T4("a"), A100_80GB("b"), T4("c"), H100("d"))
	busy := []Process{{PID: 12, SMUtil: 7}, {PID: 13}, {PID: 14, MemUtil: 1}}
	m.GPUs[0].Processes, m.GPUs[1].Processes, m.GPUs[2].Processes = busy, busy, busy[1:2]
	m.GPUs[1].MIGMode = true
	program := sanitized(t, "address,undefined")
	for name, tc := range map[string]struct{ ask, want string }{
		"how many there are":   {"0 -1 0", "7 2"},
		"a buffer of none":     {"0 0 0", "7 2"},
		"a buffer too small":   {"0 1 0", "7 2"},
		"a buffer as large":    {"0 2 0", "0 2"},
		"a larger buffer":      {"0 9 0", "0 2"},
		"none that is newer":   {"0 9 18446744073709551615", "6 0"},
		"no process works":     {"2 9 0", "6 0"},
		"no processes":         {"3 -1 0", "6 0"},
		"a GPU in MIG mode":    {"1 9 0", "3 9"},
		"the same, how many":   {"1 -1 0", "3 0"},
		"newer than long past": {"0 9 1", "0 2"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.TrimSpace(run(t, writeMachine(t, m), tc.ask, program, "utilization", "-")); got != tc.want {
				t.Errorf("code and count are %s, want %s", got, tc.want)
			}
		})
	}
}
