package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/mps/probe"
	"github.com/gpumem/gpumem/pkg/node/mps/shm"
	"github.com/gpumem/gpumem/pkg/process/serve"
)

// Config contains the settings of a Supervisor. All fields must be set.
type Config struct {
	Dir     string
	Shm     string // /dev/shm of all clients, one for all daemons of the node (see Decisions)
	Program string // nvidia-cuda-mps-control
	Mounts  Mounts

	// Probe runs a program that uses one GPU, in an environment that makes it a client with a limit of 1 GiB.
	// It returns an error if the daemon does not enforce the limit.
	Probe func(ctx context.Context, env []string) error
	// GPUs returns the GPUs for the next daemon, or one MIG instance, in NVML's order. Result all reports that the
	// machine has no other GPUs; the daemon then uses NVML's numbers.
	GPUs func() (gpus []inventory.Part, all bool, err error)

	Exclusive bool          // prevent programs from bypassing the daemon
	Interval  time.Duration // between two queries
	Timeout   time.Duration // per command
	Backoff   time.Duration // before the first restart of a daemon
	Drain     time.Duration // for clients to end before the daemon ends
	Quit      time.Duration // for the daemon to quit before it is killed
}

const (
	// MaxFailures is the number of consecutive failed queries after which the supervisor restarts the daemon.
	MaxFailures = 3
	// startTimeout bounds the time from a daemon's start to its first answer.
	startTimeout = 30 * time.Second
	// maxPause bounds the pause between two failed probes. Each probe allocates GPU memory.
	maxPause = time.Minute
	// sweepInterval is the interval of cleaning /dev/shm.
	sweepInterval = time.Minute
)

// Supervisor keeps an MPS control daemon running.
type Supervisor struct {
	cfg    Config
	modes  exclusive
	log    *zap.Logger
	trial  trial            // only Run uses this and the next four fields
	direct bool             // NVIDIA's tool cannot use the read-only pipe directory
	gpus   []inventory.Part // GPUs of the last daemon
	all    bool             // see Config.GPUs
	proven map[gpu.UUID]bool

	mu     sync.Mutex // guards status
	status Status
}

// New returns a supervisor; Run starts it.
func New(cfg Config, modes Modes, log *zap.Logger) *Supervisor {
	return &Supervisor{
		cfg:    cfg,
		modes:  exclusive{modes: modes, file: filepath.Join(cfg.Dir, modesFile), log: log},
		log:    log,
		status: Status{Reason: "it has not been started yet", Protocol: Protocol},
	}
}

// Status returns the status that clients receive.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Supervisor) update(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// sick publishes the reason why the daemon is not healthy, and logs a new reason.
func (s *Supervisor) sick(reason string) {
	was := s.Status()
	s.update(func(st *Status) { st.Healthy, st.Reason = false, reason })
	if !was.Healthy && was.Reason == reason {
		return
	}
	s.log.Warn("MPS daemon is not healthy", zap.String("reason", reason))
}

// Run keeps a daemon running until the context is done, and serves its status.
func (s *Supervisor) Run(ctx context.Context) (err error) {
	if err := s.makeDirs(); err != nil {
		return err
	}
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	// The status server answers until Run returns, also while Run waits for clients to end.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	routes := http.NewServeMux()
	routes.HandleFunc("GET /status", s.answer)
	go func() { served <- serve.Run(serving, listener, routes) }()
	defer func() {
		stop()
		err = errors.Join(err, <-served)
	}()
	setModes := s.modes.restore // a killed supervisor may have left the modes changed
	if s.cfg.Exclusive {
		setModes = s.modes.set
	}
	if err := setModes(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.modes.restore()) }()
	pause := backoff{first: s.cfg.Backoff}
	for ctx.Err() == nil {
		begin := time.Now()
		err := s.daemon(ctx)
		s.update(func(st *Status) { st.Clients, st.Servers, st.SingleUser = 0, nil, false })
		if err != nil && ctx.Err() == nil {
			s.sick(s.trial.fail(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.nextDelay(time.Since(begin))):
			s.update(func(st *Status) { st.Restarts++ })
		}
	}
	return nil
}

