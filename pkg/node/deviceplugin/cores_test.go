package deviceplugin

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// corePod returns a pod with 2 units and 60 % of a GPU's cores.
func corePod(name string, n int64, on gpu.UUID) allocation.Pod {
	c := app(2)
	c.Cores = 60
	return pod(name, n, on, c)
}

// serveOne makes the kubelet's calls for one resource of a container, and records the allocation.
func serveOne(ctx context.Context, n *node, client pluginapi.DevicePluginClient, p allocation.Pod, available []string, size int32) (map[string]string, error) {
	preferred, err := client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, AllocationSize: size}},
	})
	if err != nil {
		return nil, err
	}
	ids := preferred.GetContainerResponses()[0].GetDeviceIDs()
	answer, err := client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	n.Kubelet.Give(p.Pod.Name, "main", ids)
	return answer.GetContainerResponses()[0].GetEnvs(), nil
}

// allCores returns the IDs of all cores, starting with the last GPU.
func allCores() (out []string) {
	for _, prefix := range []string{"bbbbbbbb", "aaaaaaaa"} {
		for i := range gpu.CoresPerDevice {
			out = append(out, fmt.Sprint(prefix, "-c", i))
		}
	}
	return out
}

func TestBothResourcesAreOfTheSameGPUInEitherOrder(t *testing.T) {
	for _, coresFirst := range []bool{false, true} {
		for _, assigned := range []gpu.UUID{uuidA, uuidB, ""} {
			t.Run(fmt.Sprintf("cores first: %t, on %q", coresFirst, assigned), func(t *testing.T) {
				p := corePod("a", 1, assigned)
				n := newNode(t, nil, []string{"ns/a"}, p, pod("planned", 2, uuidA, app(7)))
				coreClient := plugintest.Connect(t, n.Server.Cores())
				var envs []map[string]string
				for _, core := range []bool{coresFirst, !coresFirst} {
					client, available, size := n.Client, n.Free(), int32(2)
					if core {
						client, available, size = coreClient, allCores(), 60
					}
					env, err := serveOne(t.Context(), n, client, p, available, size)
					if err != nil {
						t.Fatal(err)
					}
					envs = append(envs, env)
				}
				coreEnv, memEnv := envs[1], envs[0]
				if coresFirst {
					coreEnv, memEnv = envs[0], envs[1]
				}
				if diff := cmp.Diff(map[string]string{"GPUMEM_CORE_PERCENT": "60"}, coreEnv); diff != "" {
					t.Errorf("what is told of cores (-want +got):\n%s", diff)
				}
				want := assigned
				if want == "" {
					want = uuidB // GPU 0 has too few free units beside pod planned
				}
				if memEnv["GPUMEM_GPU_UUID"] != string(want) {
					t.Errorf("memory is of %s, want %s", memEnv["GPUMEM_GPU_UUID"], want)
				}
				s, _, _ := n.State.Snapshot(t.Context())
				held := make(map[string]int)
				for _, id := range s.Allocated[0].Slots {
					d, err := s.Slots.Device(id)
					if err != nil {
						t.Fatal(err)
					}
					held[string(d.UUID)+" "+id.Resource().String()]++
				}
				if diff := cmp.Diff(map[string]int{string(want) + " memory": 2, string(want) + " cores": 60}, held); diff != "" {
					t.Errorf("what is held (-want +got):\n%s", diff)
				}
				if err := n.Start(t.Context(), string(s.Slots.Of(gpu.Memory, want)[0]), string(s.Slots.Of(gpu.Memory, want)[1])); err != nil {
					t.Errorf("the container does not start: %v", err)
				}
			})
		}
	}
}

func TestCoresOfAnotherGPUThanTheMemoryAreRefused(t *testing.T) {
	p := corePod("a", 1, uuidA)
	n := newNode(t, nil, []string{"ns/a"}, p)
	coreClient := plugintest.Connect(t, n.Server.Cores())
	if _, err := serveOne(t.Context(), n, n.Client, p, n.Free(), 2); err != nil {
		t.Fatal(err)
	}
	_, err := coreClient.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: allCores()[:60]}}})
	wantStatus(t, err, codes.FailedPrecondition, "pod ns/a is on GPU ["+string(uuidA)+"], and the kubelet took slots of ["+string(uuidB)+"]")
	if diff := cmp.Diff([]string{"ns/a GPUMemoryRefused"}, n.Notes.All()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	_, err = coreClient.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{"aaaaaaaa-0"}}}})
	wantStatus(t, err, codes.FailedPrecondition, `slot "aaaaaaaa-0" is of the other resource`)
}

func TestCoresWithoutAPodThatIsKnown(t *testing.T) {
	n := newNode(t, nil, []string{"ns/late"})
	coreClient := plugintest.Connect(t, n.Server.Cores())
	_, err := serveOne(t.Context(), n, coreClient, corePod("late", 1, ""), allCores(), 60)
	wantStatus(t, err, codes.NotFound, "no pod that waits on this node asks for this amount: 60% of cores: the API server has not reported it yet, and cores go to a pod that is known")
	_, err = coreClient.Allocate(t.Context(), &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: allCores()[:60]}}})
	wantStatus(t, err, codes.NotFound, "cores go to a pod that is known")
}

func TestCoresAreListedForEachGPU(t *testing.T) {
	n := newNode(t, nil, nil)
	n.Source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Status = gpu.Unhealthy("gone") })
	client := plugintest.Connect(t, n.Server.Cores())
	ctx, cancel := context.WithTimeout(t.Context(), plugintest.Patience)
	defer cancel()
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"aaaaaaaa Unhealthy": 100, "bbbbbbbb Healthy": 100}, received(t, stream)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	options, err := client.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil || options.GetPreStartRequired() || !options.GetGetPreferredAllocationAvailable() {
		t.Errorf("options %v, %v", options, err)
	}
}

func TestASlotOfMemoryAndOfCoresOnTwoGPUsIsReported(t *testing.T) {
	p := corePod("a", 1, uuidA)
	n := newNode(t, nil, []string{"ns/a"}, p)
	n.Kubelet.Give("a", "main", []string{"aaaaaaaa-0", "aaaaaaaa-1", "bbbbbbbb-c0"})
	err := n.Start(t.Context(), "aaaaaaaa-0", "aaaaaaaa-1")
	wantStatus(t, err, codes.FailedPrecondition, "pod ns/a has slots of 2 GPUs and asks for 1")
}
