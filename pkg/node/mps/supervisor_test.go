package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

const patience = 20 * time.Second

// standin is the path of the program that replaces the daemon.
var standin string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "mps")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		standin = filepath.Join(dir, "nvidia-cuda-mps-control")
		if out, err := exec.Command("go", "build", "-o", standin, "./internal/standin").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the stand-in: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// modes contains the compute modes of a machine's GPUs.
type modes struct {
	is   map[string]int
	fail string // GPU whose mode cannot be set
	lost bool   // one GPU does not answer, so no mode can be read
}

func (m *modes) Modes() (map[string]int, error) {
	if m.lost {
		return nil, errors.New("GPU is lost")
	}
	return maps.Clone(m.is), nil
}

func (m *modes) SetMode(uuid string, mode int) error {
	if m.fail == uuid {
		return errors.New("refused")
	}
	if _, ok := m.is[uuid]; !ok {
		return errors.New("NVML lists no such GPU")
	}
	m.is[uuid] = mode
	return nil
}

// links implements Mounts with symbolic links, which need no privilege.
type links struct {
	fail   error
	shared []string
}

func (l *links) Shared(dir string) error {
	l.shared = append(l.shared, dir)
	return l.fail
}

func (l *links) ReadOnly(dir, at string) error {
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return os.Symlink(dir, at)
}

// node is a directory with a supervisor.
type node struct {
	*testing.T
	cfg   Config
	modes *modes
	log   *zap.Logger
	stop  context.CancelFunc
	ended chan error
}

func newNode(t *testing.T) *node {
	// A path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "mps") //nolint:usetesting // for a short one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &node{T: t, log: zap.NewNop(), modes: &modes{is: map[string]int{"GPU-a": 0, "GPU-b": 2}}, cfg: Config{
		Dir: dir, Shm: filepath.Join(dir, "shm"), Program: standin, Mounts: &links{}, Probe: func(context.Context, []string) error { return nil },
		GPUs:     func() ([]inventory.Part, bool, error) { return twoGPUs(), true, nil },
		Interval: 10 * time.Millisecond, Timeout: 5 * time.Second, Backoff: 10 * time.Millisecond, Drain: patience, Quit: 2 * time.Second,
	}}
}

func twoGPUs() []inventory.Part {
	return []inventory.Part{{UUID: "GPU-a", MiB: 14336, Free: 14336}, {UUID: "GPU-b", Index: 1, MiB: 80896, Free: 80896}}
}

// run starts the supervisor, and stops it at the end of the test.
func (n *node) run() *node {
	ctx, cancel := context.WithCancel(n.Context())
	n.stop, n.ended = cancel, make(chan error, 1)
	s := New(n.cfg, n.modes, n.log)
	ended := n.ended
	go func() { ended <- s.Run(ctx) }()
	n.Cleanup(func() {
		os.Remove(n.pipe("deaf"))
		os.Remove(n.pipe("clients"))
		cancel()
	})
	return n
}

// end stops the supervisor and waits for its end.
func (n *node) end() error {
	n.stop()
	select {
	case err := <-n.ended:
		return err
	case <-time.After(patience):
		n.Fatal("the supervisor does not end")
		return nil
	}
}

func (n *node) pipe(name string) string { return filepath.Join(n.cfg.Dir, "pipe", name) }

// steer writes a file that controls the stand-in, or removes it if the content is empty.
func (n *node) steer(name, content string) {
	n.Helper()
	err := os.WriteFile(n.pipe(name), []byte(content), 0o644)
	if content == "" {
		err = os.Remove(n.pipe(name))
	}
	if err != nil {
		n.Fatal(err)
	}
}

// told returns the commands that the daemons received, without health queries.
func (n *node) told() []string {
	text, err := os.ReadFile(filepath.Join(n.cfg.Dir, "log", "standin.log"))
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(string(text)), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "get_")
	})
}

