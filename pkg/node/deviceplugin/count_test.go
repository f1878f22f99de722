package deviceplugin

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

func TestCount(t *testing.T) {
	source := plugintest.NewSource(plugintest.TwoGPUs())
	client := plugintest.Connect(t, NewCount(func() (gpu.Inventory, <-chan struct{}) {
		inv, _, changed := source.Inventory()
		return inv, changed
	}))
	ctx, cancel := context.WithTimeout(t.Context(), plugintest.Patience)
	defer cancel()
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	want := func(want int) {
		t.Helper()
		if list, err := stream.Recv(); err != nil || len(list.GetDevices()) != want {
			t.Errorf("GPUs %v, %v; want %d", list.GetDevices(), err, want)
		}
	}
	want(2)
	source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Status.Unhealthy = true }) // it still counts
	source.Set(func(inv *gpu.Inventory) { inv.Devices = inv.Devices[:1] })
	want(1)
	_, err = client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{})
	wantStatus(t, err, codes.FailedPrecondition, "only counts the GPUs")
	_, err = client.Allocate(ctx, &pluginapi.AllocateRequest{})
	wantStatus(t, err, codes.FailedPrecondition, "only counts the GPUs")
	if options, err := client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil || !options.GetGetPreferredAllocationAvailable() {
		t.Errorf("options %v, %v", options, err)
	}
}
