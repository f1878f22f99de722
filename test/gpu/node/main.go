// Command node runs the real device plugin before a stand-in for the kubelet and the API server. It
// reads one command a line and prints one JSON object for each.
//
//	allocate NAME UNITS UID CONTAINER [GPU...]  allocate units (of each of these GPUs) for a container of a new pod.
//	prestart NAME                               call PreStartContainer for it.
//	start NAME, stop NAME                       make and remove its control group, as a container runtime does by NRI.
//	metrics                                     the plugin's metrics of GPUs and containers.
//	health                                      its probes, its events and its last patches.
//	log                                         the last lines of its log.
//
// The first object, before any command, is the plugin's offer.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const resource, namespace = "gpumem.dev/gpu-mem", "kit"

type answer map[string]any

type pod struct {
	name, uid, container string
	ids                  []string
	env                  map[string]string
}

type node struct {
	pluginapi.UnimplementedRegistrationServer
	podresources.UnimplementedPodResourcesListerServer
	registered chan *pluginapi.RegisterRequest

	mu      sync.Mutex
	pods    []pod
	healthy []string
	sick    int
	changed chan struct{} // closed and replaced when pods change
	events  []string      // that the plugin recorded
	patches []string      // of its node and its pods
	runtime *runtime      // nil without NRI
}

func (n *node) Register(_ context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	select {
	case n.registered <- r:
	default:
	}
	return &pluginapi.Empty{}, nil
}

func (n *node) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := &podresources.ListPodResourcesResponse{}
	for _, p := range n.pods {
		out.PodResources = append(out.PodResources, &podresources.PodResources{Namespace: namespace, Name: p.name, Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: p.ids}},
		}}})
	}
	return out, nil
}

func serve(dir string, register func(*grpc.Server)) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "kubelet.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	register(server)
	go func() { _ = server.Serve(listener) }()
	return nil
}

// options are the flags. The arguments after them are flags of the plugin.
type options struct {
	plugin, dir, cgroups string
	nri                  bool
	patience             time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.plugin, "plugin", "", "the device plugin")
	flag.StringVar(&o.dir, "dir", "", "a folder with a short name, which node creates")
	flag.StringVar(&o.cgroups, "cgroup-root", "/sys/fs/cgroup", "mount point of control groups of version 2")
	flag.BoolVar(&o.nri, "nri", false, "serve NRI, as level kernel needs it")
	flag.DurationVar(&o.patience, "patience", 30*time.Second, "how long to wait for the plugin's offer")
	flag.Parse()
	out := json.NewEncoder(os.Stdout)
	if err := run(o, flag.Args(), out); err != nil {
		_ = out.Encode(answer{"error": err.Error()})
		os.Exit(1)
	}
}

