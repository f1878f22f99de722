//go:build cgo

package fakenvml

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A host is a machine with control groups, for programs that are started on it.
type host struct {
	*testing.T
	config, tree   string
	greedy, script string // programs
}

// newHost returns a machine with the GPUs and these control groups. Its kernel has the dmem
// controller, or else the driver keeps limits itself.
func newHost(t *testing.T, dmem bool, groups []string, gpus ...GPU) *host {
	t.Helper()
	m := NewMachine(gpus...)
	m.DriverVersion = "615.71.09"
	h := &host{T: t, config: writeMachine(t, m)}
	h.tree = filepath.Join(h.config+".d", "cgroup")
	h.write("cgroup.controllers", "cpu memory dmem\n")
	h.write("cgroup.subtree_control", "cpu memory dmem\n")
	if dmem {
		h.write("dmem.capacity", "nvidia/00000000:10:00.0/vidmem 102641958912\n")
	}
	for _, group := range groups {
		h.group(group)
	}
	h.greedy = h.compile(filepath.Join("..", "images", "greedy", "greedy.c"))
	h.script = h.compile(filepath.Join("testdata", "driver.c"))
	return h
}

func (h *host) write(name, content string) {
	h.Helper()
	path := filepath.Join(h.tree, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		h.Fatal(err)
	}
}

// group makes a control group; those above it hand their controllers down.
func (h *host) group(name string) {
	h.Helper()
	for above := filepath.Dir(name); above != "/"; above = filepath.Dir(above) {
		h.write(above+"/cgroup.subtree_control", "memory dmem\n")
	}
	if err := os.MkdirAll(h.tree+name, 0o755); err != nil {
		h.Fatal(err)
	}
}

func (h *host) compile(source string) string {
	h.Helper()
	program := filepath.Join(h.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	if out, err := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-o", program, source).CombinedOutput(); err != nil {
		h.Fatalf("%v\n%s", err, out)
	}
	return program
}

// command returns one in a control group, with more variables.
func (h *host) command(group string, env []string, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(h.Context(), program, args...)
	cmd.Env = append([]string{ConfigEnv + "=" + h.config, "LD_LIBRARY_PATH=" + filepath.Dir(libraryPath), "FAKENVML_CGROUP=" + group}, env...)
	if os.Geteuid() != 0 { // to set limits is for root, or who is root in a user namespace
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		}
	}
	return cmd
}

// nvml runs a script of the program testdata/driver.c and returns what it prints. PATHs in it
// are names of control groups.
func (h *host) nvml(lines ...string) string {
	h.Helper()
	cmd := h.command("", nil, h.script, "limits", libraryPath)
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(strings.Join(lines, "\n"), " /", " "+h.tree+"/"))
	out, err := cmd.Output()
	if err != nil {
		h.Fatalf("%v: %v\n%s", lines, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (h *host) wantNVML(want string, lines ...string) {
	h.Helper()
	if diff := cmp.Diff(want, h.nvml(lines...)); diff != "" {
		h.Errorf("%q (-want +got):\n%s", lines, diff)
	}
}

// took is a line of the program greedy.
type took struct {
	Who                             string
	Device, SMs                     int
	UUID, Error, End                string
	TotalMiB, FreeMiB, AllocatedMiB int64
}

func (h *host) lines(out string) (lines []took) {
	h.Helper()
	for line := range strings.Lines(out) {
		var l took
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			h.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// take runs the program greedy to its end.
func (h *host) take(group string, env []string, args ...string) []took {
	h.Helper()
	out, err := h.command(group, env, h.greedy, args...).Output()
	if err != nil {
		h.Fatalf("greedy %v: %v\n%s", args, err, out)
	}
	return h.lines(string(out))
}

// A holder is a program greedy that keeps what it took.
type holder struct {
	*host
	cmd   *exec.Cmd
	out   *bufio.Reader
	first took
}

func (h *host) hold(group string, env []string, args ...string) *holder {
	h.Helper()
	p := &holder{host: h, cmd: h.command(group, env, h.greedy, append(args, "-hold")...)}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		h.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	p.first = p.line()
	return p
}

func (p *holder) line() took {
	p.Helper()
	text, err := p.out.ReadString('\n')
	if err != nil {
		p.Fatal(err)
	}
	return p.lines(text)[0]
}

// end ends it in order and returns what it then says of the GPU.
func (p *holder) end() string {
	p.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.Fatal(err)
	}
	last := p.line()
	if err := p.cmd.Wait(); err != nil {
		p.Fatal(err)
	}
	return last.End
}

func (p *holder) kill() {
	p.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.Fatal(err)
	}
	_ = p.cmd.Wait()
}

// mps listens as an MPS daemon at a socket of its directory, which it returns as the variable
// that leads there, and answers with these lines.
func (h *host) mps(lines ...string) string {
	h.Helper()
	dir, err := os.MkdirTemp("", "mps-") // a test's own folder can be too long a name for a socket
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := (&net.ListenConfig{}).Listen(h.Context(), "unix", filepath.Join(dir, "control"))
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				if line, err := in.ReadString('\n'); err != nil || line != "attach\n" {
					return
				}
				fmt.Fprint(conn, strings.Join(append(lines, "", ""), "\n"))
				_, _ = in.ReadByte() // until the client has gone
			}()
		}
	}()
	return "CUDA_MPS_PIPE_DIRECTORY=" + dir
}

