package nri

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"
	"go.uber.org/zap"
)

// runtime is a container runtime in which plugins can register.
type runtime struct{ registered chan struct{} }

func (r *runtime) RegisterPlugin(context.Context, *api.RegisterPluginRequest) (*api.Empty, error) {
	close(r.registered)
	return &api.Empty{}, nil
}

func (r *runtime) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return &api.UpdateContainersResponse{}, nil
}

// connect accepts the connection of one plugin, and returns a client of the plugin.
func (r *runtime) connect(t *testing.T, listener net.Listener) api.PluginService {
	t.Helper()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	mux := multiplex.Multiplex(conn, multiplex.WithBlockedRead())
	t.Cleanup(func() { mux.Close() })
	pluginConn, err := mux.Open(multiplex.PluginServiceConn)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	api.RegisterRuntimeService(server, r)
	serving, err := mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(context.WithoutCancel(t.Context()), serving) }()
	mux.Unblock()
	<-r.registered
	return api.NewPluginClient(ttrpc.NewClient(pluginConn))
}

// TestThePluginIsConnectedOnceItKnowsWhatRuns verifies that Connected returns an error until Synchronize. Until
// then, a container that started while the plugin was disconnected may run without a limit.
func TestThePluginIsConnectedOnceItKnowsWhatRuns(t *testing.T) {
	dir, err := os.MkdirTemp("", "nri") //nolint:usetesting // for a short path
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "nri.sock")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	p := New(socket, &fakeContainers{}, zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	client := (&runtime{registered: make(chan struct{})}).connect(t, listener)
	if _, err := client.Configure(t.Context(), &api.ConfigureRequest{RuntimeName: "containerd", RuntimeVersion: "2.2", RegistrationTimeout: 5000, RequestTimeout: 2000}); err != nil {
		t.Fatal(err)
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for range 20 {
		if p.Connected() == nil {
			t.Fatal("it says that it is called before the runtime has listed the containers")
		}
		<-ticker.C
	}
	if _, err := client.Synchronize(t.Context(), &api.SynchronizeRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Connected(); err != nil {
		t.Errorf("after the runtime has listed the containers: %v", err)
	}
}
