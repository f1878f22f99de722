package deviceplugin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/testing/protocmp"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const resourceName = "gpumem.dev/gpu-mem"

// registry is the kubelet's end: it calls back who registers, as the kubelet does.
type registry struct {
	pluginapi.UnimplementedRegistrationServer
	dir        string
	registered chan *pluginapi.RegisterRequest
	lists      chan int // units of each list
	refuse     error
}

func (r *registry) Register(_ context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if r.refuse != nil {
		return nil, r.refuse
	}
	conn, err := grpc.NewClient("unix://"+filepath.Join(r.dir, req.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	client := pluginapi.NewDevicePluginClient(conn)
	go func() {
		defer conn.Close()
		stream, err := client.ListAndWatch(context.Background(), &pluginapi.Empty{})
		for err == nil {
			var list *pluginapi.ListAndWatchResponse
			if list, err = stream.Recv(); err == nil {
				r.lists <- len(list.GetDevices())
			}
		}
		r.lists <- -1
	}()
	r.registered <- req
	return &pluginapi.Empty{}, nil
}

// startKubelet does what a kubelet does at its start: it removes all sockets
// and makes its own.
func startKubelet(t *testing.T, dir string, refuse error) (r *registry, stop func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // a kubelet that is killed leaves it
	r = &registry{dir: dir, registered: make(chan *pluginapi.RegisterRequest, 10), lists: make(chan int, 100), refuse: refuse}
	server := grpc.NewServer()
	pluginapi.RegisterRegistrationServer(server, r)
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	return r, func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// running starts a runner and returns how to end it.
func running(t *testing.T, dir string) (r *Runner, stop func()) {
	t.Helper()
	n := newNode(t, nil, nil)
	r = NewRunner(dir, resourceName, n.Plugin, zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.Run(ctx) }()
	return r, func() {
		cancel()
		if err := receive(t, done); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func TestRunnerRegistersAgainAndAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "device-plugins") // not there yet
	r, stop := running(t, dir)
	if r.Missing() == "" {
		t.Error("registered with no kubelet")
	}
	select {
	case <-r.Listed():
		t.Error("devices are listed to no kubelet")
	default:
	}
	want := &pluginapi.RegisterRequest{
		Version: "v1beta1", Endpoint: "gpumem-gpumem.dev_gpu-mem.sock", ResourceName: resourceName,
		Options: &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true},
	}
	var kubelet *registry
	for range 3 {
		var end func()
		kubelet, end = startKubelet(t, dir, nil)
		restarted := time.Now()
		if diff := cmp.Diff(want, receive(t, kubelet.registered), protocmp.Transform()); diff != "" {
			t.Errorf("registration (-want +got):\n%s", diff)
		}
		if n := receive(t, kubelet.lists); n != 16 {
			t.Errorf("%d units, want 16", n)
		}
		receive(t, r.Listed())
		if took := time.Since(restarted); took > time.Second {
			t.Logf("registered after %s", took)
		}
		end()
	}
	last, end := startKubelet(t, dir, nil)
	defer end()
	receive(t, last.registered)
	receive(t, last.lists)
	stop()
	if n := receive(t, last.lists); n != -1 {
		t.Errorf("%d units after the end", n)
	}
	if _, err := os.Stat(filepath.Join(dir, want.GetEndpoint())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestRunnerSeesThatItsSocketIsGone(t *testing.T) {
	dir := t.TempDir()
	kubelet, end := startKubelet(t, dir, nil)
	defer end()
	r, stop := running(t, dir)
	defer stop()
	receive(t, kubelet.registered)
	if err := os.Remove(filepath.Join(dir, r.socketName())); err != nil {
		t.Fatal(err)
	}
	receive(t, kubelet.registered)
}

func TestRunnerReplacesASocketThatWasLeft(t *testing.T) {
	dir := t.TempDir()
	kubelet, end := startKubelet(t, dir, nil)
	defer end()
	left, err := net.Listen("unix", filepath.Join(dir, "gpumem-gpumem.dev_gpu-mem.sock"))
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	_, stop := running(t, dir)
	defer stop()
	receive(t, kubelet.registered)
}

func TestRunnerSaysWhyItIsNotRegistered(t *testing.T) {
	dir := t.TempDir()
	_, end := startKubelet(t, dir, errors.New("unsupported version"))
	defer end()
	r, stop := running(t, dir)
	defer stop()
	deadline := time.Now().Add(patience)
	for !strings.Contains(r.Missing(), "unsupported version") {
		if time.Now().After(deadline) {
			t.Fatalf("missing %q", r.Missing())
		}
	}
}