const (
	noMPS      = "CUDA_MPS_PIPE_DIRECTORY=/nowhere"
	wholeRTX   = 97887 - 600 // what CUDA has of NVIDIA's GPU
	allOfIt    = 96512       // what a program gets of it without a limit, in steps of 256 MiB
	outOfSpace = "CUDA_ERROR_OUT_OF_MEMORY"
)

// TestNVIDIAsMeasurements: the table "Verified Behavior" of NVIDIA's guide "Per-GPU Compute and
// Memory Limits with MPS", row by row, to the MiB: it was measured in steps of 256 MiB, too.
func TestNVIDIAsMeasurements(t *testing.T) {
	t.Parallel()
	gpu := RTXPRO6000("0")
	const group = "/slice/container"
	for name, tc := range map[string]struct {
		mps  []string // what the socket answers that the client finds; nil: none
		env  string
		nvml string // what is set before
		want took
	}{
		"the daemon's defaults":    {mps: []string{"threads 50", "limit all 10G"}, want: took{SMs: 94, AllocatedMiB: 9728, TotalMiB: wholeRTX}},
		"a quarter of the threads": {mps: []string{"threads 25", "limit all 5G"}, want: took{SMs: 46, AllocatedMiB: 4864, TotalMiB: wholeRTX}},
		"no limits":                {mps: []string{"threads 100"}, want: took{SMs: 188, AllocatedMiB: allOfIt, TotalMiB: wholeRTX}},
		"three quarters":           {mps: []string{"threads 75", "limit all 20G"}, want: took{SMs: 140, AllocatedMiB: 19968, TotalMiB: wholeRTX}},
		"client's variable, by index": {mps: []string{"threads 50", "limit all 10G"}, env: "0=2G",
			want: took{SMs: 94, AllocatedMiB: 1536, TotalMiB: wholeRTX}},
		"client's variable, by UUID": {mps: []string{"threads 50", "limit all 10G"}, env: gpu.UUID + "=2G",
			want: took{SMs: 94, AllocatedMiB: 1536, TotalMiB: wholeRTX}},
		"client's variable names one GPU too many": {mps: []string{"threads 50", "limit all 10G"}, env: "0=2G,1=4G",
			want: took{SMs: 94, AllocatedMiB: 96768, TotalMiB: wholeRTX}},
		"dmem of its own": {nvml: "set 0 " + group + " 0 30000", want: took{SMs: 188, AllocatedMiB: 29184, TotalMiB: 30000}},
		"dmem of a slice": {nvml: "set 0 /slice 0 48943", want: took{SMs: 188, AllocatedMiB: 48128, TotalMiB: wholeRTX}},
		"dmem and MPS": {mps: []string{"threads 50"}, nvml: "set 0 " + group + " 0 3000",
			want: took{SMs: 94, AllocatedMiB: 2560, TotalMiB: 3000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, true, []string{group}, gpu)
			env := []string{noMPS, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + tc.env}
			if tc.mps != nil {
				env[0] = h.mps(tc.mps...)
			}
			if tc.env == "" {
				env = env[:1]
			}
			if tc.nvml != "" {
				h.wantNVML("set 0", tc.nvml)
			}
			got := h.take(group, env)[0]
			t.Logf("%d SMs, %d MiB allocated, total %d MiB", got.SMs, got.AllocatedMiB, got.TotalMiB)
			tc.want.Who, tc.want.UUID, tc.want.Error, tc.want.FreeMiB = "one", gpu.UUID, outOfSpace, got.FreeMiB
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// wantTaken compares who took how much of which GPU.
func wantTaken(t *testing.T, got []took, want ...string) {
	t.Helper()
	var lines []string
	for _, l := range got {
		lines = append(lines, fmt.Sprintf("%s %d: %d of %d", l.Who, l.Device, l.AllocatedMiB, l.TotalMiB))
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A T4 has 14,910 MiB for CUDA, and a context takes 132 of them.
func TestAFractionIsOfTheTotalThatIsSeen(t *testing.T) {
	t.Parallel()
	h := newHost(t, true, []string{"/pod/container"}, T4("0"))
	h.nvml("set 0 /pod/container 0 4096")
	fraction := []string{noMPS, "XLA_PYTHON_CLIENT_MEM_FRACTION=0.5", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5",
		"FLAGS_fraction_of_gpu_memory_to_use=0.5", "GPUMEM_FRACTION=0.5"}
	for _, framework := range []string{"jax", "pytorch", "paddle", "vllm"} {
		wantTaken(t, h.take("/pod/container", fraction, "-fraction", framework), "one 0: 2048 of 4096")
		wantTaken(t, h.take("/pod", fraction, "-fraction", framework), "one 0: "+map[bool]string{true: "7455", false: "7454"}[framework == "jax" || framework == "vllm"]+" of 14910")
	}
}

func TestClientsOfMPS(t *testing.T) {
	t.Parallel()
	h := newHost(t, true, []string{"/pod/container"}, T4("0"), T4("1"))
	all := []string{"one 0: 14592 of 14910", "one 1: 14592 of 14910"}
	second := T4("1").UUID

	for name, tc := range map[string]struct {
		mps  []string
		env  []string
		args []string
		want []string
	}{
		"each GPU has a limit":           {[]string{"limit 0 3G", "limit " + second + " 2048M"}, nil, nil, []string{"one 0: 2816 of 14910", "one 1: 1792 of 14910"}},
		"a variable tightens":            {[]string{"limit all 3G"}, []string{"0=2G,1=9G"}, nil, []string{"one 0: 1792 of 14910", "one 1: 2816 of 14910"}},
		"a worker sees fewer GPUs":       {[]string{"limit all 3G"}, []string{"0=2G,1=2G"}, []string{"-narrow", "1"}, []string{"one 0: 14592 of 14910"}},
		"a worker, and no variable":      {[]string{"limit all 3G"}, nil, []string{"-narrow", "1"}, []string{"one 0: 2816 of 14910"}},
		"a worker by UUID":               {[]string{"limit 1 3G"}, nil, []string{"-narrow", second[:12]}, []string{"one 0: 2816 of 14910"}},
		"a variable that is none":        {[]string{"limit all 3G"}, []string{"0=much"}, nil, all},
		"variables are removed":          {[]string{"limit all 3G"}, []string{"0=2G"}, []string{"-bare"}, nil}, // without MPS, see below
		"a child has a limit of its own": {[]string{"limit all 3G"}, nil, []string{"-fork", "-device", "0"}, []string{"one 0: 2816 of 14910", "child 0: 2816 of 14910"}},
		"managed memory is the host's":   {[]string{"limit all 3G"}, nil, []string{"-managed", "-device", "0"}, []string{"one 0: 29952 of 14910"}},
		"the server has exited":          {[]string{"none"}, []string{"0=2G,1=2G"}, nil, all},
	} {
		t.Run(name, func(t *testing.T) {
			env := []string{h.mps(tc.mps...)}
			for _, v := range tc.env {
				env = append(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+v)
			}
			if name == "variables are removed" {
				if _, err := os.Stat("/tmp/nvidia-mps/control"); err == nil {
					t.Skip("this machine has an MPS daemon")
				}
				tc.want = all
			}
			wantTaken(t, h.take("/pod/container", env, tc.args...), tc.want...)
		})
	}

	// A folder that is missing is no MPS; a socket where nobody listens is an error.
	wantTaken(t, h.take("/pod/container", []string{noMPS}), all...)
	deaf := h.mps()
	dir := strings.TrimPrefix(deaf, "CUDA_MPS_PIPE_DIRECTORY=")
	if err := os.Rename(filepath.Join(dir, "control"), filepath.Join(dir, "was")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "control"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]string{
		deaf: "CUDA_ERROR_MPS_CONNECTION_FAILED", h.mps("refused 800"): "CUDA_ERROR_NOT_PERMITTED", h.mps("refused 808"): "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
	} {
		if got := h.take("/pod/container", []string{env})[0].Error; got != want {
			t.Errorf("%s: %s, want %s", env, got, want)
		}
	}

	// What is free is what is left of the limit, and of which GPUs there are the runtime's say.
	got := h.take("/pod/container", []string{h.mps("limit all 3G"), "NVIDIA_VISIBLE_DEVICES=" + second})
	wantTaken(t, got, "one 0: 2816 of 14910")
	if got[0].UUID != second || got[0].FreeMiB != 3072-132 {
		t.Errorf("GPU %s with %d MiB free, want %s with 2940", got[0].UUID, got[0].FreeMiB, second)
	}
}

// An older driver knows limits by index only, has no limits of control groups, and its library
// not the calls.
func TestAnOlderDriver(t *testing.T) {
	t.Parallel()
	h := newHost(t, true, []string{"/pod/container"}, T4("0"))
	m := NewMachine(T4("0"))
	if err := WriteConfig(h.config, m); err != nil {
		t.Fatal(err)
	}
	h.wantNVML("set 13\nget 13 0 0 0", "set 0 /pod/container 0 4096", "get 0 /pod/container")
	wantTaken(t, h.take("/pod/container", []string{h.mps("limit all 3G"), "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + m.GPUs[0].UUID + "=1G"}), "one 0: 2816 of 14910")
	m.GPUs[0].MIGMode, m.DriverVersion = true, "615.71.09"
	if err := WriteConfig(h.config, m); err != nil {
		t.Fatal(err)
	}
	h.wantNVML("set 3\nget 3 0 0 0", "set 0 /pod/container 0 4096", "get 0 /pod/container")
}

func TestLimitsOfControlGroups(t *testing.T) {
	t.Parallel()
	h := newHost(t, true, []string{"/pods/a/x", "/pods/a/y", "/pods/b/z", "/bare/w"}, T4("0"), T4("1"))
	h.write("/bare/cgroup.subtree_control", "memory\n")

	// What is kept for a group is added to all above it, and to no other GPU's.
	h.wantNVML("set 0\nset 0\nget 0 1024 4096 0\nget 0 3072 -1 0\nget 0 3072 -1 0\nget 6 0 0 0",
		"set 0 /pods/a/x 1024 4096", "set 0 /pods/a/y 2048 2048", "get 0 /pods/a/x", "get 0 /pods/a", "get 0 /pods", "get 1 /pods/a/x")
	h.wantNVML("set 0\nget 0 2560 -1 0", "set 0 /pods/a/x 512 4096", "get 0 /pods/")
	if err := os.Symlink("pods/a", h.tree+"/link"); err != nil { // by any path that leads there
		t.Fatal(err)
	}
	h.wantNVML("get 0 512 4096 0", "get 0 /link/x")
	// Cleared is as never set.
	h.wantNVML("set 0\nget 6 0 0 0\nget 0 2048 -1 0", "set 0 /pods/a/x 0 max", "get 0 /pods/a/x", "get 0 /pods/a")
	// A group that goes leaves behind what was kept for it, and one that comes by its name has no limit.
	if err := os.Remove(h.tree + "/pods/a/y"); err != nil {
		t.Fatal(err)
	}
	h.wantNVML("get 6 0 0 0\nset 6\nget 0 2048 -1 0", "get 0 /pods/a/y", "set 0 /pods/a/y 0 max", "get 0 /pods/a")
	h.group("/pods/a/y")
	h.wantNVML("get 6 0 0 0", "get 0 /pods/a/y")
	h.wantNVML("set 0\nget 6 0 0 0\nget 6 0 0 0", "set 0 /pods/a 0 max", "get 0 /pods/a", "get 0 /pods")

	// Whose parent does not hand dmem down, what is not there, the root, and nonsense.
	h.wantNVML("set 6\nget 6 0 0 0\nset 6\nset 2\nset 2", "set 0 /bare/w 0 4096", "get 0 /bare/w", "set 0 /pods/gone 0 4096", "set 0 / 0 4096", "set 0 /pods/b/z 4096 1024")
	// To set is privileged, to read is not.
	h.wantNVML("set 0\ndrop 0\nset 4\nget 0 0 4096 0", "set 0 /pods/b/z 0 4096", "drop", "set 0 /pods/b/z 0 8192", "get 0 /pods/b/z")
}

// The driver's own backend is flat: the nearest limit counts, and only that.
func TestLimitsWithoutDmem(t *testing.T) {
	t.Parallel()
	h := newHost(t, false, []string{"/pods/a/x", "/pods/a/y", "/other"}, T4("0"))
	h.wantNVML("get 3 0 0 0\nset 0\nget 0 1024 4096 0\nget 3 0 0 0\nget 3 0 0 0",
		"get 0 /pods/a/x", "set 0 /pods/a/x 1024 4096", "get 0 /pods/a/x", "get 0 /pods/a", "get 0 /other")
	h.wantNVML("set 0\nget 0 512 2048 0\nget 0 1024 4096 0", "set 0 /pods/a 512 2048", "get 0 /pods/a/y", "get 0 /pods/a/x")
	h.nvml("set 0 /pods 0 128")
	env := []string{noMPS}
	wantTaken(t, h.take("/pods/a/x", env), "one 0: 3840 of 4096")
	wantTaken(t, h.take("/pods/a/y", env), "one 0: 1792 of 14910")
	wantTaken(t, h.take("/other", env), "one 0: 14592 of 14910")
	h.wantNVML("set 0\nget 0 512 2048 0", "set 0 /pods/a/x 0 max", "get 0 /pods/a/x")
}

// All processes of a group share its limit, those of groups below it too.
func TestProcessesShareALimit(t *testing.T) {
	t.Parallel()
	h := newHost(t, true, []string{"/pod/x", "/pod/y", "/other"}, T4("0"))
	h.nvml("set 0 /pod 0 8192", "set 0 /pod/x 0 4096")
	env := []string{noMPS}
	wantTaken(t, h.take("/pod/x", env, "-fork"), "one 0: 3840 of 4096", "child 0: 0 of 0")
	x := h.hold("/pod/x", env)
	wantTaken(t, []took{x.first}, "one 0: 3840 of 4096")
	y := h.hold("/pod/y", env)
	wantTaken(t, []took{y.first}, "one 0: 3840 of 14910")
	h.wantNVML("get 0 0 4096 3972\nget 0 0 8192 7944\nused 0 7944 of 15360", "get 0 /pod/x", "get 0 /pod", "used 0")
	// NVML within the partition says what the partition has.
	cmd := h.command("/pod/x", env, h.script, "limits", libraryPath)
	cmd.Stdin = strings.NewReader("used 0\n")
	if out, err := cmd.Output(); err != nil || string(out) != "used 0 3972 of 4096\n" {
		t.Errorf("NVML in the partition: %v, %q", err, out)
	}
	// What a process had goes with it, whether it ends in order or is killed.
	x.kill()
	h.wantNVML("get 0 0 8192 3972", "get 0 /pod")
	if got := y.end(); got != "CUDA_SUCCESS" {
		t.Errorf("the other process ended with %s", got)
	}
	h.wantNVML("get 0 0 8192 0\nused 0 0 of 15360", "get 0 /pod", "used 0")
	wantTaken(t, h.take("/other", env), "one 0: 14592 of 14910")
}

// TestWhoIsAboveItsSoftLimitMakesRoom: MPS terminates a client that is above its soft limit when
// one within its own finds the GPU full.
func TestWhoIsAboveItsSoftLimitMakesRoom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set  []string // for the one that comes second
		mps  bool
		took string
		end  string
	}{
		"kept by the driver":          {set: []string{"set 0 /pods/b 4096 4096"}, mps: true, took: "one 0: 3840 of 4096", end: "CUDA_ERROR_MPS_CLIENT_TERMINATED"},
		"not kept":                    {set: []string{"set 0 /pods/b 0 4096"}, mps: true, took: "one 0: 0 of 0", end: "CUDA_SUCCESS"},
		"written past the driver":     {mps: true, took: "one 0: 0 of 0", end: "CUDA_SUCCESS"},
		"no client of MPS":            {set: []string{"set 0 /pods/b 4096 4096"}, took: "one 0: 0 of 0", end: "CUDA_SUCCESS"},
		"the first is within its own": {set: []string{"set 0 /pods/b 4096 4096", "set 0 /pods/a 15360 15360"}, mps: true, took: "one 0: 0 of 0", end: "CUDA_SUCCESS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, true, []string{"/pods/a", "/pods/b"}, T4("0"))
			client := []string{h.mps("threads 100")}
			env := []string{noMPS}
			if tc.mps {
				env = client
			}
			h.nvml(tc.set...)
			if name == "written past the driver" {
				h.write("/pods/b/dmem.min", "nvidia/00000000:10:00.0/vidmem 4294967296\n")
				h.write("/pods/b/dmem.max", "nvidia/00000000:10:00.0/vidmem 4294967296\n")
			}
			first := h.hold("/pods/a", client, "-step", "16")
			wantTaken(t, h.take("/pods/b", env), tc.took)
			if got := first.end(); got != tc.end {
				t.Errorf("the first ended with %s, want %s", got, tc.end)
			}
		})
	}
}

// A hard limit that somebody writes into the file counts as the driver's does.
func TestAHardLimitByHand(t *testing.T) {
	t.Parallel()
	h := newHost(t, true, []string{"/pods/a"}, T4("0"))
	h.write("/pods/a/dmem.max", "nvidia/0000:11:00.0/vidmem 1048576\nnvidia/0000:10:00.0/vidmem 4294967296\n")
	h.wantNVML("get 0 0 4096 0", "get 0 /pods/a")
	wantTaken(t, h.take("/pods/a", []string{noMPS}), "one 0: 3840 of 4096")
}

// NVML tells who has memory of a GPU, by the number that the asker knows the process by.
func TestNVMLListsClients(t *testing.T) {
	f := start(t, NewMachine(T4("0")))
	h := &host{T: t, config: f.path}
	h.greedy = h.compile(filepath.Join("..", "images", "greedy", "greedy.c"))
	plain := h.hold("", []string{noMPS}, "-step", "4096")
	client := h.hold("", []string{h.mps("limit all 1G")})
	d := f.device(t, 0)
	var got []string
	for _, p := range must(d.GetComputeRunningProcesses())(t) {
		got = append(got, fmt.Sprint("compute ", p.Pid, " ", p.UsedGpuMemory/mib))
	}
	for _, p := range must(d.GetMPSComputeRunningProcesses())(t) {
		got = append(got, fmt.Sprint("mps ", p.Pid, " ", p.UsedGpuMemory/mib))
	}
	equal(t, "processes", got, []string{
		fmt.Sprint("compute ", plain.cmd.Process.Pid, " ", 3*4096+132), fmt.Sprint("compute ", client.cmd.Process.Pid, " ", 768+132),
		fmt.Sprint("mps ", client.cmd.Process.Pid, " ", 768+132),
	})
	plain.kill()
	client.kill()
	equal(t, "processes that are left", len(must(d.GetComputeRunningProcesses())(t)), 0)
}