func (s *Supervisor) path(name string) string { return filepath.Join(s.cfg.Dir, name) }

// makeDirs creates the directories that daemon and clients share. Clients run as any user.
func (s *Supervisor) makeDirs() error {
	for dir, mode := range map[string]os.FileMode{s.path("pipe"): 0o755, s.path("log"): 0o755, s.cfg.Shm: 0o777 | os.ModeSticky} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.Chmod(dir, mode); err != nil { // regardless of the umask
			return err
		}
	}
	if err := s.cfg.Mounts.Shared(s.cfg.Shm); err != nil {
		return err
	}
	return s.cfg.Mounts.ReadOnly(s.path("pipe"), s.path("clients"))
}

func (s *Supervisor) listen(ctx context.Context) (net.Listener, error) {
	socket := s.path(statusSocket)
	if _, err := NewClient(s.cfg.Dir).Status(ctx); err == nil {
		return nil, fmt.Errorf("another supervisor answers on %s", socket)
	}
	if err := os.RemoveAll(socket); err != nil { // left by a supervisor that was killed
		return nil, err
	}
	return (&net.ListenConfig{}).Listen(ctx, "unix", socket)
}

func (s *Supervisor) answer(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.Status()) // an error means that the client is gone
}

func (s *Supervisor) control() control { return s.controlBy("pipe") }

// asClient returns a control through the pipe directory of clients, which is read-only. Clients cannot use a daemon
// that does not answer through this directory.
func (s *Supervisor) asClient() control { return s.controlBy("clients") }

func (s *Supervisor) controlBy(pipe string) control {
	env := append(os.Environ(),
		"CUDA_MPS_PIPE_DIRECTORY="+s.path(pipe),
		"CUDA_MPS_LOG_DIRECTORY="+s.path("log"),
		// NVML's order, so that the indexes agree
		"CUDA_DEVICE_ORDER=PCI_BUS_ID",
	)
	if !s.all {
		env = append(env, visible+strings.Join(s.visible(), ","))
	}
	return control{timeout: s.cfg.Timeout, program: s.cfg.Program, env: env}
}

// visible returns CUDA's names for the daemon's GPUs. They are numbers if the daemon sees all GPUs.
func (s *Supervisor) visible() (names []string) {
	for i, g := range s.gpus {
		name := string(g.UUID)
		if s.all {
			name = strconv.Itoa(i)
		}
		names = append(names, name)
	}
	return names
}

// visible is the variable that selects CUDA's GPUs.
const visible = "CUDA_VISIBLE_DEVICES="

// daemon runs one daemon from start to end, and returns the reason for its end.
func (s *Supervisor) daemon(ctx context.Context) error {
	life := context.WithoutCancel(ctx) // the daemon outlives ctx while clients drain
	gpus, all, err := s.cfg.GPUs()
	if err != nil {
		return fmt.Errorf("list its GPUs: %w", err)
	}
	if len(gpus) == 0 {
		return errors.New("none of its GPUs answers")
	}
	s.gpus, s.all, s.proven = gpus, all, make(map[gpu.UUID]bool)
	s.update(func(st *Status) { st.Proven = nil })
	cmd, stdin, out, err := s.start(life)
	if err != nil {
		return err
	}
	defer stdin.Close()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	err = s.watch(ctx, exited)
	if errors.Is(err, errExited) {
		if line := out.lastLine(); line != "" {
			err = fmt.Errorf("%w: %q", err, line)
		}
		return err
	}
	if ctx.Err() != nil {
		s.drain(life, exited)
	}
	s.stopDaemon(life, cmd, exited)
	return err
}

var errExited = errors.New("it has ended")

// start starts a daemon in the foreground. The caller must keep the returned standard input open, because the
// daemon ends when its input ends.
func (s *Supervisor) start(ctx context.Context) (*exec.Cmd, io.Closer, *output, error) {
	c := s.control()
	options := s.trial.options()
	s.direct = false
	cmd := exec.CommandContext(ctx, c.program, options...)
	cmd.Env = c.env
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, nil, err
	}
	out, file, err := newOutput(os.Stderr)
	if err != nil {
		return nil, nil, nil, err
	}
	defer file.Close() // the daemon has a duplicate
	cmd.Stdout, cmd.Stderr = file, file
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("start it: %w", err)
	}
	s.log.Info("MPS daemon started", zap.Int("pid", cmd.Process.Pid), zap.Strings("options", options))
	return cmd, stdin, out, nil
}

