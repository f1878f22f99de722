package podresources

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// kubelet returns a given answer, or none.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	answer *podresources.ListPodResourcesResponse
	silent bool
}

func (k *kubelet) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	if k.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return k.answer, nil
}

// serve starts a kubelet, and returns a function that stops it.
func serve(t *testing.T, socket string, k *kubelet) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	return func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	}
}

func client(t *testing.T, socket string) *Client {
	t.Helper()
	c, err := New(socket, "gpumem.dev/gpu-mem", "gpumem.dev/gpu-core")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func devices(resource string, ids ...string) *podresources.ContainerDevices {
	return &podresources.ContainerDevices{ResourceName: resource, DeviceIds: ids}
}

func TestList(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	stop := serve(t, socket, &kubelet{answer: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Namespace: "ns", Name: "train", Containers: []*podresources.ContainerResources{
			{Name: "main", Devices: []*podresources.ContainerDevices{
				devices("gpumem.dev/gpu-mem", "aaaaaaaa-0"), // the kubelet uses one entry per ID
				devices("nvidia.com/gpu", "GPU-x"),
				devices("gpumem.dev/gpu-mem", "aaaaaaaa-1"),
				devices("gpumem.dev/gpu-core", "aaaaaaaa-c7"),
			}},
			{Name: "logger"},
		}},
		{Namespace: "ns", Name: "web", Containers: []*podresources.ContainerResources{{Name: "main"}}},
	}}})
	defer stop()
	held, known, err := client(t, socket).List(within(t, 5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	wantHeld := []allocation.Allocated{{Namespace: "ns", Name: "train", Container: "main", Slots: []gpu.SlotID{"aaaaaaaa-0", "aaaaaaaa-1", "aaaaaaaa-c7"}}}
	if diff := cmp.Diff(wantHeld, held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"ns/train": true, "ns/web": true}, known); diff != "" {
		t.Errorf("known (-want +got):\n%s", diff)
	}
}

func TestUsers(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	stop := serve(t, socket, &kubelet{answer: &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{Namespace: "ml", Name: "train", Containers: []*podresources.ContainerResources{
			{Name: "main", Devices: []*podresources.ContainerDevices{devices("nvidia.com/gpu", "GPU-a"), devices("gpumem.dev/gpu-mem", "aaaaaaaa-0", "aaaaaaaa-1")}},
			{Name: "side", Devices: []*podresources.ContainerDevices{devices("nvidia.com/gpu", "GPU-b")}},
		}},
		{Namespace: "web", Name: "train", Containers: []*podresources.ContainerResources{{Name: "main", Devices: []*podresources.ContainerDevices{devices("nvidia.com/gpu", "GPU-c")}}}},
	}}})
	defer stop()
	users, err := client(t, socket).Users(within(t, 5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]string{
		"nvidia.com/gpu":     {"GPU-a": "ml/train", "GPU-b": "ml/train", "GPU-c": "web/train"},
		"gpumem.dev/gpu-mem": {"aaaaaaaa-0": "ml/train", "aaaaaaaa-1": "ml/train"},
	}
	if diff := cmp.Diff(want, users); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
}

func TestListIsBounded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	stop := serve(t, socket, &kubelet{silent: true})
	defer stop()
	_, _, err := client(t, socket).List(within(t, 50*time.Millisecond))
	if err == nil || !strings.Contains(err.Error(), "PodResources") {
		t.Errorf("error %v", err)
	}
}

func TestListAfterARestart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	c := client(t, socket)
	if _, _, err := c.List(within(t, 5*time.Second)); err == nil {
		t.Error("an answer without a kubelet")
	}
	for range 2 {
		stop := serve(t, socket, &kubelet{answer: &podresources.ListPodResourcesResponse{}})
		ctx := within(t, 10*time.Second)
		for {
			_, known, err := c.List(ctx)
			if err == nil {
				if known == nil {
					t.Error("a list of no pod is nil, which says that the kubelet cannot be asked")
				}
				break
			}
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Fatalf("no answer since the restart: %v", err)
			}
		}
		stop()
	}
}

// FuzzRead verifies that each ID of the resources is read as often as the answer contains it, that no other ID
// is read, and that every pod with IDs is known.
func FuzzRead(f *testing.F) {
	resources := []string{"gpumem.dev/gpu-mem", "gpumem.dev/gpu-core"}
	for _, answer := range []*podresources.ListPodResourcesResponse{
		{},
		{PodResources: []*podresources.PodResources{{Namespace: "ns", Name: "a", Containers: []*podresources.ContainerResources{
			{Name: "main", Devices: []*podresources.ContainerDevices{devices(resources[0], "aaaaaaaa-0", ""), devices(resources[1], "aaaaaaaa-c7"), devices("nvidia.com/gpu", "GPU-x")}}, {},
		}}, {}}},
	} {
		data, err := proto.Marshal(answer)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		answer := &podresources.ListPodResourcesResponse{}
		if proto.Unmarshal(data, answer) != nil {
			return // gRPC fails the call
		}
		left := make(map[string]int)
		for _, pod := range answer.GetPodResources() {
			for _, container := range pod.GetContainers() {
				for _, d := range container.GetDevices() {
					if slices.Contains(resources, d.GetResourceName()) {
						for _, id := range d.GetDeviceIds() {
							left[id]++
						}
					}
				}
			}
		}
		held, known := read(answer, resources)
		for _, h := range held {
			if !known[h.Namespace+"/"+h.Name] || len(h.Slots) == 0 {
				t.Errorf("%+v, of a pod that is known: %t", h, known[h.Namespace+"/"+h.Name])
			}
			for _, id := range h.Slots {
				left[string(id)]--
			}
		}
		for id, n := range left {
			if n != 0 {
				t.Errorf("ID %q is read %d times too few", id, n)
			}
		}
	})
}