// eventually waits until the client's view of the daemon satisfies the function holds.
func (n *node) eventually(what string, holds func(Status, error) bool) Status {
	n.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		status, err := NewClient(n.cfg.Dir).Status(n.Context())
		if holds(status, err) {
			return status
		}
		select {
		case <-deadline:
			n.Fatalf("waited for: %s; now: %+v, %v", what, status, err)
		case <-ticker.C:
		}
	}
}

func healthy(s Status, err error) bool { return err == nil && s.Healthy }

func sick(words string) func(Status, error) bool {
	return func(s Status, err error) bool { return err == nil && !s.Healthy && strings.Contains(s.Reason, words) }
}

func (n *node) pid() int {
	n.Helper()
	text, err := os.ReadFile(n.pipe("nvidia-cuda-mps-control.pid"))
	if err != nil {
		n.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		n.Fatal(err)
	}
	return pid
}

var settings = []string{
	"start -f -multiuser-server", "set_default_active_thread_percentage 100",
	"set_default_device_pinned_mem_limit 0 14336M", "set_default_device_pinned_mem_limit 1 80896M",
}

// A daemon is healthy only if it answers through the clients' directory, which is read-only, and with the
// clients' /dev/shm.
func TestTheDaemonIsAskedAsClientsAsk(t *testing.T) {
	n := newNode(t)
	mounts := &links{fail: errors.New("operation not permitted")}
	n.cfg.Mounts = mounts
	if err := n.run().end(); !errors.Is(err, mounts.fail) {
		t.Errorf("without the file system for shared memory: %v", err)
	}
	mounts.fail = nil
	n.run()
	n.eventually("the daemon is healthy", healthy)
	if want := filepath.Join(n.cfg.Dir, "shm"); !slices.Equal(mounts.shared, []string{want, want}) {
		t.Errorf("mounted %v, want %s each time", mounts.shared, want)
	}
	if err := os.Remove(filepath.Join(n.cfg.Dir, "clients")); err != nil {
		t.Fatal(err)
	}
	n.eventually("clients do not get through", sick("error: no directory"))
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestADaemonOfAnInstance verifies that the daemon, its commands and the probe see only the instance, in a
// separate directory.
func TestADaemonOfAnInstance(t *testing.T) {
	n := newNode(t)
	dir, instance := n.cfg.Dir, gpu.Device{UUID: "MIG-a", Index: 2, Model: "A100 MIG 1g.5gb"}
	n.cfg.Dir = DirOf(dir, instance)
	if want := filepath.Join(dir, "MIG-a"); n.cfg.Dir != want {
		t.Fatalf("its folder is %s, want %s", n.cfg.Dir, want)
	}
	probed := make(chan []string, 1)
	n.cfg.Probe = func(_ context.Context, env []string) error { probed <- env; return nil }
	n.cfg.GPUs = func() ([]inventory.Part, bool, error) {
		return []inventory.Part{{UUID: instance.UUID, Index: instance.Index, MiB: 4852, Free: 4852}}, false, nil
	}
	check := func(devices ...gpu.Device) string {
		limited, err := Check(t.Context(), dir, devices)
		return fmt.Sprint(limited, err)
	}
	if got := check(instance); got != "[] GPU 2 (A100 MIG 1g.5gb): no MPS daemon runs on the node" {
		t.Errorf("before: %s", got)
	}
	n.run()
	if s := n.eventually("the daemon is healthy", healthy); !slices.Equal(s.Proven, []int{instance.Index}) {
		t.Errorf("clients were limited on %v", s.Proven)
	}
	if env := <-probed; !slices.Contains(env, "CUDA_VISIBLE_DEVICES=MIG-a") {
		t.Errorf("the probe has %q", env)
	}
	pid := fmt.Sprintf("/proc/%d/environ", n.pid())
	if env, err := os.ReadFile(pid); err != nil || !slices.Contains(strings.Split(string(env), "\x00"), "CUDA_VISIBLE_DEVICES=MIG-a") {
		t.Errorf("the daemon sees all GPUs, %v", err)
	}
	for _, tc := range []struct {
		devices []gpu.Device
		want    string
	}{
		{[]gpu.Device{instance}, "[2] <nil>"},
		{[]gpu.Device{instance, {UUID: "GPU-b", Index: 1}}, "[2] <nil>"}, // a missing daemon lowers the level of its own GPUs only
	} {
		if got := check(tc.devices...); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.devices, got, tc.want)
		}
	}
	if err := CheckAll(t.Context(), dir); err != nil {
		t.Errorf("all daemons: %v", err)
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
	if err := CheckAll(t.Context(), dir); err == nil {
		t.Error("a daemon that has ended is well")
	}
}

