package cluster

import (
	"context"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// busyKubelet serves PodResources once it has refused as many questions.
type busyKubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer

	refuses int64
	asked   atomic.Int64
}

func (k *busyKubelet) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	if k.asked.Add(1) <= k.refuses {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	return &podresourcesv1.ListPodResourcesResponse{PodResources: []*podresourcesv1.PodResources{{Name: "p"}}}, nil
}

// The kubelet answers a hundred questions a second, and refuses others.
func TestPodResourcesOfABusyKubelet(t *testing.T) {
	for name, tc := range map[string]struct {
		refuses int64
		want    codes.Code
	}{"at once": {0, codes.OK}, "soon": {3, codes.OK}, "never": {1 << 40, codes.ResourceExhausted}} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "kubelet.sock")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			kubelet := &busyKubelet{refuses: tc.refuses}
			server := grpc.NewServer()
			podresourcesv1.RegisterPodResourcesListerServer(server, kubelet)
			done := make(chan error, 1)
			go func() { done <- server.Serve(listener) }()
			t.Cleanup(func() {
				server.Stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
			list, err := podResources(t.Context(), socket)
			if status.Code(err) != tc.want || (err == nil) != (len(list.GetPodResources()) == 1) {
				t.Errorf("%v, %v after %d questions, want %s", list, err, kubelet.asked.Load(), tc.want)
			}
		})
	}
}
