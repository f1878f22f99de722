package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// PodResources asks the kubelet of a node what it has given to which container.
// One that is down is waited for until ctx ends.
func (c *Cluster) PodResources(ctx context.Context, node string) (*podresourcesv1.ListPodResourcesResponse, error) {
	socket := filepath.Join(c.NodeDir(node), "lib", "kubelet", "pod-resources", "kubelet.sock")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := podresourcesv1.NewPodResourcesListerClient(conn).List(ctx, &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("PodResources of %s: %w", node, err)
	}
	return list, nil
}