func TestALifeOfADaemon(t *testing.T) {
	n := newNode(t)
	if _, err := NewClient(n.cfg.Dir).Check(t.Context()); err == nil || err.Error() != "no MPS daemon runs on the node" {
		t.Errorf("before: %v", err)
	}
	n.run()
	s := n.eventually("the daemon is healthy", healthy)
	if diff := cmp.Diff(Status{Healthy: true, Protocol: 2, Proven: []int{0, 1}}, s); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	n.steer("clients", "17\n23\n")
	n.eventually("two clients", func(s Status, err error) bool { return healthy(s, err) && s.Clients == 2 })
	if got, err := Servers(t.Context(), n.cfg.Dir); err != nil || !maps.Equal(got, map[int]bool{4242: true}) {
		t.Errorf("MPS servers %v, %v", got, err)
	}
	n.stop()
	n.eventually("nobody is sent there any more", sick("it is about to end"))
	select {
	case err := <-n.ended:
		t.Fatalf("the daemon was ended under its clients: %v", err)
	default:
	}
	n.steer("clients", "")
	if err := n.end(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(slices.Concat(settings, []string{"quit", "end"}), n.told()); diff != "" {
		t.Errorf("the daemon was told (-want +got):\n%s", diff)
	}
	if _, err := NewClient(n.cfg.Dir).Check(t.Context()); err == nil {
		t.Error("somebody answers for a supervisor that has ended")
	}
}

func TestClientsThatDoNotEnd(t *testing.T) {
	n := newNode(t)
	n.cfg.Drain = 30 * time.Millisecond
	n.run()
	n.eventually("the daemon is healthy", healthy)
	n.steer("clients", "17\n")
	if err := n.end(); err != nil {
		t.Error(err)
	}
	if told := n.told(); !slices.Contains(told, "quit") {
		t.Errorf("the daemon was told %v", told)
	}
}

func TestADaemonThatIsKilledComesBackWithItsSettings(t *testing.T) {
	n := newNode(t).run()
	n.eventually("the daemon is healthy", healthy)
	if err := syscall.Kill(n.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("another daemon is healthy", func(s Status, err error) bool { return healthy(s, err) && s.Restarts == 1 })
	if diff := cmp.Diff(slices.Concat(settings, settings), n.told()); diff != "" {
		t.Errorf("the daemons were told (-want +got):\n%s", diff)
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

func TestADaemonThatEndsWell(t *testing.T) {
	n := newNode(t)
	n.cfg.Interval, n.cfg.Backoff = 2*time.Second, patience // the supervisor notices the daemon's end before a failed query, and reports that end until the test has checked
	n.run()
	n.eventually("healthy", healthy)
	if err := syscall.Kill(n.pid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := n.eventually("it has ended", sick("it has ended")).Reason; got != "it has ended" {
		t.Errorf("reason %q", got)
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// If the query of clients and servers fails, the status keeps the MPS servers: the device plugin would treat their
// memory as foreign.
func TestAFailedCountOfClients(t *testing.T) {
	n := newNode(t)
	s := New(n.cfg, n.modes, n.log)
	s.update(func(st *Status) { st.Clients, st.Servers = 2, []int{4242} })
	s.well(t.Context(), control{timeout: time.Second, program: filepath.Join(n.cfg.Dir, "absent")})
	if got := s.Status(); !got.Healthy || got.Clients != 2 || !slices.Equal(got.Servers, []int{4242}) {
		t.Errorf("after a count that failed: %+v", got)
	}
	s.sick("one question was left unanswered")
	if got := s.Status(); !slices.Equal(got.Servers, []int{4242}) {
		t.Errorf("while the daemon runs: %+v", got)
	}
}

func TestAnEndedDaemonHasNoServers(t *testing.T) {
	n := newNode(t)
	n.cfg.Backoff = time.Hour // no other daemon starts
	n.run()
	n.eventually("the daemon is healthy", healthy)
	n.steer("clients", "17\n18\n")
	n.eventually("its clients are counted", func(s Status, err error) bool {
		return healthy(s, err) && s.Clients == 2 && slices.Equal(s.Servers, []int{4242})
	})
	if err := syscall.Kill(n.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("its servers are gone", func(s Status, err error) bool {
		return err == nil && !s.Healthy && s.Clients == 0 && s.Servers == nil
	})
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// A supervisor that does not answer may have MPS servers, unlike one that does not run.
func TestServersOfSilentSupervisors(t *testing.T) {
	n := newNode(t)
	if servers, err := Servers(t.Context(), n.cfg.Dir); err != nil || len(servers) > 0 {
		t.Errorf("no supervisor: %v, %v", servers, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(n.cfg.Dir, statusSocket))
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if servers, err := Servers(ctx, n.cfg.Dir); err == nil || len(servers) > 0 {
		t.Errorf("a supervisor that does not answer: %v, %v", servers, err)
	}
	listener.Close()
	if servers, err := Servers(t.Context(), n.cfg.Dir); err != nil || len(servers) > 0 {
		t.Errorf("a supervisor that has ended: %v, %v", servers, err)
	}
}

func TestADaemonThatAnswersNoMore(t *testing.T) {
	n := newNode(t)
	n.cfg.Timeout, n.cfg.Quit = 200*time.Millisecond, 50*time.Millisecond
	n.run()
	n.eventually("the daemon is healthy", healthy)
	before := n.pid()
	n.steer("deaf", "x")
	n.eventually("it is not, at the first question", sick("no answer in"))
	n.eventually("it is started anew", func(s Status, err error) bool { return err == nil && s.Restarts > 0 })
	n.steer("deaf", "")
	n.eventually("the daemon is healthy again", healthy)
	if n.pid() == before {
		t.Error("it is the same daemon")
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

func TestADaemonThatRefuses(t *testing.T) {
	n := newNode(t).run()
	n.eventually("the daemon is healthy", healthy)
	n.steer("broken", "get_default_active_thread_percentage")
	n.eventually("it is not", sick("the operation failed"))
	n.steer("broken", "set_default_device_pinned_mem_limit")
	n.eventually("a daemon that has its settings is healthy again", healthy)
	if err := syscall.Kill(n.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("a daemon that does not take its settings is not healthy", sick("it does not take its settings: "))
	n.steer("broken", "")
	n.eventually("the daemon that takes them is healthy", healthy)
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestASupervisorThatLimitsNoClient covers a supervisor of version 0.2, whose DaemonSet administrators update
// manually, and a healthy supervisor without a limited client.
func TestASupervisorThatLimitsNoClient(t *testing.T) {
	for want, status := range map[string]Status{
		"protocol 3, which gpumem no longer uses: delete the daemon's pod": {Healthy: true, Protocol: 3, Proven: []int{0, 1}}, // the client checks the protocol
		"has limited no client yet":                                        {Healthy: true, Protocol: 2},
	} {
		n := newNode(t)
		for _, device := range []gpu.Device{{UUID: "GPU-a"}, {UUID: "MIG-a", Parent: "GPU-a", Index: 2}} {
			dir := DirOf(n.cfg.Dir, device)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, statusSocket))
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_ = json.NewEncoder(w).Encode(status)
			})}
			t.Cleanup(func() { server.Close() })
			go func() { _ = server.Serve(listener) }()
			gpus, err := Check(t.Context(), n.cfg.Dir, []gpu.Device{device})
			if err == nil || gpus != nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: it limits clients on GPUs %v, %v, want %s", device.UUID, gpus, err, want)
			}
		}
	}
}

// A container may start if it uses no daemon, or a supported protocol.
func TestCheckProtocol(t *testing.T) {
	for protocol, want := range map[int]bool{0: true, 2: true, 3: false} {
		if err := CheckProtocol(protocol); (err == nil) != want {
			t.Errorf("protocol %d: %v", protocol, err)
		}
	}
}

// The supervisor starts a daemon that refuses -multiuser-server without that option, and tries the option again
// after the daemon's end.
func TestADaemonThatRefusesAnOption(t *testing.T) {
	n := newNode(t)
	if err := os.MkdirAll(n.pipe(""), 0o755); err != nil {
		t.Fatal(err)
	}
	n.steer("refused", "-multiuser-server")
	core, logs := observer.New(zap.WarnLevel)
	n.log = zap.New(core)
	n.run()
	s := n.eventually("the daemon is healthy", healthy)
	if warned := logs.FilterMessageSnippet("-multiuser-server").Len(); !s.SingleUser || warned != 1 {
		t.Errorf("a daemon without -multiuser-server: single user %t, %d warnings", s.SingleUser, warned)
	}
	if err := syscall.Kill(n.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("another daemon is healthy", func(s Status, err error) bool { return healthy(s, err) && s.Restarts == 7 })
	n.steer("refused", "")
	if err := syscall.Kill(n.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s = n.eventually("a daemon with all options is healthy", func(s Status, err error) bool { return healthy(s, err) && s.Restarts == 8 })
	if s.SingleUser {
		t.Error("a daemon that accepts -multiuser-server is reported as single-user")
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
	refused := slices.Repeat([]string{"refused -multiuser-server"}, 3)
	without := slices.Concat([]string{"start -f"}, settings[1:])
	if diff := cmp.Diff(slices.Concat(refused, without, refused, without, settings, []string{"quit", "end"}), n.told()); diff != "" {
		t.Errorf("the daemons were told (-want +got):\n%s", diff)
	}
}

// One early end must not make the daemon single-user: a daemon also ends early while the driver is still loading.
func TestEarlyEndsBeforeOptionsChange(t *testing.T) {
	var tr trial
	steps := []struct {
		answers bool
		err     error
		next    string
	}{
		{false, errExited, "-f -multiuser-server"},
		{false, errExited, "-f -multiuser-server"},
		{true, errExited, "-f -multiuser-server"}, // the early ends are no longer consecutive
		{false, errExited, "-f -multiuser-server"},
		{false, errExited, "-f -multiuser-server"},
		{false, context.DeadlineExceeded, "-f -multiuser-server"}, // the daemon kept running, so this is no early end
		{false, errExited, "-f"},
		{false, errExited, "-f -multiuser-server"},
		{false, errExited, "-f -multiuser-server"},
		{false, errExited, "-f -multiuser-server"},
		{false, errExited, "-f"},
		{true, context.DeadlineExceeded, "-f -multiuser-server"},
	}
	tr.options()
	for i, step := range steps {
		if step.answers {
			tr.succeed()
		}
		tr.fail(step.err)
		if got := strings.Join(tr.options(), " "); got != step.next {
			t.Errorf("step %d: next options %q, want %q", i, got, step.next)
		}
	}
}

// The reason contains the daemon's last output, for each kind of start.
func TestADaemonThatEndsAtItsStart(t *testing.T) {
	n := newNode(t)
	if err := os.MkdirAll(n.pipe(""), 0o755); err != nil {
		t.Fatal(err)
	}
	n.steer("dying", "starting\nno GPU is supported\n")
	n.run()
	const ended = `it has ended: exit status 1: "no GPU is supported"`
	n.eventually("it says why", sick("with -f -multiuser-server "+ended+"; with -f "+ended))
	n.steer("dying", "")
	n.eventually("the daemon is healthy", healthy)
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// NVIDIA's tool may need write access to the pipe directory, which is read-only for containers. A failure of the
// tool there proves nothing about the daemon or its clients.
func TestAToolThatCannotUseAReadOnlyDirectory(t *testing.T) {
	t.Run("from the start", func(t *testing.T) {
		n := newNode(t)
		if err := os.MkdirAll(n.pipe(""), 0o755); err != nil {
			t.Fatal(err)
		}
		n.steer("locking", "x")
		probed := make(chan []string, 2)
		n.cfg.Probe = func(_ context.Context, env []string) error { probed <- env; return nil }
		n.run()
		n.eventually("the daemon is healthy", healthy)
		if want := "CUDA_MPS_PIPE_DIRECTORY=" + filepath.Join(n.cfg.Dir, "clients"); !slices.Contains(<-probed, want) {
			t.Errorf("the probe does not have %s", want)
		}
		if err := n.end(); err != nil {
			t.Error(err)
		}
	})
	t.Run("later", func(t *testing.T) {
		n := newNode(t).run()
		n.eventually("the daemon is healthy", healthy)
		before := n.pid()
		n.steer("locking", "x")
		n.eventually("clients do not get through", sick(errUnreachable.Error()+": get_default_active_thread_percentage: exit status 1: \"Cannot open the lock"))
		n.steer("locking", "")
		s := n.eventually("the daemon is healthy again", healthy)
		if n.pid() != before || s.Restarts > 0 {
			t.Error("the daemon was started again, and with it its clients ended")
		}
		if err := n.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestBackoff(t *testing.T) {
	b := backoff{first: time.Second}
	for i, tc := range []struct{ lived, want time.Duration }{
		{0, time.Second}, {0, 2 * time.Second}, {30 * time.Second, 4 * time.Second}, {0, 8 * time.Second}, {0, 16 * time.Second}, {0, 32 * time.Second},
		{0, time.Minute}, {0, time.Minute}, {time.Hour, time.Second}, {0, 2 * time.Second},
	} {
		if got := b.nextDelay(tc.lived); got != tc.want {
			t.Errorf("pause %d is %s, want %s", i, got, tc.want)
		}
	}
}

// A daemon may write endless output, and no line may fill the node's annotation.
func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"one\ntwo\n\n":            "two",
		"no end":                  "no end",
		strings.Repeat("x", 5000): strings.Repeat("x", maxOutput),
		strings.Repeat("line\n", 1000) + "last\n": "last",
	} {
		o, file, err := newOutput(io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		file.Close()
		if got := o.lastLine(); got != want {
			t.Errorf("last line %q, want %q", got, want)
		}
	}
}

func TestAProgramThatIsNotThere(t *testing.T) {
	n := newNode(t)
	n.cfg.Program = filepath.Join(n.cfg.Dir, "absent")
	n.run()
	n.eventually("it says so", sick("no such file"))
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

func TestComputeModesAreLeftAsFound(t *testing.T) {
	found := map[string]int{"GPU-a": 0, "GPU-b": 2}
	exclusive := map[string]int{"GPU-a": exclusiveProcess, "GPU-b": exclusiveProcess}
	wantModes := func(t *testing.T, n *node, want map[string]int) {
		t.Helper()
		if diff := cmp.Diff(want, n.modes.is); diff != "" {
			t.Errorf("modes (-want +got):\n%s", diff)
		}
	}
	t.Run("not touched", func(t *testing.T) {
		n := newNode(t)
		n.modes.fail = "GPU-a"
		n.run()
		n.eventually("the daemon is healthy", healthy)
		if err := n.end(); err != nil {
			t.Error(err)
		}
		wantModes(t, n, found)
	})
	t.Run("exclusive meanwhile", func(t *testing.T) {
		n := newNode(t)
		n.cfg.Exclusive = true
		n.run()
		n.eventually("the daemon is healthy", healthy)
		wantModes(t, n, exclusive)
		if err := n.end(); err != nil {
			t.Error(err)
		}
		wantModes(t, n, found)
	})
	t.Run("after one that was killed", func(t *testing.T) {
		n := newNode(t)
		n.modes.is = map[string]int{"GPU-a": exclusiveProcess, "GPU-b": exclusiveProcess}
		if err := os.WriteFile(filepath.Join(n.cfg.Dir, modesFile), []byte(`{"GPU-a":0,"GPU-b":2}`), 0o644); err != nil {
			t.Fatal(err)
		}
		n.run()
		n.eventually("the daemon is healthy", healthy)
		wantModes(t, n, found)
		if err := n.end(); err != nil {
			t.Error(err)
		}
	})
	for name, exclusive := range map[string]bool{"other GPUs since, and exclusive again": true, "other GPUs since": false} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.cfg.Exclusive = exclusive
			n.modes.is = map[string]int{"GPU-a": exclusiveProcess, "GPU-b": 2}
			file := filepath.Join(n.cfg.Dir, modesFile)
			if err := os.WriteFile(file, []byte(`{"GPU-a":0,"GPU-gone":0}`), 0o644); err != nil {
				t.Fatal(err)
			}
			n.run()
			n.eventually("the daemon is healthy", healthy)
			if exclusive {
				wantModes(t, n, map[string]int{"GPU-a": exclusiveProcess, "GPU-b": exclusiveProcess})
			}
			if err := n.end(); err != nil {
				t.Error(err)
			}
			wantModes(t, n, found)
			if left, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(left)) != `{"GPU-gone":0}` {
				t.Errorf("the record is %s, %v, want that of the GPU that is gone", left, err)
			}
		})
	}
	t.Run("one that cannot be set", func(t *testing.T) {
		n := newNode(t)
		n.cfg.Exclusive, n.modes.fail = true, "GPU-b"
		n.run()
		select {
		case err := <-n.ended:
			if err == nil || !strings.Contains(err.Error(), "set the compute mode of GPU-b: refused") {
				t.Errorf("error %v", err)
			}
		case <-time.After(patience):
			t.Fatal("it runs")
		}
		if n.modes.is["GPU-a"] != 0 {
			t.Errorf("GPU-a is left in mode %d", n.modes.is["GPU-a"])
		}
	})
}

// The supervisor restores the modes of other GPUs although one GPU is lost.
func TestModesAreRestoredNextToALostGPU(t *testing.T) {
	is := &modes{is: map[string]int{"GPU-a": exclusiveProcess}, lost: true}
	file := filepath.Join(t.TempDir(), modesFile)
	if err := os.WriteFile(file, []byte(`{"GPU-a":0,"GPU-lost":0}`), 0o644); err != nil {
		t.Fatal(err)
	}
	err := exclusive{is, file, zap.NewNop()}.restore()
	if err == nil || is.is["GPU-a"] != 0 {
		t.Errorf("error %v, and GPU-a is left in mode %d", err, is.is["GPU-a"])
	}
}

// A GPU that NVML does not list keeps its record, and gets its original mode once it is listed again.
func TestTheModeOfAnUnlistedGPUIsRestoredLater(t *testing.T) {
	is := &modes{is: map[string]int{"GPU-a": exclusiveProcess}}
	file := filepath.Join(t.TempDir(), modesFile)
	if err := os.WriteFile(file, []byte(`{"GPU-a":0,"GPU-b":0}`), 0o644); err != nil {
		t.Fatal(err)
	}
	e := exclusive{is, file, zap.NewNop()}
	if err := e.restore(); err != nil || is.is["GPU-a"] != 0 {
		t.Errorf("error %v, and GPU-a is left in mode %d", err, is.is["GPU-a"])
	}
	is.is["GPU-b"] = exclusiveProcess
	if err := e.restore(); err != nil || is.is["GPU-b"] != 0 {
		t.Errorf("error %v, and GPU-b is left in mode %d", err, is.is["GPU-b"])
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is left: %v", err)
	}
}

func TestASecondSupervisor(t *testing.T) {
	n := newNode(t).run()
	n.eventually("the daemon is healthy", healthy)
	err := New(n.cfg, n.modes, zap.NewNop()).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another supervisor answers") {
		t.Errorf("error %v", err)
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
}
