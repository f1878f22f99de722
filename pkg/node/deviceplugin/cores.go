package deviceplugin

import (
	"context"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Cores returns the server for the second resource, the cores of the GPUs. It uses the same state, so that a
// container's memory and cores are on the same GPU.
func (p *Server) Cores() pluginapi.DevicePluginServer { return &cores{server: p} }

// cores is registered with the kubelet as a second plugin. It needs no call before a container starts, because
// the holder of the memory also holds the cores.
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
