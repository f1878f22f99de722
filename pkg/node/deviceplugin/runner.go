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
	// poll is how often the two sockets are looked at, and how soon registering is
	// tried again. Looking is two calls of the kernel; it sees what a watch on the
	// directory would miss, that the directory itself was replaced.
	poll = 250 * time.Millisecond
	// glance is how often it is looked whether there is another kubelet while the plugin
	// is not registered: a pod that a kubelet admits before it has heard of devices fails.
	glance = 50 * time.Millisecond
	// maxPause is the longest pause where the kubelet drops the plugin again and
	// again, each time within steady.
	maxPause = 8 * time.Second
	steady   = 10 * time.Second
	// listenWait is how long the kubelet may take to ask for the devices of a plugin
	// that has registered: it does so at once.
	listenWait = 5 * time.Second
	// answerWait is how long a process that still serves may take to say so.
	answerWait = time.Second
	// dialTimeout bounds a call to ourselves or to the kubelet on registering.
	dialTimeout = 5 * time.Second
	// stopGrace is how long running calls may take to end.
	stopGrace = 2 * time.Second
	// maxCalls is more than the kubelet makes at a time.
	maxCalls = 1 << 20
	// maxRequest bounds a request. The kubelet names every free ID in one.
	maxRequest = 16 << 20
)

// Endpoint is a resource with the server that answers the kubelet about it.
type Endpoint struct {
	Resource string
	Plugin   pluginapi.DevicePluginServer
}

// Runner keeps the resources of the process registered with the kubelet, each on its own socket. It registers all of
// them or none, so that one process at a time answers about any.
type Runner struct {
	dir       string
	endpoints []Endpoint
	log       *zap.Logger

	// None of these must be set once Run runs. Answered gets the time and the result of each call of the kubelet. TakeOver
	// is called before each registration, once no other process serves the kubelet; an error delays the registration.
	// GiveWay is called while another process serves, and when calls outlive their server.
	Answered func(rpc string, took time.Duration, err error)
	TakeOver func() error
	GiveWay  func()

	listed chan struct{} // closed when the kubelet has been sent a list of each resource
	sent   []func()      // by endpoint: records that a list was sent

	mu      sync.Mutex
	missing string // why the kubelet does not hear of devices
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

// Listed is closed once the kubelet has been sent a list of devices of each resource, or there are none: before,
// it fails every pod that asks for one.
func (r *Runner) Listed() <-chan struct{} { return r.listed }

// Missing says why the kubelet does not hear of devices.
func (r *Runner) Missing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missing
}

// maxSocketPath is the longest path of a socket that Linux takes.
const maxSocketPath = 107

// path returns the endpoint's socket. Its name is unlike any other plugin's, and unlike our own under another domain. A
// domain can be too long for a path.
func (r *Runner) path(e Endpoint) string {
	path := filepath.Join(r.dir, "gpumem-"+strings.ReplaceAll(e.Resource, "/", "_")+".sock")
	if len(path) > maxSocketPath {
		path = filepath.Join(r.dir, fmt.Sprintf("gpumem-%x", sha256.Sum224([]byte(e.Resource)))[:len("gpumem-")+32]+".sock")
	}
	return path
}

// Why a life ends that is to be followed by another.
var (
	// errRestarted says that the kubelet has lost its records: begin again at once.
	errRestarted = errors.New("the kubelet has restarted")
	// errDropped says that the kubelet no longer listens, and fails every pod that asks
	// for a device. It does so when it stops, and to those registered when it hears
	// that an earlier process of the plugin has ended: to begin again at once could be
	// before it has.
	errDropped = errors.New("the kubelet no longer listens to the plugin")
	errSilent  = errors.New("the kubelet has registered the plugin, and does not ask for its devices")
)

