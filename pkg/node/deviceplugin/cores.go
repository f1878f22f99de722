package deviceplugin

import (
	"context"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Cores returns what answers the kubelet about the other resource, the cores of
// the GPUs: from the same knowledge, so that both are of the same GPU.
func (p *Server) Cores() pluginapi.DevicePluginServer { return &cores{server: p} }

// cores is registered with the kubelet next to the other server. It need not be
// asked before a container starts: who holds the memory holds the cores.
type cores struct {
	pluginapi.UnimplementedDevicePluginServer

	server *Server
}

func (c *cores) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (c *cores) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	return c.server.listAndWatch(gpu.Cores, stream)
}

func (c *cores) GetPreferredAllocation(ctx context.Context, req *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	return c.server.preferredAllocation(ctx, gpu.Cores, req)
}

func (c *cores) Allocate(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return c.server.allocate(ctx, gpu.Cores, req)
}
