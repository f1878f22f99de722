package podresources

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// maxMessage bounds an answer in bytes. An answer contains every device ID of the node's pods, including other
// resources.
const maxMessage = 64 << 20

// quickBackoff reconnects quickly after a restart of the kubelet on the same machine. gRPC's default pauses
// grow to minutes.
var quickBackoff = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second}

// Client reads the kubelet's PodResources API.
type Client struct {
	conn      *grpc.ClientConn
	resources []string
}

// New returns a client for some resources. It connects on the first call, and reconnects after a restart of the
// kubelet.
func New(socket string, resources ...string) (*Client, error) {
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quickBackoff, MinConnectTimeout: quickBackoff.MaxDelay}),
	)
	if err != nil {
		return nil, fmt.Errorf("PodResources at %s: %w", socket, err)
	}
	return &Client{conn: conn, resources: resources}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// List returns the slots (device IDs) of the client's resources by container, and the set of all pods that the
// kubelet lists, as namespace/name.
func (c *Client) List(ctx context.Context) ([]allocation.Allocated, map[string]bool, error) {
	answer, err := c.list(ctx)
	if err != nil {
		return nil, nil, err
	}
	allocated, known := read(answer, c.resources)
	return allocated, known, nil
}

func read(answer *podresources.ListPodResourcesResponse, resources []string) (allocated []allocation.Allocated, known map[string]bool) {
	known = make(map[string]bool, len(answer.GetPodResources()))
	for _, pod := range answer.GetPodResources() {
		known[pod.GetNamespace()+"/"+pod.GetName()] = true
		for _, container := range pod.GetContainers() {
			if slots := slotsOf(container, resources); len(slots) > 0 {
				allocated = append(allocated, allocation.Allocated{
					Namespace: pod.GetNamespace(), Name: pod.GetName(), Container: container.GetName(), Slots: slots,
				})
			}
		}
	}
	return allocated, known
}

// slotsOf collects a container's slots. The kubelet uses a separate entry for each slot.
func slotsOf(container *podresources.ContainerResources, resources []string) []gpu.SlotID {
	var out []gpu.SlotID
	for _, d := range container.GetDevices() {
		if !slices.Contains(resources, d.GetResourceName()) {
			continue
		}
		for _, id := range d.GetDeviceIds() {
			out = append(out, gpu.SlotID(id))
		}
	}
	return out
}

// Users maps the device IDs of each resource to the pods to which the kubelet has allocated them, as
// namespace/name.
func (c *Client) Users(ctx context.Context) (map[string]map[string]string, error) {
	answer, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	users := make(map[string]map[string]string)
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, d := range container.GetDevices() {
				if users[d.GetResourceName()] == nil {
					users[d.GetResourceName()] = make(map[string]string)
				}
				for _, id := range d.GetDeviceIds() {
					users[d.GetResourceName()][id] = pod.GetNamespace() + "/" + pod.GetName()
				}
			}
		}
	}
	return users, nil
}

func (c *Client) list(ctx context.Context) (*podresources.ListPodResourcesResponse, error) {
	answer, err := podresources.NewPodResourcesListerClient(c.conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list PodResources of the kubelet: %w", err)
	}
	return answer, nil
}
