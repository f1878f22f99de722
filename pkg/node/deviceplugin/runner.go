package deviceplugin

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/process/operation"
)

const (
	// poll is the interval of checks of the two sockets, and the first pause before another registration. A
	// check is two system calls. Unlike a watch on the directory, it detects that the directory itself was
	// replaced.
	poll = 250 * time.Millisecond
	// socketCheckInterval is the interval of checks for a new kubelet while the plugin is not registered. Pods
	// that a kubelet admits before it has the plugin's devices fail.
	socketCheckInterval = 50 * time.Millisecond
	// maxPause is the longest pause after repeated registrations that the kubelet drops within the duration
	// `steady`.
	maxPause = 8 * time.Second
	steady   = 10 * time.Second
	// listenWait is the timeout for the kubelet's ListAndWatch call after the registration. The kubelet calls
	// at once.
	listenWait = 5 * time.Second
	// answerWait is the timeout for the answer of an earlier process that still serves.
	answerWait = time.Second
	// dialTimeout bounds a call to this plugin or to the kubelet during the registration.
	dialTimeout = 5 * time.Second
	// stopGrace bounds the wait for pending calls.
	stopGrace = 2 * time.Second
	// maxCalls exceeds the number of concurrent calls of the kubelet.
	maxCalls = 1 << 20
	// maxRequest bounds a request in bytes. The kubelet sends every free ID in one request.
	maxRequest = 16 << 20
)

// Endpoint is a resource with its server.
type Endpoint struct {
	Resource string
	Plugin   pluginapi.DevicePluginServer
}

// Runner keeps the resources of the process registered with the kubelet, each on a separate socket. It
// registers all of them or none, so that only one process serves them.
type Runner struct {
	dir       string
	endpoints []Endpoint
	log       *zap.Logger

	// Set these before Run. Answered receives the duration and the result of each call of the kubelet. Run
	// calls TakeOver before each registration, once no other process serves the kubelet; an error delays the
	// registration. It calls GiveWay while another process serves, and when calls outlive their server.
	Answered func(rpc string, took time.Duration, err error)
	TakeOver func() error
	GiveWay  func()

	listed chan struct{} // closed when a list of each resource was sent to the kubelet
	sent   []func()      // by endpoint: records that a list was sent

	mu      sync.Mutex
	missing string // reason why the kubelet receives no devices
}

// NewRunner returns a runner for a plugin directory, which need not exist yet.
func NewRunner(dir string, log *zap.Logger, endpoints ...Endpoint) *Runner {
	r := &Runner{
		dir: dir, endpoints: endpoints, log: log, missing: "not registered with the kubelet yet", listed: make(chan struct{}),
		Answered: func(string, time.Duration, error) {}, TakeOver: func() error { return nil }, GiveWay: func() {},
	}
	var left atomic.Int64
	left.Store(int64(len(endpoints)))
	for range endpoints {
		r.sent = append(r.sent, sync.OnceFunc(func() {
			if left.Add(-1) == 0 {
				close(r.listed)
			}
		}))
	}
	return r
}

// Listed returns a channel that is closed once the kubelet has received a device list of each resource, or
// there are no devices. Before that, the kubelet fails every pod that requests a device.
func (r *Runner) Listed() <-chan struct{} { return r.listed }

// Missing returns the reason why the kubelet receives no devices, or an empty string.
func (r *Runner) Missing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missing
}

// maxSocketPath is Linux's maximum length of a socket path.
const maxSocketPath = 107

// path returns the path of the endpoint's socket. The name differs from other plugins' and between resource
// domains. It contains a hash if the domain is too long.
func (r *Runner) path(e Endpoint) string {
	path := filepath.Join(r.dir, "gpumem-"+strings.ReplaceAll(e.Resource, "/", "_")+".sock")
	if len(path) > maxSocketPath {
		path = filepath.Join(r.dir, fmt.Sprintf("gpumem-%x", sha256.Sum224([]byte(e.Resource)))[:len("gpumem-")+32]+".sock")
	}
	return path
}

// Errors that end a registration and require a new one.
var (
	// errRestarted reports that the kubelet has lost its records. Run registers again at once.
	errRestarted = errors.New("the kubelet has restarted")
	// errDropped reports that the kubelet has ended its stream, and fails every pod that requests a device. The
	// kubelet ends the stream when it stops, and also when it notices the end of an earlier process of the
	// plugin. So an immediate registration could come too early.
	errDropped = errors.New("the kubelet no longer listens to the plugin")
	errSilent  = errors.New("the kubelet has registered the plugin, and does not ask for its devices")
)

