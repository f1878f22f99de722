package plugintest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// Patience is the timeout of waits in tests.
const Patience = 10 * time.Second

// UUIDs of the fake GPUs.
const (
	GPUA gpu.UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	GPUB gpu.UUID = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
)

// TwoGPUs returns an inventory of two GPUs, each with 8.5 GiB and 8 units.
func TwoGPUs() gpu.Inventory {
	device := func(uuid gpu.UUID, index int) gpu.Device {
		return gpu.Device{UUID: uuid, Index: index, Model: "Tesla T4", MemoryMiB: 8704, Allocatable: 8, NUMANode: -1}
	}
	return gpu.Inventory{UnitMiB: 1024, Enforcement: gpu.EnforcementAdvisory, Devices: []gpu.Device{device(GPUA, 0), device(GPUB, 1)}}
}

// Source is an inventory.Source that a test can change.
type Source struct {
	mu      sync.Mutex
	inv     gpu.Inventory
	changed chan struct{}
}

// NewSource returns a source with an initial inventory.
func NewSource(inv gpu.Inventory) *Source { return &Source{inv: inv, changed: make(chan struct{})} }

// Inventory implements inventory.Source.
func (p *Source) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	inv := p.inv
	inv.Devices = slices.Clone(inv.Devices)
	return inv, "", p.changed
}

// Set calls f on the inventory, and signals the change.
func (p *Source) Set(f func(*gpu.Inventory)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inv.Devices = slices.Clone(p.inv.Devices)
	f(&p.inv)
	close(p.changed)
	p.changed = make(chan struct{})
}

// Pods contains pods that a test adds, and records the plugin's corrections.
type Pods struct {
	Fail      error
	FailOnce  string           // name of the pod whose next correction fails
	Denied    string           // name of the pod whose corrections always fail
	Unlisted  bool             // the list of pods is incomplete
	Behind    []allocation.Pod // pods that the API server has and the watch has not delivered
	Away      int              // number of Refresh calls that fail
	Refreshes int

	mu          sync.Mutex
	list        []allocation.Pod
	changed     chan struct{}
	corrections recorded[string]
}

// NewPods returns a complete list of pods.
func NewPods(list ...allocation.Pod) *Pods { return &Pods{list: list, changed: make(chan struct{})} }

// Pods returns the pods, whether the list is complete, and a channel that is closed on a change.
func (p *Pods) Pods() ([]allocation.Pod, bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list), !p.Unlisted, p.changed
}

// Set replaces all pods.
func (p *Pods) Set(list ...allocation.Pod) { p.do(func() { p.list = list }) }

// Add adds a pod.
func (p *Pods) Add(pod allocation.Pod) { p.do(func() { p.list = append(p.list, pod) }) }

// Settle marks a pod as admitted by the kubelet.
func (p *Pods) Settle(name string) { p.Change(name, func(pod *allocation.Pod) { pod.Admitted = true }) }

// Started marks a pod whose containers the kubelet has created.
func (p *Pods) Started(name string) {
	p.Change(name, func(pod *allocation.Pod) { pod.Starting = false })
}

// TakeAway removes a pod's assignment, like a user who deletes the annotation.
func (p *Pods) TakeAway(name string) {
	p.Change(name, func(pod *allocation.Pod) { pod.Assignment = placement.Assignment{} })
}

// Change calls how on the named pod, and signals the change.
func (p *Pods) Change(name string, how func(*allocation.Pod)) {
	p.do(func() {
		for i := range p.list {
			if p.list[i].Pod.Name == name {
				how(&p.list[i])
			}
		}
	})
}

// HasUnwatched returns false, as if the watch had delivered all pods.
func (*Pods) HasUnwatched() bool { return false }

// Refresh delivers the pods in Behind.
func (p *Pods) Refresh(context.Context) error {
	if p.Refreshes++; p.Refreshes <= p.Away {
		return errors.New("connection refused")
	}
	p.do(func() {
		p.list = append(p.list, p.Behind...)
		p.Behind = nil
	})
	return nil
}

// do changes the pods and signals the change.
func (p *Pods) do(how func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	how()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Correct records a correction. Like the product's method, it rejects GPUs that the inventory lacks.
func (p *Pods) Correct(_ context.Context, ref placement.PodRef, a placement.Assignment, inv gpu.Inventory) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refuses(ref, a, inv); err != nil {
		return err
	}
	for i, pod := range p.list {
		if pod.Pod != ref {
			continue
		}
		line := fmt.Sprint(ref, " ", a.Devices())
		if a.ByNode {
			line += " by the node"
		}
		if len(a.Leaving) > 0 {
			line += fmt.Sprint(" leaving ", a.Leaving)
		}
		if a.Allocated {
			line += " held"
			p.list[i].Request.Count = len(a.Shares)
		}
		p.corrections.add(line)
		p.list[i].Assignment, p.list[i].Index = a, indexes(a)
		close(p.changed)
		p.changed = make(chan struct{})
		return nil
	}
	return errors.New("no such pod")
}

func (p *Pods) refuses(ref placement.PodRef, a placement.Assignment, inv gpu.Inventory) error {
	if p.Fail != nil {
		return p.Fail
	}
	for _, id := range a.Devices() {
		if _, ok := inv.Device(id); !ok {
			return fmt.Errorf("no GPU %s", id)
		}
	}
	if p.Denied == ref.Name {
		return errors.New("denied by a webhook")
	}
	if p.FailOnce == ref.Name {
		p.FailOnce = ""
		return errors.New("connection lost")
	}
	return nil
}

