package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

const patience = 10 * time.Second

const (
	uuidA gpu.UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	uuidB gpu.UUID = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
)

// twoGPUs is a node with two GPUs of 8 units in 8.5 GiB.
func twoGPUs() gpu.Inventory {
	device := func(uuid gpu.UUID, index int) gpu.Device {
		return gpu.Device{UUID: uuid, Index: index, Model: "Tesla T4", MemoryMiB: 8704, Capacity: 8, NUMANode: -1}
	}
	return gpu.Inventory{UnitMiB: 1024, Enforcement: gpu.EnforcementAdvisory, Devices: []gpu.Device{device(uuidA, 0), device(uuidB, 1)}}
}

// prober offers what a test sets.
type prober struct {
	mu      sync.Mutex
	inv     gpu.Inventory
	reason  string
	changed chan struct{}
}

func newProber(inv gpu.Inventory) *prober { return &prober{inv: inv, changed: make(chan struct{})} }

func (p *prober) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	inv := p.inv
	inv.Devices = slices.Clone(inv.Devices)
	return inv, p.reason, p.changed
}

func (p *prober) set(f func(*gpu.Inventory)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inv.Devices = slices.Clone(p.inv.Devices)
	f(&p.inv)
	close(p.changed)
	p.changed = make(chan struct{})
}

// pods are those that a test adds, corrected as the plugin wants it.
type pods struct {
	mu          sync.Mutex
	list        []allocation.Pod
	changed     chan struct{}
	corrections []string
	fail        error
	failOnce    string // the pod of which the next correction fails
	denied      string // the pod whose corrections all fail

	unlisted  bool             // these are not known to be all
	behind    []allocation.Pod // what the API server has and the watch has not told of
	refreshes int
}

func newPods(list ...allocation.Pod) *pods { return &pods{list: list, changed: make(chan struct{})} }

func (p *pods) Pods() ([]allocation.Pod, bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list), !p.unlisted, p.changed
}

func (p *pods) add(pod allocation.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, pod)
	close(p.changed)
	p.changed = make(chan struct{})
}

// settle is the kubelet's word that it has admitted a pod.
func (p *pods) settle(name string) { p.change(name, func(pod *allocation.Pod) { pod.Settled = true }) }

// start is the kubelet that has made the containers of a pod.
func (p *pods) start(name string) { p.change(name, func(pod *allocation.Pod) { pod.Starting = false }) }

func (p *pods) change(name string, how func(*allocation.Pod)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.list {
		if p.list[i].Pod.Name == name {
			how(&p.list[i])
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// takeAway is somebody who removes a pod's annotation.
func (p *pods) takeAway(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.list {
		if p.list[i].Pod.Name == name {
			p.list[i].Assignment = placement.Assignment{}
		}
	}
}

// Refresh brings what the watch has not told of.
func (p *pods) Refresh(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refreshes++
	p.list = append(p.list, p.behind...)
	p.behind = nil
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}

// Correct refuses what the true one does: GPUs that the inventory lacks.
func (p *pods) Correct(_ context.Context, ref placement.PodRef, a placement.Assignment, inv gpu.Inventory) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	for _, id := range a.Devices() {
		if _, ok := inv.Device(id); !ok {
			return fmt.Errorf("no GPU %s", id)
		}
	}
	if p.denied == ref.Name {
		return errors.New("denied by a webhook")
	}
	if p.failOnce == ref.Name {
		p.failOnce = ""
		return errors.New("connection lost")
	}
	for i, pod := range p.list {
		if pod.Pod == ref {
			line := fmt.Sprint(ref, " ", a.Devices())
			if a.ByNode {
				line += " by the node"
			}
			if len(a.Leaving) > 0 {
				line += fmt.Sprint(" leaving ", a.Leaving)
			}
			p.corrections = append(p.corrections, line)
			p.list[i].Assignment, p.list[i].Index = a, indexes(a)
			if a.Held {
				p.list[i].Request.Count = len(a.Shares)
				p.corrections[len(p.corrections)-1] += " held"
			}
			close(p.changed)
			p.changed = make(chan struct{})
			return nil
		}
	}
	return errors.New("no such pod")
}

func (p *pods) corrected() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.corrections)
}

