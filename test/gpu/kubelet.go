package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
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
	given map[string][]string // slots, by container
}

// The pod that gets what is allocated.
const podNamespace, podName = "kit", "gpu"

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
	pod := &podresources.PodResources{Namespace: podNamespace, Name: podName}
	for _, name := range slices.Sorted(maps.Keys(n.given)) {
		pod.Containers = append(pod.Containers, &podresources.ContainerResources{
			Name: name, Devices: []*podresources.ContainerDevices{{ResourceName: "gpumem.dev/gpu-mem", DeviceIds: n.given[name]}},
		})
	}
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{pod}}, nil
}

func (n *node) stop() {
	for _, end := range slices.Backward(n.ends) {
		end()
	}
}

// startPlugin starts the real plugin at a level, with a runtime where it is to limit containers,
// and waits for what it offers.
func (k kit) startPlugin(ctx context.Context, dir string, level string, r *runtime) (_ *node, err error) {
	n := &node{registered: make(chan string, 1), given: make(map[string][]string)}
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
	kubeconfig, err := n.serveAPI(dir)
	if err != nil {
		return nil, err
	}
	args := []string{
		"--node-name=here", "--kubelet-dir=" + dir, "--kubeconfig=" + kubeconfig, "--probe-listen=127.0.0.1:0",
		"--mps-dir=" + mpsDir(dir), "--enforcement=" + level, "--log-format=json",
		"--nvml-library=" + k.library,
	}
	if r != nil {
		args = append(args, "--nri-socket="+nriSocket(dir), "--cgroup-root="+k.cgroups)
	} else {
		args = append(args, "--nri-socket=")
	}
	log := &reasons{to: k.log}
	stop, err := k.start(ctx, log, args...)
	if err != nil {
		return nil, err
	}
	n.ends = append(n.ends, stop)
	select {
	case socket := <-n.registered:
		if err := n.connect(ctx, k.patience, filepath.Join(plugins, socket)); err != nil {
			return nil, fmt.Errorf("%w: %s", err, log.why())
		}
		return n, nil
	case <-time.After(k.patience):
		return nil, fmt.Errorf("the device plugin has not registered in %s: %s", k.patience, log.why())
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serveAPI serves an API server that knows of no pods, and lets the plugin write nothing. It returns
// the kubeconfig for it.
func (n *node) serveAPI(dir string) (kubeconfig string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{Handler: http.HandlerFunc(answerAPI), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // it ends when it is closed
	n.ends = append(n.ends, func() { _ = server.Close() })
	kubeconfig = filepath.Join(dir, "kubeconfig")
	return kubeconfig, os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"http://%s"}}]}`, listener.Addr()), 0o600)
}

func answerAPI(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case !strings.HasSuffix(r.URL.Path, "/pods") || r.Method != http.MethodGet:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no API server is here"}`)
	case r.URL.Query().Get("watch") != "":
		<-r.Context().Done() // nothing ever happens
	default:
		fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
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
			return fmt.Errorf("the device plugin offers no healthy GPU (%d units are unhealthy)", unhealthy)
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

// allocate asks for units of each of some GPUs, by their UUIDs, as for a container, and returns the
// environment that it gets.
func (n *node) allocate(ctx context.Context, name string, units int, uuids ...string) (map[string]string, error) {
	n.mu.Lock()
	taken := slices.Concat(slices.Collect(maps.Values(n.given))...)
	n.mu.Unlock()
	var ids []string
	for _, uuid := range uuids {
		free := slices.DeleteFunc(slices.Clone(n.devices), func(id string) bool {
			return !strings.HasPrefix(id, strings.TrimPrefix(uuid, "GPU-")[:8]+"-") || slices.Contains(taken, id)
		})
		if len(free) < units {
			return nil, cannot("GPU %s has %d units free, and %d are wanted", uuid, len(free), units)
		}
		ids = append(ids, free[:units]...)
	}
	answer, err := n.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.given[name] = ids
	n.mu.Unlock()
	return answer.GetContainerResponses()[0].GetEnvs(), nil
}

// preStart asks what the kubelet asks before it starts a container.
func (n *node) preStart(ctx context.Context, name string) error {
	n.mu.Lock()
	ids := n.given[name]
	n.mu.Unlock()
	_, err := n.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}