// Corrected returns the corrections, one line each.
func (p *Pods) Corrected() []string { return p.corrections.All() }

// Kubelet is a fake of the kubelet's PodResources API.
type Kubelet struct {
	Fail      error
	Failures  int    // number of List calls that fail first
	Deaf      bool   // List blocks until the caller's context is done
	Meanwhile func() // called between reading and returning the state

	mu    sync.Mutex
	held  []allocation.Allocated
	known map[string]bool
}

// NewKubelet returns a kubelet that lists the given pods.
func NewKubelet(known ...string) *Kubelet {
	k := &Kubelet{known: make(map[string]bool)}
	for _, name := range known {
		k.known[name] = true
	}
	return k
}

// List returns the slots of containers, and the listed pods.
func (k *Kubelet) List(ctx context.Context) ([]allocation.Allocated, map[string]bool, error) {
	k.mu.Lock()
	deaf, fail := k.Deaf, k.Fail
	if k.Failures > 0 {
		k.Failures--
		fail = errors.New("asked too often")
	}
	held, known := slices.Clone(k.held), make(map[string]bool)
	for name := range k.known {
		known[name] = true
	}
	meanwhile := k.Meanwhile
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

// Lists adds a pod to the list.
func (k *Kubelet) Lists(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known[name] = true
}

// Give allocates slots to a container.
func (k *Kubelet) Give(pod, container string, ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, h := range k.held {
		if h.Name == pod && h.Container == container {
			k.held[i].Slots = slices.Concat(h.Slots, slots(ids))
			return
		}
	}
	k.held = append(k.held, allocation.Allocated{Namespace: "ns", Name: pod, Container: container, Slots: slots(ids)})
}

// Free releases all slots.
func (k *Kubelet) Free() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = nil
}

// Allocated returns all allocations.
func (k *Kubelet) Allocated() []allocation.Allocated {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.held)
}

// SlotsOf returns the slots of a pod.
func (k *Kubelet) SlotsOf(name string) (ids []string) {
	for _, h := range k.Allocated() {
		if h.Name == name {
			for _, id := range h.Slots {
				ids = append(ids, string(id))
			}
		}
	}
	return ids
}

func slots(ids []string) []gpu.SlotID {
	out := make([]gpu.SlotID, 0, len(ids))
	for _, id := range ids {
		out = append(out, gpu.SlotID(id))
	}
	return out
}

// recorded collects values for a test to read.
type recorded[T any] struct {
	mu   sync.Mutex
	list []T
}

func (r *recorded[T]) add(value T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, value)
}

// All returns the collected values.
func (r *recorded[T]) All() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// Notes collects the recorded events.
type Notes struct{ recorded[string] }

// Pod records an event of a pod.
func (n *Notes) Pod(ref placement.PodRef, e event.OnPod, _ string) {
	n.add(ref.String() + " " + e.Row().Reason)
}

// Node records an event of the node.
func (n *Notes) Node(e event.OnNode, note string) { n.add("node " + e.Row().Reason + ": " + note) }

// Counts collects the values of metrics.
type Counts struct {
	drifted     recorded[int]
	corrections recorded[string]
}

// Drifted implements grants.Metrics.
func (c *Counts) Drifted(pods int) { c.drifted.add(pods) }

// Corrected implements grants.Metrics.
func (c *Counts) Corrected(reason string) { c.corrections.add(reason) }

// Seen returns the drift at each reconcile, and the reason of each correction.
func (c *Counts) Seen() (drifted []int, corrections []string) {
	return c.drifted.All(), c.corrections.All()
}

// Container returns a container of a request.
func Container(name string, kind placement.ContainerKind, units gpu.Units) placement.Container {
	return placement.Container{Name: name, Kind: kind, Units: units}
}

// App returns an app container named main.
func App(units gpu.Units) placement.Container { return Container("main", placement.App, units) }

// Pod returns a pod that was created at second n. Parameter on is its assigned GPU, or empty.
func Pod(name string, n int64, on gpu.UUID, containers ...placement.Container) allocation.Pod {
	p := allocation.Pod{
		Holding: placement.Holding{
			Pod:     placement.PodRef{Namespace: "ns", Name: name, UID: "uid-" + name},
			Request: placement.Request{Containers: placement.NewContainers(containers...)},
		},
		Created: time.Unix(n, 0),
	}
	if on != "" {
		p.Assignment = placement.Assignment{Shares: []placement.Share{{Device: on}}}.WithShares(p.Request)
		p.Index = indexes(p.Assignment)
	}
	return p
}

// indexes returns the index annotation of an assignment.
func indexes(a placement.Assignment) string {
	var out []int
	for _, id := range a.Devices() {
		out = append(out, map[gpu.UUID]int{GPUA: 0, GPUB: 1}[id])
	}
	return api.FormatIndexes(out)
}

// On reports whether a slot belongs to a GPU.
func On(id string, device gpu.UUID) bool {
	return strings.HasPrefix(id, strings.TrimPrefix(string(device), "GPU-")[:8])
}