// kubelet knows pods and what it gave them.
type kubelet struct {
	mu       sync.Mutex
	held     []allocation.Held
	known    map[string]bool
	fail     error
	failures int  // answers that fail before others
	deaf     bool // answers nothing until the caller gives up

	meanwhile func() // what happens between its look and its answer
}

func newKubelet(known ...string) *kubelet {
	k := &kubelet{known: make(map[string]bool)}
	for _, name := range known {
		k.known[name] = true
	}
	return k
}

func (k *kubelet) List(ctx context.Context) ([]allocation.Held, map[string]bool, error) {
	k.mu.Lock()
	deaf, fail := k.deaf, k.fail
	if k.failures > 0 {
		k.failures--
		fail = errors.New("asked too often")
	}
	held, known := slices.Clone(k.held), make(map[string]bool)
	for name := range k.known {
		known[name] = true
	}
	meanwhile := k.meanwhile
	k.mu.Unlock()
	if meanwhile != nil {
		meanwhile()
	}
	if deaf {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	if fail != nil {
		return nil, nil, fail
	}
	return held, known, nil
}

func (k *kubelet) list(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known[name] = true
}

func (k *kubelet) give(pod, container string, ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, h := range k.held {
		if h.Name == pod && h.Container == container {
			k.held[i].Slots = slices.Concat(h.Slots, slotIDs(ids))
			return
		}
	}
	k.held = append(k.held, allocation.Held{Namespace: "ns", Name: pod, Container: container, Slots: slotIDs(ids)})
}

// notes are the Events that were recorded.
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) Pod(ref placement.PodRef, _ bool, reason, _ string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, ref.String()+" "+reason)
}

func (n *notes) Node(_ bool, reason, note string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, "node "+reason+": "+note)
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}

// counts are what the metrics were told.
type counts struct {
	mu          sync.Mutex
	drifted     []int // by look
	corrections []string
}

func (c *counts) Drifted(pods int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drifted = append(c.drifted, pods)
}

func (c *counts) Corrected(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corrections = append(c.corrections, reason)
}

// container is short for one of a request.
func container(name string, kind placement.ContainerKind, units gpu.Units) placement.Container {
	return placement.Container{Name: name, Kind: kind, Units: units}
}

func app(units gpu.Units) placement.Container { return container("main", placement.App, units) }

// pod returns one that was made at the n-th second and is assigned to a GPU, or
// to none.
func pod(name string, n int64, on gpu.UUID, containers ...placement.Container) allocation.Pod {
	p := allocation.Pod{
		Holding: placement.Holding{
			Pod:     placement.PodRef{Namespace: "ns", Name: name, UID: "uid-" + name},
			Request: placement.Request{Containers: containers},
		},
		Created: time.Unix(n, 0),
	}
	if on != "" {
		p.Assignment = placement.Assignment{Shares: []placement.Share{{Device: on}}}.WithShares(p.Request)
		p.Index = indexes(p.Assignment)
	}
	return p
}

// indexes are what is written for people of an assignment.
func indexes(a placement.Assignment) string {
	var out []int
	for _, id := range a.Devices() {
		out = append(out, map[gpu.UUID]int{uuidA: 0, uuidB: 1}[id])
	}
	return api.FormatIndexes(out)
}

// node is a plugin with all that surrounds it, and a client in the kubelet's place.
type node struct {
	*Plugin
	prober  *prober
	pods    *pods
	kubelet *kubelet
	notes   *notes
	counts  *counts
	client  pluginapi.DevicePluginClient
}

