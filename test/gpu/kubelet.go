package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// node is a device plugin before a stand-in for the kubelet, with no API server: it
// places containers that nobody has told it of.
type node struct {
	pluginapi.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer

	registered chan string // the plugin's socket
	client     pluginapi.DevicePluginClient
	devices    []string
	ends       []func()

	mu    sync.Mutex
	given []string // to the container
}

// The container that gets what is allocated.
const podNamespace, podName, containerName = "kit", "gpu", "main"

// Register implements pluginapi.RegistrationServer.
func (n *node) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	select {
	case n.registered <- r.GetEndpoint():
	default:
	}
	return &pluginapi.Empty{}, nil
}

// List implements podresources.PodResourcesListerServer.
func (n *node) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.given) == 0 {
		return &podresources.ListPodResourcesResponse{}, nil
	}
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Namespace: podNamespace, Name: podName,
		Containers: []*podresources.ContainerResources{{
			Name: containerName, Devices: []*podresources.ContainerDevices{{ResourceName: "gpumem.dev/gpu-mem", DeviceIds: n.given}},
		}},
	}}}, nil
}

func (n *node) stop() {
	for _, end := range slices.Backward(n.ends) {
		end()
	}
}

// startPlugin starts the real plugin at a level, and waits for what it offers of the
// first GPU.
func (k kit) startPlugin(ctx context.Context, dir string, level string) (_ *node, err error) {
	n := &node{registered: make(chan string, 1)}
	defer func() {
		if err != nil {
			n.stop()
		}
	}()
	plugins := filepath.Join(dir, "device-plugins")
	if err := n.serve(plugins, func(s *grpc.Server) { pluginapi.RegisterRegistrationServer(s, n) }); err != nil {
		return nil, err
	}
	if err := n.serve(filepath.Join(dir, "pod-resources"), func(s *grpc.Server) { podresources.RegisterPodResourcesListerServer(s, n) }); err != nil {
		return nil, err
	}
	// An address where nobody answers.
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}]}`), 0o600); err != nil {
		return nil, err
	}
	args := []string{
		"--node-name=here", "--kubelet-dir=" + dir, "--kubeconfig=" + kubeconfig, "--probe-listen=127.0.0.1:0",
		"--mps-dir=" + mpsDir(dir), "--enforcement=" + level, "--log-format=console",
		"--nvml-library=" + k.library,
	}
	if level == "kernel" {
		args = append(args, "--nri-socket="+nriSocket(dir), "--cgroup-root="+k.cgroups)
	} else {
		args = append(args, "--nri-socket=")
	}
	stop, err := k.start(ctx, args...)
	if err != nil {
		return nil, err
	}
	n.ends = append(n.ends, stop)
	select {
	case socket := <-n.registered:
		return n, n.connect(ctx, k.patience, filepath.Join(plugins, socket))
	case <-time.After(k.patience):
		return nil, errors.New("the device plugin has not registered")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve serves as the kubelet does, on kubelet.sock of a folder.
func (n *node) serve(dir string, register func(*grpc.Server)) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(listener) }() // it ends when it is stopped
	n.ends = append(n.ends, server.Stop)
	return nil
}

// connect waits for healthy devices, and listens from then on, as the kubelet does.
func (n *node) connect(ctx context.Context, patience time.Duration, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	n.ends = append(n.ends, func() { _ = conn.Close() })
	n.client = pluginapi.NewDevicePluginClient(conn)
	ctx, end := context.WithCancel(ctx)
	n.ends = append(n.ends, end)
	late := time.AfterFunc(patience, end)
	defer late.Stop()
	stream, err := n.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	unhealthy := 0
	for {
		list, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("the plugin offers no healthy GPU in %s (%d units are unhealthy): %w", patience, unhealthy, err)
		}
		unhealthy = 0
		for _, d := range list.GetDevices() {
			if d.GetHealth() != pluginapi.Healthy {
				unhealthy++
				continue
			}
			n.devices = append(n.devices, d.GetID())
		}
		if len(n.devices) > 0 {
			go func() {
				for err == nil { // it ends with the node
					_, err = stream.Recv()
				}
			}()
			return nil
		}
	}
}

// allocate asks for units of the first GPU, as for a container, and returns the
// environment that it gets.
func (n *node) allocate(ctx context.Context, units int) (map[string]string, error) {
	first, _, _ := strings.Cut(n.devices[0], "-")
	var ids []string
	for _, id := range n.devices {
		if strings.HasPrefix(id, first+"-") && len(ids) < units {
			ids = append(ids, id)
		}
	}
	if len(ids) < units {
		return nil, fmt.Errorf("the GPU offers %d units, and %d are wanted", len(ids), units)
	}
	answer, err := n.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.given = ids
	n.mu.Unlock()
	return answer.GetContainerResponses()[0].GetEnvs(), nil
}
