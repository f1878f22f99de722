package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// poll is how often the two sockets are looked at. Looking is two calls of
	// the kernel; it sees what a watch on the directory would miss, that the
	// directory itself was replaced.
	poll = 250 * time.Millisecond
	// dialTimeout bounds a call to ourselves or to the kubelet on registering.
	dialTimeout = 5 * time.Second
	// stopGrace is how long calls that are under way may take to end.
	stopGrace = 2 * time.Second
	// maxRequest bounds a request. The kubelet names every free ID in one.
	maxRequest = 16 << 20
)

// Runner keeps a plugin registered with the kubelet.
type Runner struct {
	dir      string
	resource string
	plugin   pluginapi.DevicePluginServer
	log      *zap.Logger

	// Answered is told how long each call of the kubelet took, and how it ended.
	// It is nil where nobody wants to know, and not to be set once Run runs.
	Answered func(rpc string, took time.Duration, err error)

	listed chan struct{} // closed when the kubelet has been sent a list
	sent   func()        // closes listed

	mu      sync.Mutex
	missing string // why the plugin is not registered
}

// NewRunner returns a runner for a plugin directory, which need not exist yet.
func NewRunner(dir, resource string, plugin pluginapi.DevicePluginServer, log *zap.Logger) *Runner {
	listed := make(chan struct{})
	return &Runner{
		dir: dir, resource: resource, plugin: plugin, log: log, missing: "not registered with the kubelet yet",
		listed: listed, sent: sync.OnceFunc(func() { close(listed) }),
	}
}

// Listed is closed once the kubelet has been sent a list of devices: before, it
// fails every pod that asks for one.
func (r *Runner) Listed() <-chan struct{} { return r.listed }

// Missing says why the plugin is not registered.
func (r *Runner) Missing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.missing
}

// socketName is unlike any other plugin's, and unlike our own under another domain.
func (r *Runner) socketName() string {
	return "gpumem-" + strings.ReplaceAll(r.resource, "/", "_") + ".sock"
}

// errRestarted says that the kubelet forgot us: begin again at once.
var errRestarted = errors.New("the kubelet has restarted")

// Run serves and registers, again and again, until the context is done.
func (r *Runner) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := r.life(ctx)
		if ctx.Err() == nil {
			r.settle(err)
		}
		if errors.Is(err, errRestarted) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
	return nil
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
			r.log.Info("not registered with the kubelet", zap.String("resource", r.resource), zap.Error(err))
		} else {
			r.log.Info("registered with the kubelet", zap.String("resource", r.resource), zap.String("socket", r.socketName()))
		}
	}
	r.missing = missing
}

// life is one registration, from listening until the kubelet has forgotten it.
func (r *Runner) life(ctx context.Context) error {
	kubelet := filepath.Join(r.dir, filepath.Base(pluginapi.KubeletSocket))
	kubeletBefore, err := os.Stat(kubelet)
	if err != nil {
		return fmt.Errorf("wait for the kubelet's socket: %w", err)
	}
	socket := filepath.Join(r.dir, r.socketName())
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of an earlier run: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	own, err := os.Stat(socket)
	if err != nil { // the kubelet cleans up at this very moment
		return errors.Join(errRestarted, listener.Close())
	}

	life, end := context.WithCancel(ctx)
	defer end()
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.StreamInterceptor(r.endWith(life)), grpc.UnaryInterceptor(r.timed))
	pluginapi.RegisterDevicePluginServer(server, r.plugin)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		end()
		stop(server)
		<-served
	}()

	if err := r.checkSelf(ctx, socket); err != nil {
		return fmt.Errorf("the plugin does not answer on %s: %w", socket, err)
	}
	if err := r.register(ctx, kubelet); err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	r.settle(nil)

	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			served <- err // for the deferred end
			return fmt.Errorf("serve on %s: %w", socket, err)
		case <-ticker.C:
			if !still(socket, own) {
				return fmt.Errorf("%w: the plugin's socket is gone", errRestarted)
			}
			// A kubelet that is gone will come back, and then its socket is another.
			if now, err := os.Stat(kubelet); err == nil && !sameFile(now, kubeletBefore) {
				return fmt.Errorf("%w: its socket is new", errRestarted)
			}
		}
	}
}

func still(path string, was fs.FileInfo) bool {
	now, err := os.Stat(path)
	return err == nil && sameFile(now, was)
}

// sameFile also compares times: file systems use an inode number again.
func sameFile(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}

// checkSelf makes sure that the kubelet, which calls back at once, gets an answer.
func (r *Runner) checkSelf(ctx context.Context, socket string) error {
	return dial(ctx, socket, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pluginapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
		return err
	})
}

func (r *Runner) register(ctx context.Context, kubelet string) error {
	options, err := r.plugin.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	return dial(ctx, kubelet, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
			Version:      pluginapi.Version,
			Endpoint:     r.socketName(),
			ResourceName: r.resource,
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
	server.GracefulStop() // it also removes the socket
}

// endWith ends streams when a context is done: ListAndWatch would else outlive
// its server.
func (r *Runner) endWith(life context.Context) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		return handler(srv, &boundedStream{ServerStream: stream, ctx: ctx, sent: r.sent})
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

// timed calls a handler and tells how that went.
func (r *Runner) timed(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	began := time.Now()
	out, err := handle(ctx, req)
	if r.Answered != nil {
		r.Answered(info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:], time.Since(began), err)
	}
	return out, err
}
