package main

import (
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/extender"
)

// models are those of the fleet, as many nodes of each.
var models = []gpu.Device{
	{Model: "NVIDIA A100-SXM4-80GB", Allocatable: 79, MemoryMiB: 81920, Speed: 100},
	{Model: "NVIDIA H100 80GB HBM3", Allocatable: 79, MemoryMiB: 81559, Speed: 317},
	{Model: "NVIDIA L4", Allocatable: 22, MemoryMiB: 23034, Speed: 39},
	{Model: "Tesla T4", Allocatable: 14, MemoryMiB: 15360, Speed: 21},
}

// gpusPerNode is the same for each node of the fleet.
const gpusPerNode = 8

// sizes are what the pods of the benchmarks ask for, in units.
var sizes = []int64{3, 5, 8, 10, 16, 20, 40}

// inventory returns what the i-th node of the fleet offers.
func inventory(i int) gpu.Inventory {
	inv := gpu.Inventory{UnitMiB: 1024, DriverVersion: "580.95.05"}
	for k := range gpusPerNode {
		d := models[i%len(models)]
		d.UUID, d.Index = gpu.UUID(fmt.Sprintf("GPU-%08x-%04x-4000-8000-000000000000", i, k)), k
		inv.Devices = append(inv.Devices, d)
	}
	return inv
}

func nodeName(i int) string { return fmt.Sprintf("gpu-node-%05d", i) }

func nodeNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = nodeName(i)
	}
	return out
}

// pod describes the i-th pod of a benchmark.
func pod(names api.Names, i int, units int64) *v1.Pod {
	name := fmt.Sprintf("pod-%06d", i)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: "main", Image: "example.org/model-server:1",
			Resources: v1.ResourceRequirements{
				Limits:   v1.ResourceList{names.GPUMem(): *resource.NewQuantity(units, resource.DecimalSI)},
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("1Gi")},
			},
		}}},
	}
}

// fleet is an extender that knows nodes and the pods on them, with an API server
// that answers at once.
type fleet struct {
	*extender.Extender
	api     *instantAPI
	names   []string
	running int
	bound   int // by the benchmark of bind

	capacity map[gpu.UUID]gpu.Units
}

// podsPerGPU is how many pods share a GPU, unless said otherwise.
const podsPerGPU = 3

// newFleet makes nodes with so many pods on each GPU, that hold three fifths of
// it together and that the kubelet has admitted.
func newFleet(nodes, pods int) (*fleet, error) {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		return nil, err
	}
	f := &fleet{api: &instantAPI{pods: make(map[string]*v1.Pod)}, names: nodeNames(nodes), capacity: make(map[gpu.UUID]gpu.Units)}
	f.Extender = &extender.Extender{Queue: f.api, Binder: binder.Binder{
		Self: "gpumem-extender", Reads: new(singleflight.Group),
		Log: zap.NewNop(), Names: names, Cache: cache.New(), Cluster: f.api,
		Policy: placement.Binpack, Now: time.Now, Missing: func() string { return "" },
	}}
	for i, name := range f.names {
		inv := inventory(i)
		f.Cache.SetNode(name, inv)
		for _, d := range inv.Devices {
			f.capacity[d.UUID] = d.Allocatable
			used := int(d.Allocatable) * 3 / 5
			for k := range pods {
				units := used*(k+1)/pods - used*k/pods
				if err := f.settle(name, d.UUID, int64(units)); err != nil {
					return nil, err
				}
			}
		}
	}
	return f, nil
}

// settle puts a pod on a GPU that has been running for long.
func (f *fleet) settle(node string, device gpu.UUID, units int64) error {
	p := pod(f.Names, f.running, units)
	f.running++
	req, err := f.Names.Request(p)
	if err != nil {
		return err
	}
	f.Cache.AddPod(node, placement.Holding{
		Pod: api.Ref(p), Request: req, Admitted: true, Started: time.Unix(1e9, 0),
		Assignment: placement.Assignment{Shares: []placement.Share{{Device: device, Units: gpu.Units(units)}}},
	})
	return nil
}
