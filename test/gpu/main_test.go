package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumem/gpumem/test/fakenvml"
)

// asTheKit is set in the environment of a test's program that is to be the kit.
const asTheKit = "GPUMEM_KIT_OF_TEST"

// TestMain gives the tests mounts of their own, as the kit has.
func TestMain(m *testing.M) {
	if os.Getenv(asTheKit) != "" {
		main()
		return
	}
	code, done, err := withOwnMounts()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case done:
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// probe runs the CUDA program with the simulated driver, and tells the driver in which control
// group that is. The driver has no kernels: how many were launched is made up. A test lets
// programs lie by a file, which says what they print.
const probe = `#!/bin/sh
[ -n "$CUDA_VISIBLE_DEVICES" ] || { echo '{"ok": false, "error": "no GPU"}'; exit; }
here=$(dirname "$0")
group=$(grep -lsx $$ "$here"/gpus.json.d/cgroup/kubepods/pod-gpumem-gpu-kit/*/cgroup.procs)
group=${group%/cgroup.procs}
[ ! -f "$here/lie" ] || . "$here/lie"
case $1 in
spin)
	sleep "$2"
	echo "{\"ok\": true, \"start\": 0.25, \"launches\": ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-100}, \"p50\": 2, \"p99\": 3}"
	exit;;
limit) [ $(id -u) = 0 ] || exec unshare --user --map-root-user "$here/cuda" "$@";;
esac
export FAKENVML_CGROUP="${group#"$here"/gpus.json.d/cgroup}" LD_LIBRARY_PATH="$here"
exec "$here/cuda" "$@"
`

// plugin is the device plugin, as one who may set limits: the driver asks for CAP_SYS_ADMIN.
const plugin = `#!/bin/sh
[ $(id -u) = 0 ] || [ "$1" = mps ] || exec unshare --user --map-root-user "$(dirname "$0")/gpumem" "$@"
exec "$(dirname "$0")/gpumem" "$@"
`

// control is NVIDIA's program for the MPS daemon. A test lets it lie to the kit, whose commands
// have no other's log directory.
const control = `#!/bin/sh
here=$(dirname "$0")
[ ! -f "$here/lie-control" ] || [ "$CUDA_MPS_LOG_DIRECTORY" != "$CUDA_MPS_PIPE_DIRECTORY" ] || . "$here/lie-control"
[ ! -f "$here/lie-daemon" ] || . "$here/lie-daemon"
exec "$here/standin" "$@"
`

// ctr is containerd's, with NVIDIA's runtime and its hook for limits: a container sees the GPUs
// that its variable names, and the hook limits its control group in CDI modes.
const ctr = `#!/bin/sh
here=$(dirname "$0")
[ ! -f "$here/lie-ctr" ] || . "$here/lie-ctr"
[ "$1" != version ] || exit 0
while [ $# -gt 0 ]; do
	case $1 in
	--env) export "$2"; shift 2;;
	--cgroup) export FAKENVML_CGROUP="$2"; shift 2;;
	--mount|--runc-binary) shift 2;;
	run|--*) shift;;
	/) shift 3; break;;
	esac
done
tree=$here/gpus.json.d/cgroup
case $NVIDIA_VISIBLE_DEVICES in nvidia.com/gpu=*)
	export NVIDIA_VISIBLE_DEVICES=${NVIDIA_VISIBLE_DEVICES#nvidia.com/gpu=} FAKENVML_CGROUP=/kubepods/hook
	mkdir -p "$tree/kubepods/hook"
	CUDA_VISIBLE_DEVICES=0 "$here/probe" limit "$NVIDIA_GPU_MEMORY_LIMIT" "$NVIDIA_VISIBLE_DEVICES" "$tree/kubepods/hook" "$here/libnvidia-ml.so.1" >&2;;
esac
[ ! -f "$here/lie-container" ] || . "$here/lie-container"
export LD_LIBRARY_PATH="$here"
exec "$here/cuda" "$@"
`

// world is what the kit runs: the real plugin, a simulated driver, and stand-ins for the MPS
// daemon, for containerd and for the CUDA program. All tests have one.
type world struct {
	dir    string
	failed map[string]bool // questions that have failed once
}

// cgroups is where the simulated driver has its control groups, and controllers what they hand down.
const (
	cgroups     = "gpus.json.d/cgroup"
	controllers = "cpu memory dmem\n"
	newDriver   = "615.71.09"
	oldDriver   = "580.65.06"
)

func newWorld(t *testing.T) world {
	t.Helper()
	dir, err := os.MkdirTemp("", "kit") //nolint:usetesting // short: sockets are made below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := world{dir, make(map[string]bool)}
	w.build(t, "gpumem", "./cmd/gpumem-device-plugin", "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	w.build(t, "standin", "./pkg/node/mps/internal/standin")
	for name, script := range map[string]string{"plugin": plugin, mpsControl: control, "probe": probe} {
		w.program(t, name, script)
	}
	if _, err := fakenvml.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", filepath.Join(dir, "cuda"), "probe/probe.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("FAKENVML_CONFIG", filepath.Join(dir, "gpus.json"))
	w.write(t, controllers, cgroups, "cgroup.controllers")
	w.write(t, "nvidia/0000:10:00.0/vidmem 16106127360\nnvidia/0000:11:00.0/vidmem 16106127360\n", cgroups, "dmem.capacity")
	for _, group := range []string{"/", pods, parent} {
		w.write(t, controllers, cgroups, group, "cgroup.subtree_control")
	}
	return w
}

func (w world) file(path ...string) string { return filepath.Join(append([]string{w.dir}, path...)...) }

// program writes a script that can be run.
func (w world) program(t *testing.T, name, script string) {
	t.Helper()
	w.write(t, script, name)
	if err := os.Chmod(w.file(name), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (w world) build(t *testing.T, name, source string, env ...string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", w.file(name), source)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
}

// machine is now one with this driver and so many GPUs.
func (w world) machine(t *testing.T, version string, gpus int) {
	t.Helper()
	var cards []fakenvml.GPU
	for i := range gpus {
		cards = append(cards, fakenvml.T4("kit"+strconv.Itoa(i)))
	}
	m := fakenvml.NewMachine(cards...)
	m.DriverVersion = version
	if err := fakenvml.WriteConfig(w.file("gpus.json"), m); err != nil {
		t.Fatal(err)
	}
}

func (w world) write(t *testing.T, text string, path ...string) {
	t.Helper()
	file := w.file(path...)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// lies has a file of lies until the test ends.
func (w world) lies(t *testing.T, file, lie string) {
	t.Helper()
	w.write(t, lie, file)
	t.Cleanup(func() { os.Remove(w.file(file)) })
}

// hasContainers puts containerd and NVIDIA's runtime on the machine until the test ends.
func (w world) hasContainers(t *testing.T) {
	t.Helper()
	w.program(t, containrd, ctr)
	w.program(t, toolkit, "#!/bin/sh\n")
	t.Cleanup(func() { os.Remove(w.file(containrd)); os.Remove(w.file(toolkit)) })
}

// sampler is the simulated driver, with samples of the programs that pretend to compute.
type sampler struct {
	library
	of func(program string) int // per cent of one that runs spin or hold; below 0: no sample
}

func (s sampler) use(string, time.Time) (map[int]int, error) {
	if s.of == nil {
		return nil, errors.New("nvmlDeviceGetProcessUtilization: Not Supported")
	}
	out := make(map[int]int)
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range lines {
		text, err := os.ReadFile(file)
		args := strings.Split(string(text), "\x00")
		i := slices.IndexFunc(args, func(s string) bool { return s == "spin" || s == "hold" })
		if err != nil || i < 1 {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if share := s.of(args[i]); err == nil && share >= 0 {
			out[pid] = share
		}
	}
	return out, nil
}

func honest(program string) int {
	if program == "spin" {
		return 45
	}
	return -1
}

// measure runs parts of the kit, and returns what they say by part and question.
func (w world) measure(t *testing.T, of func(string) int, names ...string) map[string]Line {
	t.Helper()
	o, err := read([]string{
		"-plugin", w.file("plugin"), "-probe", w.file("probe"), "-nvml-library", w.file("libnvidia-ml.so.1"),
		"-cgroup-root", w.file(cgroups), "-seconds", "0.2", "-patience", "15s", "-sharers", "1,3", "-parts", strings.Join(names, ","),
	}, testLog{t})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(names, "use") {
		o.kit.seconds = 2
	}
	o.kit.driver = sampler{library{w.file("libnvidia-ml.so.1")}, of}
	r, err := o.kit.all(t.Context(), o.parts)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]Line)
	for _, l := range r.Lines {
		key := l.Part + ": " + l.Name
		if _, twice := out[key]; twice {
			t.Errorf("%s is answered twice", key)
		}
		out[key] = l
		if l.Verdict == Fail {
			w.failed[key] = true
		}
	}
	return out
}

// want says which questions have not passed, by a part of their key, and why in part.
func want(t *testing.T, lines map[string]Line, verdict Verdict, but map[string]string) {
	t.Helper()
	found := make(map[string]bool)
	for key, l := range lines {
		expected, says := verdict, ""
		longest := 0 // the part of the key that says most counts
		for part, why := range but {
			if !strings.Contains(key, part) {
				continue
			}
			found[part] = true
			if v, reason, _ := strings.Cut(why, ": "); len(part) > longest {
				longest, expected, says = len(part), Verdict(v), reason
			}
		}
		if l.Verdict != expected || !strings.Contains(l.Says, says) {
			t.Errorf("%s: %s: %s; want %s: %s", key, l.Verdict, l.Says, expected, says)
		}
	}
	for part := range but {
		if !found[part] {
			t.Errorf("no question has %q", part)
		}
	}
}

// long has TestTheKit ask each question on each kind of machine.
var long = flag.Bool("long", false, "ask all that the kit asks, and let each question fail once: minutes")

// TestTheKit measures machines of several kinds, and lets each question fail once; with no -long,
// what has most parts of gpumem in it.
func TestTheKit(t *testing.T) {
	w := newWorld(t)
	t.Run("asked to end", w.testEnd)
	t.Run("killed", w.testKilled)
	if !*long {
		t.Run("limits of two GPUs", w.testLimits)
		t.Run("one GPU, no daemon, no containers", w.testLittle)
		return
	}
	t.Run("all passes", w.testAll)
	t.Run("an old driver", w.testOldDriver)
	t.Run("one GPU, no daemon, no containers", w.testLittle)
	t.Run("a limit that cannot be set", w.testNoLimit)
	t.Run("programs that fail", w.testPrograms)
	t.Run("figures that are bad", w.testFigures)
	t.Run("a daemon that refuses", w.testDaemon)
	t.Run("containers that fail", w.testContainers)
	t.Run("samples that do not tell", w.testSamples)
	t.Run("a setting that is changed", w.testSettings)
	if t.Failed() {
		return
	}
	for _, p := range parts {
		for _, name := range p.asks {
			if key := p.name + ": " + name; !w.failed[key] {
				t.Errorf("%s has never failed", key)
			}
		}
	}
	if !w.failed["all: "+asLeft] {
		t.Errorf("%s has never failed", asLeft)
	}
}

func (w world) testAll(t *testing.T) {
	w.machine(t, newDriver, 2)
	w.hasContainers(t)
	want(t, w.measure(t, honest), Pass, nil)
}

func (w world) testLimits(t *testing.T) {
	w.machine(t, newDriver, 2)
	want(t, w.measure(t, honest, mpsLevel, kernelLevel), Pass, nil)
}

func (w world) testOldDriver(t *testing.T) {
	w.machine(t, oldDriver, 2)
	w.hasContainers(t)
	const tooOld = `not tried: the driver is "` + oldDriver + `", want 615 or newer`
	want(t, w.measure(t, honest, mpsLevel, kernelLevel, "vendor", "daemon", "containers"), Pass, map[string]string{
		"kernel: ": tooOld, kernelIn: tooOld,
		"vendor: ":   "not tried: driver 580.65.06: NVIDIA's table is of 615 and newer",
		namespaces:   "not tried: driver 580.65.06: its daemon speaks protocol 2",
		hookSets:     "not tried: driver 580.65.06: limits of control groups are of 615 and newer",
		listsClients: "not tried: it lists no server",
	})
}

func (w world) testLittle(t *testing.T) {
	w.machine(t, newDriver, 1)
	if err := os.Rename(w.file(mpsControl), w.file("away")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Rename(w.file("away"), w.file(mpsControl)); err != nil {
			t.Error(err)
		}
	}()
	const noDaemon = "not tried: " + mpsControl + " is not on this machine"
	want(t, w.measure(t, honest, advisory, mpsLevel, "vendor", "cores", "daemon", "containers"), Pass, map[string]string{
		second: "not tried: the machine has one GPU", "mps: ": noDaemon, "mps: " + second: noDaemon, pair: "not tried: the machine has one GPU", "mps: " + pair: noDaemon, "cores: ": noDaemon, "daemon: ": noDaemon,
		"vendor: server of": noDaemon, "vendor: namespace": noDaemon, "vendor: client's": noDaemon,
		"containers: ": "not tried: ctr is not on this machine",
	})
	w.hasContainers(t)
	want(t, w.measure(t, honest, "containers"), Pass, map[string]string{clientIn: noDaemon})
	w.lies(t, "lie-ctr", "echo 'cannot connect to containerd'; exit 1\n")
	want(t, w.measure(t, honest, "containers"), Pass, map[string]string{"containers: ": "not tried: containerd does not answer: cannot connect to containerd"})
}

// The driver has passed the plugin's test, and cannot limit containers: those above theirs do not
// hand dmem down, and what the kit writes there does nothing in a plain folder. No program runs
// in a container without its limit.
func (w world) testNoLimit(t *testing.T) {
	w.machine(t, newDriver, 2)
	w.write(t, "cpu memory\n", cgroups, parent, "cgroup.subtree_control")
	defer w.write(t, controllers, cgroups, parent, "cgroup.subtree_control")
	want(t, w.measure(t, honest, kernelLevel), Fail, map[string]string{"kernel:": "fail: its limit of GPU memory does not hold", second: "fail: a limit could not be set", pair: "fail: a limit could not be set", asLeft: "pass"})
}

func (w world) testPrograms(t *testing.T) {
	w.lies(t, "lie", `case $1$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in alloc|fork|both|managed|spin) echo '{"ok": false, "error": "cuInit: CUDA_ERROR_UNKNOWN"}'; exit;; esac`+"\n")
	w.machine(t, newDriver, 2)
	want(t, w.measure(t, honest, advisory, kernelLevel, "sharing", "cores"), Fail, map[string]string{
		asLeft: "pass", fair: "pass", throughput: "pass", startUp: "pass",
		"cores:": "not tried: a task with the whole GPU: 0 kernels, cuInit: CUDA_ERROR_UNKNOWN",
	})
	w.machine(t, oldDriver, 2)
	want(t, w.measure(t, honest, mpsLevel), Fail, map[string]string{asLeft: "pass", pair: "fail: GPU 0, " + within + ": cuInit"})
}

func (w world) testFigures(t *testing.T) {
	w.machine(t, newDriver, 2)
	w.lies(t, "lie", `
n=$(flock "$here/turns-$2" sh -c 'n=$(cat "$0"); echo $((n + 1)) >"$0"; echo $((n))' "$here/turns-$2")
odd=$((n % 2))
case $1$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in spin?*) echo '{"ok": true, "launches": 0}'; exit;; esac
[ $1 != most ] || [ -z "$CUDA_MPS_PIPE_DIRECTORY$group" ] || [ -n "$GPUMEM_ENFORCEMENT" ] || { echo '{"ok": true, "sms": 1, "totalMiB": 1, "hasMiB": 1000000}'; exit; }
case $1$GPUMEM_ENFORCEMENT in
spin) echo "{\"ok\": true, \"launches\": $(($odd * 1000 + 100)), \"p50\": 3, \"p99\": 2}"; exit;;
spin*) echo "{\"ok\": true, \"launches\": $(($odd * 10 + 1)), \"start\": 20, \"p50\": 3, \"p99\": 2}"; exit;;
esac
`)
	want(t, w.measure(t, honest, "sharing", "vendor", "cores"), Fail, map[string]string{allRun: "pass", asLeft: "pass"})
}

func (w world) testDaemon(t *testing.T) {
	w.machine(t, newDriver, 1)
	w.lies(t, "lie", `[ $1 != alloc ] || { echo '{"ok": false, "error": "cuInit: CUDA_ERROR_MPS_CONNECTION_FAILED"}'; exit; }`+"\n")
	w.lies(t, "lie-control", "umount -l \"${CUDA_MPS_PIPE_DIRECTORY%/*}/clients\" 2>/dev/null; echo 'Error: refused'; exit 0\n")
	want(t, w.measure(t, honest, "daemon"), Fail, map[string]string{takesSettings: "pass", asLeft: "pass", listsServers: `fail: server list --format=csv,noheader: refused: "Error: refused"`})
	w.lies(t, "lie-daemon", "echo 'Error: no such file'; exit 1\n")
	want(t, w.measure(t, honest, "daemon"), NotTried, map[string]string{takesSettings: "fail: no MPS daemon: ", asLeft: "pass"})
}

func (w world) testContainers(t *testing.T) {
	w.machine(t, newDriver, 1)
	w.hasContainers(t)
	w.lies(t, "lie-container", `[ $1 != alloc ] || { echo '{"ok": true}'; exit; }`+"\n")
	want(t, w.measure(t, honest, "containers"), Fail, map[string]string{seesGPU: "pass", asLeft: "pass"})
	w.lies(t, "lie-container", "export NVIDIA_VISIBLE_DEVICES=none\n")
	want(t, w.measure(t, honest, "containers"), NotTried, map[string]string{seesGPU: "fail: cuInit: CUDA_ERROR_NO_DEVICE", asLeft: "pass"})
}

func (w world) testSamples(t *testing.T) {
	w.machine(t, newDriver, 1)
	want(t, w.measure(t, nil, "use"), Fail, map[string]string{asLeft: "pass"})
	want(t, w.measure(t, func(program string) int { return map[string]int{"spin": 0, "hold": 90}[program] }, "use"), Fail, map[string]string{asLeft: "pass"})
}

func (w world) testSettings(t *testing.T) {
	w.machine(t, oldDriver, 1)
	w.lies(t, "lie", `sed -i 's/"uuid"/"computeMode": 3, "uuid"/' "$here/gpus.json"`+"\n")
	lines := w.measure(t, honest, advisory)
	if l := lines["all: "+asLeft]; l.Verdict != Fail || !strings.Contains(l.Says, "before: GPU 0: compute mode 0") || !strings.Contains(l.Says, "after: GPU 0: compute mode 3") {
		t.Errorf("%+v", l)
	}
}

// testLog is where the programs' output goes.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// A part that takes too long says so of what it has not answered.
func TestAPartHasItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := part{"slow", []string{"first", "second"}, func(_ kit, ctx context.Context, a *answers) error {
			a.tell("first", "", nil)
			<-ctx.Done()
			return ctx.Err()
		}}
		lines := kit{log: io.Discard}.one(t.Context(), slow, &Result{})
		if len(lines) != 2 || lines[0].Verdict != Pass || lines[1].Verdict != NotTried || lines[1].Says != "its 8 minutes are over" {
			t.Errorf("%+v", lines)
		}
	})
}