// watch waits until the daemon answers, sends its settings, and queries it at an interval. It returns when the
// daemon must be restarted or the context is done.
func (s *Supervisor) watch(ctx context.Context, exited <-chan error) error {
	c := s.control()
	deadline := time.Now().Add(startTimeout)
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	set, failures := false, 0
	var proof proof
	var swept time.Time
	for {
		err := s.checkDaemon(ctx, set)
		if err == nil && !set {
			err = s.apply(ctx, c)
			set = err == nil
		}
		unproven := error(nil)
		if err == nil {
			unproven = proof.renew(s.cfg.Interval, func() error { return s.prove(ctx) })
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errUnreachable): // a restart would not help
			failures = 0
			s.sick(err.Error())
		case unproven != nil && len(s.proven) == 0: // the daemon is not the cause
			failures = 0
			s.sick(unproven.Error())
		case err == nil:
			failures = 0
			s.well(ctx, c)
			if time.Since(swept) >= sweepInterval {
				swept = time.Now()
				s.sweep()
			}
		case !set && time.Now().After(deadline), set && failures+1 >= MaxFailures:
			return err
		case set:
			failures++
			s.sick(err.Error())
		}
		if err := wait(ctx, exited, ticker.C); err != nil {
			return err
		}
	}
}

// wait waits for the next tick. It returns an error if the daemon exits or the context is done.
func wait(ctx context.Context, exited <-chan error, tick <-chan time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-exited:
		if err != nil {
			return fmt.Errorf("%w: %w", errExited, err)
		}
		return errExited
	case <-tick:
		return nil
	}
}

func (s *Supervisor) apply(ctx context.Context, c control) error {
	err := c.apply(ctx, s.gpus)
	switch {
	case err == nil:
		s.trial.succeed()
		single := s.trial.singleUser()
		s.update(func(st *Status) { st.SingleUser = single })
		if single {
			s.log.Warn("MPS daemon runs without -multiuser-server, with which it ended early: containers of a second user wait until the clients of the first have ended")
		}
	case ctx.Err() == nil:
		s.sick(fmt.Sprintf("it does not take its settings: %v", err))
	}
	return err
}

var errUnreachable = errors.New("the daemon answers, but not through the read-only pipe directory that clients have")

