package deviceplugin

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Count advertises how many GPUs a node has, as a resource that no pod gets.
// gpushare's plugin wrote the number into the node's status, where the kubelet
// may drop what it does not know; tools made for gpushare divide by it.
type Count struct {
	pluginapi.UnimplementedDevicePluginServer
	inventory func() (gpu.Inventory, <-chan struct{})
}

// NewCount returns a plugin that counts the GPUs of an inventory. The channel
// that comes with one is closed when there may be another.
func NewCount(inventory func() (gpu.Inventory, <-chan struct{})) *Count {
	return &Count{inventory: inventory}
}

var errOnlyCounted = status.Error(codes.FailedPrecondition,
	"this resource only counts the GPUs of a node, no pod can have it: ask for gpu-mem, and by an annotation for several GPUs")

// GetDevicePluginOptions implements pluginapi.DevicePluginServer.
func (c *Count) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

// ListAndWatch sends one device for each GPU, and again whenever they change.
func (c *Count) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	var last *pluginapi.ListAndWatchResponse
	for {
		inv, changed := c.inventory()
		list := &pluginapi.ListAndWatchResponse{}
		for _, d := range inv.Devices {
			list.Devices = append(list.Devices, &pluginapi.Device{ID: string(d.UUID), Health: pluginapi.Healthy})
		}
		if last == nil || !proto.Equal(list, last) {
			if err := stream.Send(list); err != nil {
				return fmt.Errorf("send the GPUs: %w", err)
			}
			last = list
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation refuses.
func (c *Count) GetPreferredAllocation(context.Context, *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	return nil, errOnlyCounted
}

// Allocate refuses.
func (c *Count) Allocate(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return nil, errOnlyCounted
}
