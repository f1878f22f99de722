package deviceplugin

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
	"github.com/gpumem/gpumem/pkg/node/podresources"
)

// fullNode is a node with eight GPUs of 288 GiB and 199 running pods with 10 GiB each. It implements the
// kubelet's PodResources API. The benchmark starts one more pod repeatedly.
type fullNode struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	*plugintest.Node
	listed    *podresourcesv1.ListPodResourcesResponse
	available []string
	size      gpu.Units // of each pod
}

const (
	fullPods   = 200
	gpuMemName = "gpumem.dev/gpu-mem"
)

func newFullNode(b *testing.B, unitMiB int64) *fullNode {
	b.Helper()
	const gpus, memoryMiB, podMiB = 8, 288 << 10, 10 << 10
	inv := gpu.Inventory{UnitMiB: unitMiB, Enforcement: gpu.EnforcementAdvisory}
	for i := range gpus {
		inv.Devices = append(inv.Devices, gpu.Device{
			UUID: gpu.UUID(fmt.Sprintf("GPU-%08x-0000-4000-8000-000000000000", 0xb300+i)), Index: i, Model: "NVIDIA B300",
			MemoryMiB: memoryMiB, Allocatable: gpu.UnitsIn(memoryMiB, 1024, unitMiB), NUMANode: -1,
		})
	}
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		b.Fatal(err)
	}
	n := &fullNode{Node: plugintest.NewNode(nil), size: gpu.Units(podMiB / unitMiB), listed: &podresourcesv1.ListPodResourcesResponse{}}
	n.Source = plugintest.NewSource(inv)
	free := make([][]gpu.SlotID, gpus)
	for i, d := range inv.Devices {
		free[i] = slots.Of(gpu.Memory, d.UUID)
	}
	for i := range fullPods - 1 {
		d, k := inv.Devices[i%gpus], i%gpus
		n.add(d, i, true)
		n.hold(i, free[k][:n.size])
		free[k] = free[k][n.size:]
	}
	n.add(inv.Devices[gpus-1], fullPods-1, false)
	n.hold(fullPods-1, nil)
	for _, id := range slices.Concat(free...) {
		n.available = append(n.available, string(id))
	}
	return n
}

func podName(i int) string { return fmt.Sprintf("pod-%03d", i) }

// add adds a pod that is assigned a GPU.
func (n *fullNode) add(d gpu.Device, i int, admitted bool) {
	n.Pods.Add(allocation.Pod{Created: time.Unix(1e9+int64(i), 0), Index: strconv.Itoa(d.Index), Holding: placement.Holding{
		Pod:        placement.PodRef{Namespace: "team", Name: podName(i), UID: podName(i)},
		Admitted:   admitted,
		Request:    placement.Request{Containers: placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: n.size})},
		Assignment: placement.Assignment{Shares: []placement.Share{{Device: d.UUID, Units: n.size}}},
	}})
}

// hold lists the slots of a pod in separate entries, like the kubelet.
func (n *fullNode) hold(i int, ids []gpu.SlotID) {
	listed := &podresourcesv1.PodResources{Namespace: "team", Name: podName(i)}
	if len(ids) > 0 {
		listed.Containers = []*podresourcesv1.ContainerResources{{Name: "main"}}
	}
	for _, id := range ids {
		one := &podresourcesv1.ContainerDevices{ResourceName: gpuMemName, DeviceIds: []string{string(id)}}
		listed.Containers[0].Devices = append(listed.Containers[0].Devices, one)
	}
	before := n.listed.GetPodResources()
	n.listed = &podresourcesv1.ListPodResourcesResponse{PodResources: append(slices.Clone(before[:min(i, len(before))]), listed)}
}

// List implements podresourcesv1.PodResourcesListerServer.
func (n *fullNode) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	return n.listed, nil
}

// connect runs a plugin on this node.
func (n *fullNode) connect(b *testing.B) {
	b.Helper()
	socket := filepath.Join(b.TempDir(), "kubelet")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, n)
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(server.Stop)
	client, err := podresources.New(socket, gpuMemName)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	plugin := New(DefaultConfig("n1"), n.Source, n.Pods, client, n.Notes, n.Counts, zap.NewNop())
	n.Client = plugintest.Connect(b, plugin.Server)
}

// BenchmarkStart measures the time that the kubelet waits for the plugin when a container starts on a full
// node: preferred allocation, Allocate and PreStartContainer.
func BenchmarkStart(b *testing.B) {
	for _, unitMiB := range []int64{1024, 256} {
		b.Run(fmt.Sprintf("%dMiB", unitMiB), func(b *testing.B) {
			n := newFullNode(b, unitMiB)
			n.connect(b)
			last, before := podName(fullPods-1), n.listed
			steps := map[string][]time.Duration{}
			for i := 0; b.Loop(); i++ {
				n.Pods.Change(last, func(p *allocation.Pod) { p.Pod.UID = strconv.Itoa(i) }) // a new pod of the same name
				n.listed = before
				began := time.Now()
				ids, err := n.Preferred(b.Context(), n.available, nil, n.size)
				preferred := time.Now()
				if err == nil {
					_, err = n.Allocate(b.Context(), ids...)
				}
				allocated := time.Now()
				if err != nil {
					b.Fatal(err)
				}
				var held []gpu.SlotID
				for _, id := range ids {
					held = append(held, gpu.SlotID(id))
				}
				n.hold(fullPods-1, held)
				starting := time.Now()
				if err := n.Start(b.Context(), ids...); err != nil {
					b.Fatal(err)
				}
				started := time.Since(starting)
				steps["prefer"] = append(steps["prefer"], preferred.Sub(began))
				steps["allocate"] = append(steps["allocate"], allocated.Sub(preferred))
				steps["start"] = append(steps["start"], started)
				steps["all"] = append(steps["all"], allocated.Sub(began)+started)
			}
			for step, times := range steps {
				slices.Sort(times)
				for _, q := range []int{50, 99} {
					b.ReportMetric(times[len(times)*q/100].Seconds()*1000, fmt.Sprintf("%s-p%d-ms", step, q))
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