// checkDaemon returns an error if the daemon does not work for clients. Clients cannot write to the pipe directory,
// but NVIDIA's tool may need to. If the tool has never worked through the clients' directory with this daemon, the
// supervisor uses its own directory from then on, and the limit probe shows whether clients can connect (prove).
// Parameter known reports whether the daemon has answered before.
func (s *Supervisor) checkDaemon(ctx context.Context, known bool) error {
	if s.direct {
		return s.control().check(ctx)
	}
	err := s.asClient().check(ctx)
	if err == nil || s.control().check(ctx) != nil {
		return err
	}
	if err = s.asClient().check(ctx); err == nil { // the daemon may have come up between the two checks
		return nil
	}
	if known {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	s.direct = true
	s.log.Warn("NVIDIA's tool cannot use a read-only pipe directory: the supervisor uses its own one", zap.Error(err))
	return nil
}

// proof is the result of the probes that verify limits.
type proof struct {
	done  bool
	err   error         // from the last probe
	pause time.Duration // between the last probe and the next
	next  time.Time
}

// renew probes unless a probe has already succeeded, and returns the result of the last probe. After a failure it
// pauses for duration first, and for twice as long after each further failure, up to maxPause.
func (p *proof) renew(first time.Duration, probe func() error) error {
	if p.done || time.Now().Before(p.next) {
		return p.err
	}
	p.err = probe()
	p.done = p.err == nil
	p.pause = min(max(first, 2*p.pause), maxPause)
	p.next = time.Now().Add(p.pause)
	return p.err
}

// minFreeMiB is the free memory that a probe needs on a GPU: the limit and a context. With less, an allocation
// could fail because the GPU is full, and not because of the limit.
const minFreeMiB = 2 * probe.LimitMiB

// prove probes each GPU through the pipe directory of clients, and returns an error that lists the GPUs on which no
// client was limited. A GPU that no longer answers does not affect the others.
func (s *Supervisor) prove(ctx context.Context) error {
	now, _, err := s.cfg.GPUs()
	if err != nil {
		return fmt.Errorf("no client was seen to be limited: %w", err)
	}
	names := s.visible()
	var errs []error
	for i, g := range s.gpus {
		at := slices.IndexFunc(now, func(one inventory.Part) bool { return one.UUID == g.UUID })
		switch {
		case s.proven[g.UUID] || g.Closed:
			continue
		case at < 0:
			errs = append(errs, fmt.Errorf("no client was seen to be limited: GPU %d does not answer", g.Index))
			continue
		case now[at].Free < minFreeMiB:
			errs = append(errs, fmt.Errorf("no client was seen to be limited: GPU %d has less than %d MiB free", g.Index, minFreeMiB))
			continue
		}
		env := append(os.Environ(), "CUDA_DEVICE_ORDER=PCI_BUS_ID", visible+names[i], "CUDA_MPS_PIPE_DIRECTORY="+s.path("clients"),
			fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", probe.LimitMiB))
		probing, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		err := s.cfg.Probe(probing, env)
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("it does not limit GPU %d: %w", g.Index, err))
			continue
		}
		s.proven[g.UUID] = true
	}
	var proven []int
	for _, g := range s.gpus {
		if s.proven[g.UUID] {
			proven = append(proven, g.Index)
		}
	}
	err = errors.Join(errs...)
	switch {
	case len(proven) > 0:
		s.update(func(st *Status) { st.Proven = proven })
		s.log.Info("MPS daemon is healthy, and limits its clients", zap.Ints("gpus", proven), zap.Error(err))
	case err == nil:
		return errors.New("no client was seen to be limited: no GPU is for clients")
	}
	return err
}

func (s *Supervisor) sweep() {
	if err := shm.Sweep("/proc", s.cfg.Shm); err != nil {
		s.log.Warn("shared memory is not swept", zap.Error(err))
	}
}

// well publishes that the daemon is healthy, with the number of clients and the servers' process IDs. If the daemon
// does not list them, the previous values stay: without the process IDs, the device plugin would treat the servers'
// memory as foreign.
func (s *Supervisor) well(ctx context.Context, c control) {
	clients, servers, err := c.clients(ctx)
	if err != nil {
		s.log.Debug("clients not counted", zap.Error(err))
	}
	s.update(func(st *Status) {
		st.Healthy, st.Reason = true, ""
		if err == nil {
			st.Clients, st.Servers = clients, servers
		}
	})
}

// drain waits until no clients remain, up to Config.Drain. If the daemon does not list its clients, drain assumes
// that clients remain.
func (s *Supervisor) drain(ctx context.Context, exited chan error) {
	s.sick("it is about to end")
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Drain)
	defer cancel()
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	for {
		switch n, _, err := s.control().clients(ctx); {
		case err == nil && n == 0:
			return
		case err == nil:
			s.update(func(st *Status) { st.Clients = n })
		default:
			s.log.Debug("clients not counted", zap.Error(err))
		}
		select {
		case err := <-exited:
			exited <- err // for stopDaemon to receive
			return
		case <-ctx.Done():
			s.log.Warn("MPS daemon ends with clients", zap.Int("clients", s.Status().Clients))
			return
		case <-ticker.C:
		}
	}
}

// stopDaemon asks the daemon to quit, and kills it after Config.Quit.
func (s *Supervisor) stopDaemon(ctx context.Context, cmd *exec.Cmd, exited <-chan error) {
	if err := s.control().quit(ctx); err != nil {
		s.log.Warn("MPS daemon does not quit", zap.Error(err))
	}
	select {
	case <-exited:
		return
	case <-time.After(s.cfg.Quit):
	}
	s.log.Warn("MPS daemon is killed", zap.Error(cmd.Process.Kill()))
	<-exited
}
