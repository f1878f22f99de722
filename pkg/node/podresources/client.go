package podresources

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// maxMessage bounds an answer. It lists every slot of the node's pods, also of
// resources that are not ours.
const maxMessage = 64 << 20

// Client asks the kubelet.
type Client struct {
	conn      *grpc.ClientConn
	resources []string
}

// New returns a client for some resources. It connects when it is first asked,
// and again whenever the kubelet has restarted.
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

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// List returns what containers hold of the resources, and the pods that the
// kubelet lists at all, as namespace/name.
func (c *Client) List(ctx context.Context) ([]allocation.Allocated, map[string]bool, error) {
	answer, err := podresources.NewPodResourcesListerClient(c.conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("ask the kubelet for its PodResources: %w", err)
	}
	held, known := read(answer, c.resources)
	return held, known, nil
}

// read gathers what an answer says of the resources.
func read(answer *podresources.ListPodResourcesResponse, resources []string) (held []allocation.Allocated, known map[string]bool) {
	known = make(map[string]bool, len(answer.GetPodResources()))
	for _, pod := range answer.GetPodResources() {
		known[pod.GetNamespace()+"/"+pod.GetName()] = true
		for _, container := range pod.GetContainers() {
			if slots := slotsOf(container, resources); len(slots) > 0 {
				held = append(held, allocation.Allocated{
					Namespace: pod.GetNamespace(), Name: pod.GetName(), Container: container.GetName(), Slots: slots,
				})
			}
		}
	}
	return held, known
}

// slotsOf gathers a container's IDs: the kubelet has one entry for each.
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

// Users returns what the kubelet has given out of every resource, by device ID:
// the pod, as namespace/name.
func (c *Client) Users(ctx context.Context) (map[string]map[string]string, error) {
	answer, err := podresources.NewPodResourcesListerClient(c.conn).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet for its PodResources: %w", err)
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