// Idle records that there are no devices to offer, so that nothing is missing.
func (r *Runner) Idle() {
	for _, sent := range r.sent {
		sent()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = ""
}

// Run serves and registers repeatedly, until the context is done.
func (r *Runner) Run(ctx context.Context) error {
	pause := poll
	for ctx.Err() == nil {
		began := time.Now()
		kubelet, err := reach(ctx, filepath.Join(r.dir, filepath.Base(pluginapi.KubeletSocket)))
		if err == nil {
			err = r.life(ctx, kubelet)
		}
		if ctx.Err() == nil {
			r.recordOutcome(err)
		}
		if errors.Is(err, errDropped) && time.Since(began) < steady {
			pause = min(2*pause, maxPause)
		} else {
			pause = poll
		}
		if !errors.Is(err, errRestarted) && waitOrReplaced(ctx, pause, kubelet) {
			pause = poll
		}
	}
	return nil
}

// reach returns the kubelet's socket if the kubelet listens on it. A kubelet that has ended leaves its socket,
// and a starting one removes all sockets, including plugins', before it listens.
func reach(ctx context.Context, path string) (socket, error) {
	kubelet, err := statSocket(path)
	if err != nil {
		return kubelet, fmt.Errorf("wait for the kubelet's socket: %w", err)
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", path)
	if err != nil {
		return kubelet, fmt.Errorf("wait for the kubelet's socket: %w", err)
	}
	return kubelet, conn.Close()
}

// waitOrReplaced waits for a pause, and returns true at once if a new kubelet has created its socket.
func waitOrReplaced(ctx context.Context, pause time.Duration, kubelet socket) (another bool) {
	for end := time.Now().Add(pause); time.Now().Before(end); {
		if kubelet.isReplaced() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(socketCheckInterval):
		}
	}
	return false
}

// recordOutcome stores the outcome of a registration, and logs a change.
func (r *Runner) recordOutcome(err error) {
	missing := ""
	if err != nil {
		missing = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if missing != r.missing {
		if err != nil {
			r.log.Info("not registered with the kubelet", zap.Error(err))
		}
		for _, e := range r.endpoints {
			if err == nil {
				r.log.Info("registered with the kubelet", zap.String("resource", e.Resource), zap.String("socket", r.path(e)))
			}
		}
	}
	r.missing = missing
}

// life serves one registration, from listening on the sockets until the plugin must register again.
func (r *Runner) life(ctx context.Context, kubelet socket) error {
	for _, e := range r.endpoints {
		if path := r.path(e); answers(ctx, path) {
			r.GiveWay()
			return fmt.Errorf("another process serves on %s: this one takes over when that has ended", path)
		}
	}
	if ctx.Err() != nil {
		return nil // canceled before the answer was known
	}
	if err := r.TakeOver(); err != nil {
		return err
	}
	life, end := context.WithCancel(ctx)
	var own []socket
	var servers []*grpc.Server
	served := make(chan error, len(r.endpoints))
	running := semaphore.NewWeighted(maxCalls)
	streams := make(listeners, 8) // buffered, so that handlers rarely wait for watch
	defer func() {
		r.drain(running)
		end()
		for _, server := range servers {
			stop(server)
			<-served
		}
		for _, s := range own {
			s.remove()
		}
	}()
	for i, e := range r.endpoints {
		listener, err := listen(ctx, r.path(e))
		if err != nil {
			return err
		}
		socket, err := statSocket(r.path(e))
		if err != nil { // the kubelet is just removing the sockets
			return errors.Join(errRestarted, listener.Close())
		}
		server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.StreamInterceptor(r.endWith(life, i, streams)), grpc.UnaryInterceptor(r.answer(running)))
		pluginapi.RegisterDevicePluginServer(server, e.Plugin)
		own, servers = append(own, socket), append(servers, server)
		go func() { served <- server.Serve(listener) }()
	}

	// The kubelet calls back during the registration.
	for _, s := range own {
		if err := callPlugin(ctx, s.path); err != nil {
			return fmt.Errorf("the plugin does not answer on %s: %w", s.path, err)
		}
	}
	for _, e := range r.endpoints {
		if err := r.register(ctx, kubelet.path, e); err != nil {
			return fmt.Errorf("register %s with the kubelet: %w", e.Resource, err)
		}
	}
	return r.watch(ctx, own, kubelet, streams, served)
}

// drain waits for pending calls while the sockets still answer, and rejects new calls. The next process loads
// the grants as soon as the sockets no longer answer, so a call that outlasts stopGrace must not record its
// grant (GiveWay).
func (r *Runner) drain(running *semaphore.Weighted) {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if err := running.Acquire(ctx, maxCalls); err != nil {
		r.log.Warn("calls of the kubelet are cut short", zap.Duration("after", stopGrace))
		r.GiveWay()
	}
}

// watch waits until the plugin must register again, or the context is done.
func (r *Runner) watch(ctx context.Context, own []socket, kubelet socket, streams listeners, served chan error) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	silent := time.After(listenWait)
	open := make([]int, len(own)) // open streams of each resource
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			served <- err // for the deferred wait in life
			return fmt.Errorf("serve the kubelet: %w", err)
		case s := <-streams:
			if open[s.endpoint] += s.change; open[s.endpoint] == 0 {
				return errDropped
			}
			if !slices.Contains(open, 0) {
				silent = nil
				r.recordOutcome(nil)
			}
		case <-silent:
			return errSilent
		case <-ticker.C:
			if slices.ContainsFunc(own, socket.isRemoved) {
				return fmt.Errorf("%w: the plugin's socket is gone", errRestarted)
			}
			if kubelet.isReplaced() {
				return fmt.Errorf("%w: its socket is new", errRestarted)
			}
		}
	}
}

