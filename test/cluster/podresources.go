package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// againWhenBusy asks again, up to four times, where the kubelet has been asked too often.
const againWhenBusy = `{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.05s", "maxBackoff": "1s", "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]
}}]}`

// PodResources asks the kubelet of a node what it has given to which container.
// One that is down is waited for until ctx ends.
func (c *Cluster) PodResources(ctx context.Context, node string) (*podresourcesv1.ListPodResourcesResponse, error) {
	list, err := podResources(ctx, filepath.Join(c.NodeDir(node), "lib", "kubelet", "pod-resources", "kubelet.sock"))
	if err != nil {
		return nil, fmt.Errorf("PodResources of %s: %w", node, err)
	}
	return list, nil
}

func podResources(ctx context.Context, socket string) (*podresourcesv1.ListPodResourcesResponse, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(againWhenBusy))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return podresourcesv1.NewPodResourcesListerClient(conn).List(ctx, &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
}
