package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	resources "github.com/gpumem/gpumem/pkg/node/podresources"
	"github.com/gpumem/gpumem/pkg/node/reconcile"
)

const (
	nodePods   = 200
	nodeStarts = 400 // of containers, for each unit
)

// benchNode measures what the kubelet waits for when a pod starts on a full node:
// eight GPUs of 288 GiB, of which almost 200 pods hold 10 GiB each.
func benchNode(ctx context.Context, _ options, r *report) error {
	for _, unitMiB := range []int64{1024, 256} {
		n, err := newNode(unitMiB)
		if err != nil {
			return err
		}
		err = n.measure(ctx, fmt.Sprintf("node-%dMiB", unitMiB), r)
		if err := errors.Join(err, n.close()); err != nil {
			return err
		}
	}
	return nil
}

// fullNode is a device plugin and what stands for its kubelet, each on a socket.
// One pod waits, again and again.
type fullNode struct {
	podresources.UnimplementedPodResourcesListerServer
	event.Events
	reconcile.Metrics

	inventory gpu.Inventory
	pods      []allocation.Pod
	starts    int
	before    *podresources.ListPodResourcesResponse
	available []string
	size      int // of the request that waits, in slots

	given   atomic.Pointer[[]string] // to the pod that waits
	plugin  pluginapi.DevicePluginClient
	closers []func() error
}

func newNode(unitMiB int64) (*fullNode, error) {
	const memoryMiB, podMiB = 288 << 10, 10 << 10
	n := &fullNode{size: int(podMiB / unitMiB), inventory: gpu.Inventory{UnitMiB: unitMiB, Enforcement: gpu.EnforcementAdvisory}}
	for i := range gpusPerNode {
		n.inventory.Devices = append(n.inventory.Devices, gpu.Device{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%08x-0000-4000-8000-000000000000", 0xb300+i)), Index: i, Model: "NVIDIA B300",
			MemoryMiB: memoryMiB, Allocatable: gpu.UnitsIn(memoryMiB, 1024, unitMiB), NUMANode: -1,
		})
	}
	if err := n.fill(); err != nil {
		return nil, err
	}
	return n, n.serve()
}

// fill puts pods on the GPUs by turns. The last one has got nothing yet.
func (n *fullNode) fill() error {
	slots, err := gpu.NewSlots(n.inventory)
	if err != nil {
		return err
	}
	n.before = &podresources.ListPodResourcesResponse{}
	free := make([][]gpu.SlotID, gpusPerNode)
	for i, d := range n.inventory.Devices {
		free[i] = slots.Of(gpu.Memory, d.UUID)
	}
	for i := range nodePods {
		ref := placement.PodRef{Namespace: "team", Name: fmt.Sprintf("pod-%03d", i), UID: fmt.Sprintf("uid-%03d", i)}
		k, last := i%gpusPerNode, i == nodePods-1
		units := gpu.Units(n.size)
		n.pods = append(n.pods, allocation.Pod{Created: time.Unix(1e9+int64(i), 0), Index: strconv.Itoa(n.inventory.Devices[k].Index), Holding: placement.Holding{
			Pod: ref, Admitted: !last,
			Request:    placement.Request{Containers: placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: units})},
			Assignment: placement.Assignment{Shares: []placement.Share{{Device: n.inventory.Devices[k].UUID, Units: units}}},
		}})
		listed := &podresources.PodResources{Namespace: ref.Namespace, Name: ref.Name}
		if !last {
			listed.Containers = []*podresources.ContainerResources{held(plain(free[k][:n.size]))}
			free[k] = free[k][n.size:]
		}
		n.before.PodResources = append(n.before.PodResources, listed)
	}
	n.available = plain(slices.Concat(free...))
	return nil
}

const memoryResource = api.DefaultDomain + "/gpu-mem"

// held lists slots as the kubelet does: each on its own.
func held(ids []string) *podresources.ContainerResources {
	out := &podresources.ContainerResources{Name: "main"}
	for _, id := range ids {
		out.Devices = append(out.Devices, &podresources.ContainerDevices{ResourceName: memoryResource, DeviceIds: []string{id}})
	}
	return out
}

func plain(ids []gpu.SlotID) []string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, string(id))
	}
	return out
}