// listen listens on the plugin's socket, and replaces a leftover of an earlier run.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // another process's socket may have replaced it by then
	}
	return listener, nil
}

// socket is a socket file at the time of a check.
type socket struct {
	path string
	file fs.FileInfo // nil if it did not exist
}

func statSocket(path string) (socket, error) {
	file, err := os.Stat(path)
	return socket{path, file}, err
}

// isSameFile reports whether two sockets are the same file. It compares times too, because file systems reuse inode
// numbers.
func (s socket) isSameFile(o socket) bool {
	return s.file != nil && os.SameFile(s.file, o.file) && s.file.ModTime().Equal(o.file.ModTime())
}

// isRemoved reports whether the socket was removed or replaced.
func (s socket) isRemoved() bool {
	now, err := statSocket(s.path)
	return err != nil || !s.isSameFile(now)
}

// isReplaced reports whether another socket exists at the path. It returns false for a missing socket, because the
// kubelet will create a new one.
func (s socket) isReplaced() bool {
	now, err := statSocket(s.path)
	return err == nil && !s.isSameFile(now)
}

// remove removes the socket, unless it is gone.
func (s socket) remove() {
	if !s.isRemoved() {
		_ = os.Remove(s.path) // otherwise the next process removes it
	}
}

// answers reports whether another process serves on the socket. A terminating process serves the kubelet for a
// while. A process that hangs or was killed does not answer.
func answers(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	return callPlugin(ctx, socket) == nil
}

// callPlugin makes a call that every plugin answers. It fails at once if nobody listens on the socket.
func callPlugin(ctx context.Context, socket string) error {
	return dial(ctx, socket, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pluginapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &pluginapi.Empty{})
		return err
	})
}

func (r *Runner) register(ctx context.Context, kubelet string, e Endpoint) error {
	options, err := e.Plugin.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	return dial(ctx, kubelet, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
			Version:      pluginapi.Version,
			Endpoint:     filepath.Base(r.path(e)),
			ResourceName: e.Resource,
			Options:      options,
		})
		return err
	})
}

func dial(ctx context.Context, socket string, call func(context.Context, *grpc.ClientConn) error) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	return errors.Join(call(ctx, conn), conn.Close())
}

// stop stops a server, and waits up to stopGrace for its calls.
func stop(server *grpc.Server) {
	timer := time.AfterFunc(stopGrace, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// listeners receives each start (1) and end (-1) of a stream in which the kubelet receives an endpoint's devices.
type listeners chan struct{ endpoint, change int }

func (l listeners) send(life context.Context, endpoint, change int) {
	select {
	case l <- struct{ endpoint, change int }{endpoint, change}:
	case <-life.Done():
	}
}

// endWith returns an interceptor that ends streams when the context `life` is done. Otherwise ListAndWatch
// would outlive its server.
func (r *Runner) endWith(life context.Context, endpoint int, streams listeners) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		streams.send(life, endpoint, 1)
		defer streams.send(life, endpoint, -1)
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		return handler(srv, &boundedStream{ServerStream: stream, ctx: ctx, sent: r.sent[endpoint]})
	}
}

// boundedStream is a stream with a separate context. It calls sent after each message.
type boundedStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent func()
}

func (s *boundedStream) Context() context.Context { return s.ctx }

func (s *boundedStream) SendMsg(m any) error {
	err := s.ServerStream.SendMsg(m)
	if err == nil {
		s.sent()
	}
	return err
}

// answer returns an interceptor that reports the duration and the result of each call. While the process
// drains, only GetDevicePluginOptions succeeds, which shows that the process still serves.
func (r *Runner) answer(running *semaphore.Weighted) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if info.FullMethod != pluginapi.DevicePlugin_GetDevicePluginOptions_FullMethodName {
			if !running.TryAcquire(1) {
				return nil, status.Error(codes.Unavailable, "the device plugin ends")
			}
			defer running.Release(1)
		}
		began := time.Now()
		out, err := handle(operation.Begin(ctx), req)
		r.Answered(info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:], time.Since(began), err)
		return out, err
	}
}