func newNode(t *testing.T, change func(*Config), known []string, list ...allocation.Pod) *node {
	t.Helper()
	cfg := DefaultConfig("n1")
	cfg.PodWait = 50 * time.Millisecond
	cfg.KubeletWait = time.Second
	if change != nil {
		change(&cfg)
	}
	n := &node{prober: newProber(twoGPUs()), pods: newPods(list...), kubelet: newKubelet(known...), notes: &notes{}, counts: &counts{}}
	n.Plugin = New(cfg, n.prober, n.pods, n.kubelet, n.notes, n.counts, zap.NewNop())
	n.client = connect(t, n.Plugin)
	return n
}

// connect serves a plugin in memory and returns its client.
func connect(t *testing.T, plugin pluginapi.DevicePluginServer) pluginapi.DevicePluginClient {
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
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // a test that asked nothing ends sooner
			t.Error(err)
		}
	})
	return pluginapi.NewDevicePluginClient(conn)
}

// free returns the IDs that nobody holds, GPU by GPU.
func (n *node) free(but ...string) []string {
	o, _ := n.offer()
	n.kubelet.mu.Lock()
	defer n.kubelet.mu.Unlock()
	var out []string
	for _, d := range o.list(gpu.Memory).GetDevices() {
		taken := slices.Contains(but, d.GetID()) || slices.ContainsFunc(n.kubelet.held, func(h allocation.Held) bool {
			return slices.Contains(h.Slots, gpu.SlotID(d.GetID()))
		})
		if !taken && d.GetHealth() == pluginapi.Healthy {
			out = append(out, d.GetID())
		}
	}
	return out
}

func (n *node) preferred(ctx context.Context, available, must []string, size gpu.Units) ([]string, error) {
	out, err := n.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(size),
		}},
	})
	if err != nil {
		return nil, err
	}
	return out.GetContainerResponses()[0].GetDeviceIDs(), nil
}

func (n *node) allocate(ctx context.Context, ids ...string) (*pluginapi.ContainerAllocateResponse, error) {
	out, err := n.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	return out.GetContainerResponses()[0], nil
}

func (n *node) start(ctx context.Context, ids ...string) error {
	_, err := n.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}

// admit does what the kubelet does for a pod, container by container: IDs of
// init containers are used again, and all are given before any container starts.
// It returns the GPU of each container.
func (n *node) admit(t *testing.T, p allocation.Pod) ([]string, error) {
	t.Helper()
	ctx := t.Context()
	n.kubelet.list(p.Pod.String())
	var reuse []string
	given := make(map[string][]string)
	var gpus []string
	for _, c := range p.Request.Containers {
		must := reuse[:min(len(reuse), int(c.Units))]
		ids := must
		if len(must) < int(c.Units) {
			var inUse []string
			for _, g := range given {
				inUse = append(inUse, g...)
			}
			free := n.free(inUse...)
			if len(must) > 0 {
				free = append(free, must...)
				slices.Sort(free)
				free = slices.Compact(free)
			}
			got, err := n.preferred(ctx, free, must, c.Units)
			if err != nil {
				return nil, err
			}
			ids = got
		}
		answer, err := n.allocate(ctx, ids...)
		if err != nil {
			return nil, err
		}
		gpus = append(gpus, c.Name+"="+answer.GetEnvs()["GPUMEM_GPU_INDEX"])
		given[c.Name] = ids
		if c.Kind == placement.Init {
			reuse = union(reuse, ids)
		} else {
			reuse = slices.DeleteFunc(slices.Clone(reuse), func(id string) bool { return slices.Contains(ids, id) })
			n.kubelet.give(p.Pod.Name, c.Name, ids)
		}
	}
	n.pods.settle(p.Pod.Name)
	for _, c := range p.Request.Containers {
		if err := n.start(ctx, given[c.Name]...); err != nil {
			return gpus, fmt.Errorf("start %s: %w", c.Name, err)
		}
	}
	return gpus, nil
}

func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.SortFunc(out, cmp.Compare)
	return slices.Compact(out)
}