// Idle takes note that there is nothing to tell the kubelet, so that nothing is missing.
func (r *Runner) Idle() {
	for _, sent := range r.sent {
		sent()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = ""
}

// Run serves and registers, again and again, until the context is done.
func (r *Runner) Run(ctx context.Context) error {
	pause := poll
	for ctx.Err() == nil {
		began := time.Now()
		kubelet, err := reach(ctx, filepath.Join(r.dir, filepath.Base(pluginapi.KubeletSocket)))
		if err == nil {
			err = r.life(ctx, kubelet)
		}
		if ctx.Err() == nil {
			r.settle(err)
		}
		if errors.Is(err, errDropped) && time.Since(began) < steady {
			pause = min(2*pause, maxPause)
		} else {
			pause = poll
		}
		if !errors.Is(err, errRestarted) && rest(ctx, pause, kubelet) {
			pause = poll
		}
	}
	return nil
}

// reach returns the kubelet's socket when the kubelet listens on it. One that is gone
// leaves its socket, and one that starts removes all that are there before it listens: a
// plugin's too.
func reach(ctx context.Context, path string) (socket, error) {
	kubelet, err := seen(path)
	if err != nil {
		return kubelet, fmt.Errorf("wait for the kubelet's socket: %w", err)
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", path)
	if err != nil {
		return kubelet, fmt.Errorf("wait for the kubelet's socket: %w", err)
	}
	return kubelet, conn.Close()
}

// rest waits for a pause, or until there is another kubelet, which it reports.
func rest(ctx context.Context, pause time.Duration, kubelet socket) (another bool) {
	for end := time.Now().Add(pause); time.Now().Before(end); {
		if kubelet.replaced() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(glance):
		}
	}
	return false
}

// settle remembers how registering went, and logs it when it went otherwise
// than before.
func (r *Runner) settle(err error) {
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

// life is one registration, from listening until the kubelet has forgotten it.
func (r *Runner) life(ctx context.Context, kubelet socket) error {
	for _, e := range r.endpoints {
		if path := r.path(e); answers(ctx, path) {
			r.GiveWay()
			return fmt.Errorf("another process serves on %s: this one takes over when that has ended", path)
		}
	}
	if ctx.Err() != nil {
		return nil // before it was known whether one does
	}
	if err := r.TakeOver(); err != nil {
		return err
	}
	life, end := context.WithCancel(ctx)
	var own []socket
	var servers []*grpc.Server
	served := make(chan error, len(r.endpoints))
	running := semaphore.NewWeighted(maxCalls)
	streams := make(listeners, 8) // some, for who does not wait for the registration to end
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
		socket, err := seen(r.path(e))
		if err != nil { // the kubelet cleans up at this very moment
			return errors.Join(errRestarted, listener.Close())
		}
		server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.StreamInterceptor(r.endWith(life, i, streams)), grpc.UnaryInterceptor(r.answer(running)))
		pluginapi.RegisterDevicePluginServer(server, e.Plugin)
		own, servers = append(own, socket), append(servers, server)
		go func() { served <- server.Serve(listener) }()
	}

	// The kubelet calls back at once.
	for _, s := range own {
		if err := ask(ctx, s.path); err != nil {
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

// drain waits for the running calls while the sockets still answer: the next process loads the grants when they no longer
// do. New calls fail. A call that takes too long may not record its grant any more.
func (r *Runner) drain(running *semaphore.Weighted) {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if err := running.Acquire(ctx, maxCalls); err != nil {
		r.log.Warn("calls of the kubelet are cut short", zap.Duration("after", stopGrace))
		r.GiveWay()
	}
}

// watch returns when the plugin has to register again, or the context is done.
func (r *Runner) watch(ctx context.Context, own []socket, kubelet socket, streams listeners, served chan error) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	silent := time.After(listenWait)
	open := make([]int, len(own)) // streams of each resource
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			served <- err // for who waits for the end
			return fmt.Errorf("serve the kubelet: %w", err)
		case s := <-streams:
			if open[s.endpoint] += s.change; open[s.endpoint] == 0 {
				return errDropped
			}
			if !slices.Contains(open, 0) {
				silent = nil
				r.settle(nil)
			}
		case <-silent:
			return errSilent
		case <-ticker.C:
			if slices.ContainsFunc(own, socket.gone) {
				return fmt.Errorf("%w: the plugin's socket is gone", errRestarted)
			}
			if kubelet.replaced() {
				return fmt.Errorf("%w: its socket is new", errRestarted)
			}
		}
	}
}

// listen listens on the plugin's socket, in place of one that an earlier run has left.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // by then another process's may be there
	}
	return listener, nil
}

// socket is a socket as it was when it was seen.
type socket struct {
	path string
	file fs.FileInfo // nil: it was not there
}

func seen(path string) (socket, error) {
	file, err := os.Stat(path)
	return socket{path, file}, err
}

// same also compares times: file systems use an inode number again.
func (s socket) same(o socket) bool {
	return s.file != nil && os.SameFile(s.file, o.file) && s.file.ModTime().Equal(o.file.ModTime())
}

// gone reports whether the socket is not there any more, or another is.
func (s socket) gone() bool {
	now, err := seen(s.path)
	return err != nil || !s.same(now)
}

// replaced reports whether another is there. A kubelet that is gone will come back.
func (s socket) replaced() bool {
	now, err := seen(s.path)
	return err == nil && !s.same(now)
}

// remove removes it, unless it is gone.
func (s socket) remove() {
	if !s.gone() {
		_ = os.Remove(s.path) // the next process does it, too
	}
}

// answers reports whether another process serves on the socket: one that was asked to
// end serves the kubelet for a while. One that hangs, or was killed, does not answer.
func answers(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	return ask(ctx, socket) == nil
}

// ask asks a plugin something that any answers. At a socket that is gone it fails at once.
func ask(ctx context.Context, socket string) error {
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

// stop lets calls end, but not for ever.
func stop(server *grpc.Server) {
	timer := time.AfterFunc(stopGrace, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

// listeners counts each stream on which the kubelet reads the devices of an endpoint: 1 when it
// begins, -1 when it ends.
type listeners chan struct{ endpoint, change int }

func (l listeners) tell(life context.Context, endpoint, change int) {
	select {
	case l <- struct{ endpoint, change int }{endpoint, change}:
	case <-life.Done():
	}
}

// endWith ends streams when a context is done: ListAndWatch would else outlive
// its server.
func (r *Runner) endWith(life context.Context, endpoint int, streams listeners) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		streams.tell(life, endpoint, 1)
		defer streams.tell(life, endpoint, -1)
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		return handler(srv, &boundedStream{ServerStream: stream, ctx: ctx, sent: r.sent[endpoint]})
	}
}

// boundedStream is a stream with a context of its own, which tells when something
// has been sent.
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

// answer calls a handler, and reports its time and result. Once the process drains, it only answers that it still serves.
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
