package plugintest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Node contains the fakes around a plugin, and a client in place of the kubelet.
type Node struct {
	Source  *Source
	Pods    *Pods
	Kubelet *Kubelet
	Notes   *Notes
	Counts  *Counts
	Client  pluginapi.DevicePluginClient // nil before a plugin is connected
}

// NewNode returns a node with two GPUs and the given pods. The kubelet lists the pods in known.
func NewNode(known []string, list ...allocation.Pod) *Node {
	return &Node{Source: NewSource(TwoGPUs()), Pods: NewPods(list...), Kubelet: NewKubelet(known...), Notes: &Notes{}, Counts: &Counts{}}
}

// Connect serves a plugin in memory and returns its client.
func Connect(t testing.TB, plugin pluginapi.DevicePluginServer) pluginapi.DevicePluginClient {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, plugin)
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///plugin",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		server.Stop()
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // the server stops early if the test made no calls
			t.Error(err)
		}
	})
	return pluginapi.NewDevicePluginClient(conn)
}

// Free returns the IDs that no pod has, sorted by GPU. It omits the IDs in parameter but.
func (n *Node) Free(but ...string) []string {
	inv, _, _ := n.Source.Inventory()
	ids, err := gpu.NewSlots(inv)
	if err != nil {
		return nil
	}
	held := n.Kubelet.Allocated()
	var out []string
	for _, d := range inv.Devices {
		for _, id := range ids.Of(gpu.Memory, d.UUID) {
			taken := slices.Contains(but, string(id)) || slices.ContainsFunc(held, func(h allocation.Allocated) bool { return slices.Contains(h.Slots, id) })
			if !taken && d.Advertised() {
				out = append(out, string(id))
			}
		}
	}
	return out
}

// Preferred calls GetPreferredAllocation for one container.
func (n *Node) Preferred(ctx context.Context, available, must []string, size gpu.Units) ([]string, error) {
	out, err := n.Client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(size),
		}},
	})
	if err != nil {
		return nil, err
	}
	return out.GetContainerResponses()[0].GetDeviceIDs(), nil
}

// Allocate calls Allocate for one container.
func (n *Node) Allocate(ctx context.Context, ids ...string) (*pluginapi.ContainerAllocateResponse, error) {
	out, err := n.Client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	return out.GetContainerResponses()[0], nil
}

// Start calls PreStartContainer for one container.
func (n *Node) Start(ctx context.Context, ids ...string) error {
	_, err := n.Client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}

// Admit admits and starts a pod like the kubelet, container by container: later containers reuse the IDs of
// init containers, and all IDs are allocated before the first start. It returns the GPU of each container.
func (n *Node) Admit(t *testing.T, p allocation.Pod) ([]string, error) {
	t.Helper()
	ctx := t.Context()
	n.Kubelet.Lists(p.Pod.String())
	var reuse []string
	given := make(map[string][]string)
	var gpus []string
	for _, c := range p.Request.Containers.All() {
		ids, err := n.choose(ctx, c, reuse, given)
		if err != nil {
			return nil, err
		}
		answer, err := n.Allocate(ctx, ids...)
		if err != nil {
			return nil, err
		}
		gpus = append(gpus, c.Name+"="+answer.GetEnvs()["GPUMEM_GPU_INDEX"])
		given[c.Name] = ids
		if c.Kind == placement.Init {
			reuse = union(reuse, ids)
		} else {
			reuse = slices.DeleteFunc(slices.Clone(reuse), func(id string) bool { return slices.Contains(ids, id) })
			n.Kubelet.Give(p.Pod.Name, c.Name, ids)
		}
	}
	n.Pods.Settle(p.Pod.Name)
	for _, c := range p.Request.Containers.All() {
		if err := n.Start(ctx, given[c.Name]...); err != nil {
			return gpus, fmt.Errorf("start %s: %w", c.Name, err)
		}
	}
	return gpus, nil
}

// choose returns the IDs that the kubelet would allocate to a container.
func (n *Node) choose(ctx context.Context, c placement.Container, reuse []string, given map[string][]string) ([]string, error) {
	must := reuse[:min(len(reuse), int(c.Units))]
	if len(must) == int(c.Units) {
		return must, nil
	}
	var inUse []string
	for _, ids := range given {
		inUse = append(inUse, ids...)
	}
	free := n.Free(inUse...)
	if len(must) > 0 {
		free = union(free, must)
	}
	return n.Preferred(ctx, free, must, c.Units)
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.SortFunc(out, strings.Compare)
	return slices.Compact(out)
}

// Swap allocates slots to the named pod while the plugin attributes them to an older pod of the same size, because
// it cannot tell the two pods apart.
func (n *Node) Swap(t *testing.T, name string, units gpu.Units) {
	t.Helper()
	n.Kubelet.Fail = errors.New("no such socket")
	ids, err := n.Preferred(t.Context(), n.Free(), nil, units)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Allocate(t.Context(), ids...); err != nil {
		t.Fatal(err)
	}
	n.Kubelet.Fail = nil
	n.Kubelet.Give(name, "main", ids)
}

// LevelIs sets the level of the node.
func (n *Node) LevelIs(level gpu.Enforcement) {
	n.Source.Set(func(inv *gpu.Inventory) { inv.Enforcement = level })
}

// AssignedLevel returns the enforcement level in a pod's assignment.
func (n *Node) AssignedLevel(name string) gpu.Enforcement {
	pods, _, _ := n.Pods.Pods()
	i := slices.IndexFunc(pods, func(p allocation.Pod) bool { return p.Pod.Name == name })
	return pods[i].Assignment.Enforcement
}

// IsClosed reports whether a channel is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