func run(o options, more []string, out *json.Encoder) error {
	began, dir, patience := time.Now(), o.dir, o.patience
	n := &node{registered: make(chan *pluginapi.RegisterRequest, 1), changed: make(chan struct{})}
	plugins := filepath.Join(dir, "device-plugins")
	if err := serve(plugins, func(s *grpc.Server) { pluginapi.RegisterRegistrationServer(s, n) }); err != nil {
		return err
	}
	if err := serve(filepath.Join(dir, "pod-resources"), func(s *grpc.Server) { podresources.RegisterPodResourcesListerServer(s, n) }); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = (&http.Server{Handler: n, ReadHeaderTimeout: time.Minute}).Serve(listener) }()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	err = os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c",
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"clusters":[{"name":"c","cluster":{"server":"http://%s"}}]}`, listener.Addr()), 0o600)
	if err != nil {
		return err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	probe := free.Addr().String() // the plugin listens there
	free.Close()
	logName := filepath.Join(dir, "plugin.log")
	log, err := os.Create(logName)
	if err != nil {
		return err
	}
	args := append([]string{"--node-name=here", "--kubelet-dir=" + dir, "--kubeconfig=" + kubeconfig, "--probe-listen=" + probe, "--log-format=json", "--probe-interval=2s"}, more...)
	if o.nri {
		if n.runtime, err = startRuntime(dir, o.cgroups); err != nil {
			return err
		}
		defer n.runtime.nri.Stop()
		args = append(args, "--nri-socket="+nriSocket(dir), "--cgroup-root="+o.cgroups)
	} else {
		args = append(args, "--nri-socket=")
	}
	cmd := exec.Command(o.plugin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		late.Stop()
	}()
	var r *pluginapi.RegisterRequest
	select {
	case r = <-n.registered:
	case <-time.After(patience):
		return fmt.Errorf("the device plugin did not register within %s: %s", patience, last(logName, 5))
	}
	registered := time.Since(began)
	conn, err := grpc.NewClient("unix://"+filepath.Join(plugins, r.GetEndpoint()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	client := pluginapi.NewDevicePluginClient(conn)
	offered := make(chan struct{}, 1) // gets an element once a unit is healthy
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go n.listen(ctx, client, offered)
	select {
	case <-offered:
	case <-time.After(patience):
	}
	n.mu.Lock()
	first := answer{"resource": r.GetResourceName(), "healthy": len(n.healthy), "unhealthy": n.sick, "registered_s": registered.Seconds(), "offered_s": time.Since(began).Seconds(), "plugin_pid": cmd.Process.Pid}
	if len(n.healthy) > 0 {
		first["id"] = n.healthy[0]
	} else {
		first["log"] = last(logName, 8)
	}
	n.mu.Unlock()
	if err := out.Encode(first); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		if err := out.Encode(n.command(ctx, client, probe, logName, words)); err != nil {
			return err
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return out.Encode(answer{"quit": true, "events": n.events, "patches": len(n.patches)})
}

func (n *node) listen(ctx context.Context, client pluginapi.DevicePluginClient, offered chan<- struct{}) {
	stream, err := client.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err != nil {
			return
		}
		var healthy []string
		for _, d := range list.GetDevices() {
			if d.GetHealth() == pluginapi.Healthy {
				healthy = append(healthy, d.GetID())
			}
		}
		n.mu.Lock()
		n.healthy, n.sick = healthy, len(list.GetDevices())-len(healthy)
		n.mu.Unlock()
		if len(healthy) > 0 {
			select {
			case offered <- struct{}{}:
			default:
			}
		}
	}
}

func (n *node) command(ctx context.Context, client pluginapi.DevicePluginClient, probe, logName string, words []string) answer {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	switch {
	case words[0] == "allocate" && len(words) >= 5:
		return n.allocate(ctx, client, words[1], words[2], words[3], words[4], words[5:])
	case words[0] == "prestart" && len(words) == 2:
		began := time.Now()
		if _, err := client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: n.pod(words[1]).ids}); err != nil {
			return answer{"error": err.Error()}
		}
		return answer{"prestart": words[1], "took_s": time.Since(began).Seconds()}
	case words[0] == "start" && len(words) == 2 && n.runtime != nil:
		group, err := n.runtime.start(ctx, n.pod(words[1]))
		if err != nil {
			return answer{"error": err.Error()}
		}
		return answer{"group": group}
	case words[0] == "stop" && len(words) == 2 && n.runtime != nil:
		n.runtime.stop(ctx, n.pod(words[1]))
		return answer{"stop": words[1]}
	case words[0] == "metrics":
		return metrics(probe)
	case words[0] == "health":
		n.mu.Lock()
		defer n.mu.Unlock()
		return answer{"healthz": get(probe, "/healthz"), "readyz": get(probe, "/readyz"), "healthy": len(n.healthy), "unhealthy": n.sick, "events": n.events, "patches": n.patches[max(0, len(n.patches)-2):]}
	case words[0] == "log":
		return answer{"log": last(logName, 30)}
	}
	return answer{"error": "unknown command " + strings.Join(words, " ")}
}

func (n *node) pod(name string) pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		if p.name == name {
			return p
		}
	}
	return pod{}
}

func (n *node) allocate(ctx context.Context, client pluginapi.DevicePluginClient, name, units, uid, container string, gpus []string) answer {
	want, err := strconv.Atoi(units)
	if err != nil {
		return answer{"error": err.Error()}
	}
	n.mu.Lock()
	free := slices.DeleteFunc(slices.Clone(n.healthy), func(id string) bool {
		return slices.ContainsFunc(n.pods, func(p pod) bool { return slices.Contains(p.ids, id) })
	})
	n.mu.Unlock()
	if len(gpus) == 0 {
		gpus = []string{""}
	}
	var ids []string
	for _, gpu := range gpus {
		prefix := strings.TrimPrefix(gpu, "GPU-")
		own := slices.DeleteFunc(slices.Clone(free), func(id string) bool { return !strings.HasPrefix(id, prefix[:min(8, len(prefix))]) })
		if len(own) < want {
			return answer{"error": fmt.Sprintf("%d of %d requested units are free on GPU %q", len(own), want, gpu)}
		}
		ids = append(ids, own[:want]...)
	}
	began := time.Now()
	reply, err := client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return answer{"error": err.Error()}
	}
	took := time.Since(began)
	one := reply.GetContainerResponses()[0]
	n.mu.Lock()
	n.pods = append(n.pods, pod{name, uid, container, ids, one.GetEnvs()})
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
	var mounts []string
	for _, m := range one.GetMounts() {
		mounts = append(mounts, m.GetHostPath()+" -> "+m.GetContainerPath())
	}
	return answer{"allocate": name, "took_s": took.Seconds(), "envs": one.GetEnvs(), "mounts": mounts, "annotations": one.GetAnnotations(), "left": len(free) - len(ids)}
}

func metrics(probe string) answer {
	out, skip := answer{}, regexp.MustCompile(`_bucket|request_|assignment_`)
	for line := range strings.Lines(get(probe, "/metrics")) {
		at := strings.LastIndexByte(line, ' ')
		name, text := line[:max(at, 0)], strings.TrimSpace(line[at+1:])
		if v, err := strconv.ParseFloat(text, 64); err == nil && strings.HasPrefix(name, "gpumem_device_plugin_") && !skip.MatchString(name) {
			out[name] = v
		}
	}
	return answer{"metrics": out}
}

func get(probe, path string) string {
	client := http.Client{Timeout: 5 * time.Second}
	r, err := client.Get("http://" + probe + path)
	if err != nil {
		return err.Error()
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	return string(text)
}

func last(name string, lines int) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