func (n *fullNode) serve() error {
	dir, err := os.MkdirTemp("", "gpumem-bench-")
	if err != nil {
		return err
	}
	n.closers = append(n.closers, func() error { return os.RemoveAll(dir) })
	kubelet, socket := filepath.Join(dir, "kubelet"), filepath.Join(dir, "plugin")
	if err := n.listen(kubelet, func(s *grpc.Server) { podresources.RegisterPodResourcesListerServer(s, n) }); err != nil {
		return err
	}
	client, err := resources.New(kubelet, memoryResource)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, client.Close)
	plugin := deviceplugin.New(deviceplugin.DefaultConfig("node"), n, n, client, n, n, zap.NewNop())
	if err := n.listen(socket, func(s *grpc.Server) { pluginapi.RegisterDevicePluginServer(s, plugin.Server) }); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	n.closers = append(n.closers, conn.Close)
	n.plugin = pluginapi.NewDevicePluginClient(conn)
	return nil
}

func (n *fullNode) listen(socket string, register func(*grpc.Server)) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(listener) }()
	n.closers = append(n.closers, func() error { server.Stop(); return nil })
	return nil
}

func (n *fullNode) close() error {
	var errs []error
	for _, f := range slices.Backward(n.closers) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// Inventory implements inventory.Source.
func (n *fullNode) Inventory() (gpu.Inventory, string, <-chan struct{}) { return n.inventory, "", nil }

// Pods implements deviceplugin.Pods.
func (n *fullNode) Pods() ([]allocation.Pod, bool, <-chan struct{}) {
	return slices.Clone(n.pods), true, nil
}

// Refresh implements deviceplugin.Pods. Nothing is unknown here.
func (*fullNode) Refresh(context.Context) error { return nil }

// Correct implements deviceplugin.Pods. Nothing is written wrong here.
func (*fullNode) Correct(_ context.Context, pod placement.PodRef, _ placement.Assignment, _ gpu.Inventory) error {
	return fmt.Errorf("pod %s was corrected", pod)
}

// Drifted implements reconcile.Metrics.
func (*fullNode) Drifted(int) {}

// List implements podresources.PodResourcesListerServer.
func (n *fullNode) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	given := n.given.Load()
	if given == nil {
		return n.before, nil
	}
	last := &podresources.PodResources{Namespace: "team", Name: n.pods[nodePods-1].Pod.Name, Containers: []*podresources.ContainerResources{held(*given)}}
	return &podresources.ListPodResourcesResponse{PodResources: append(slices.Clone(n.before.GetPodResources()[:nodePods-1]), last)}, nil
}

// took is how long the plugin took for one start.
type took struct{ prefer, allocate, start time.Duration }

func (n *fullNode) measure(ctx context.Context, name string, r *report) error {
	if _, err := n.start(ctx); err != nil { // connects
		return err
	}
	var all []took
	for range nodeStarts {
		one, err := n.start(ctx)
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	for _, part := range []struct {
		name string
		of   func(took) time.Duration
	}{
		{"prefer", func(t took) time.Duration { return t.prefer }},
		{"allocate", func(t took) time.Duration { return t.allocate }},
		{"start", func(t took) time.Duration { return t.start }},
		{"all", func(t took) time.Duration { return t.prefer + t.allocate + t.start }},
	} {
		var times []time.Duration
		for _, one := range all {
			times = append(times, part.of(one))
		}
		slices.Sort(times)
		for _, q := range []int{50, 99} {
			at := times[len(times)*q/100]
			r.add(result{Name: fmt.Sprintf("%s-%s-p%d", name, part.name, q), Value: at.Seconds() * 1000, Unit: "ms"})
		}
	}
	return nil
}

// start has the container of the pod that waits started, as a kubelet does. Each
// time it is another pod of that name.
func (n *fullNode) start(ctx context.Context) (took, error) {
	var t took
	n.starts++
	n.pods[nodePods-1].Pod.UID = fmt.Sprintf("another-%d", n.starts)
	n.given.Store(nil)
	began := time.Now()
	preferred, err := n.plugin.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: n.available, AllocationSize: int32(n.size)},
	}})
	if err != nil {
		return t, err
	}
	t.prefer, began = time.Since(began), time.Now()
	ids := preferred.GetContainerResponses()[0].GetDeviceIDs()
	_, err = n.plugin.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return t, err
	}
	t.allocate = time.Since(began)
	n.given.Store(&ids)
	began = time.Now()
	_, err = n.plugin.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	t.start = time.Since(began)
	return t, err
}
