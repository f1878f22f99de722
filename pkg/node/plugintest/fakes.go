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

// Patience is how long a test waits for what is to come.
const Patience = 10 * time.Second

// The GPUs of a node.
const (
	GPUA gpu.UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	GPUB gpu.UUID = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
)

// TwoGPUs is a node with two GPUs of 8 units in 8.5 GiB.
func TwoGPUs() gpu.Inventory {
	device := func(uuid gpu.UUID, index int) gpu.Device {
		return gpu.Device{UUID: uuid, Index: index, Model: "Tesla T4", MemoryMiB: 8704, Allocatable: 8, NUMANode: -1}
	}
	return gpu.Inventory{UnitMiB: 1024, Enforcement: gpu.EnforcementAdvisory, Devices: []gpu.Device{device(GPUA, 0), device(GPUB, 1)}}
}

// Source has the GPUs that a test sets.
type Source struct {
	mu      sync.Mutex
	inv     gpu.Inventory
	changed chan struct{}
}

// NewSource returns a source of an inventory.
func NewSource(inv gpu.Inventory) *Source { return &Source{inv: inv, changed: make(chan struct{})} }

// Inventory implements inventory.Source.
func (p *Source) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	inv := p.inv
	inv.Devices = slices.Clone(inv.Devices)
	return inv, "", p.changed
}

// Set changes the inventory.
func (p *Source) Set(f func(*gpu.Inventory)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inv.Devices = slices.Clone(p.inv.Devices)
	f(&p.inv)
	close(p.changed)
	p.changed = make(chan struct{})
}

// Pods are those that a test adds, corrected as the plugin wants it.
type Pods struct {
	Fail      error
	FailOnce  string           // the pod whose next correction fails
	Denied    string           // the pod whose corrections all fail
	Unlisted  bool             // these are not known to be all
	Behind    []allocation.Pod // what the API server has and the watch has not shown
	Away      int              // so many reads fail before the API server answers one
	Refreshes int

	mu          sync.Mutex
	list        []allocation.Pod
	changed     chan struct{}
	corrections recorded[string]
}

// NewPods returns pods that are known.
func NewPods(list ...allocation.Pod) *Pods { return &Pods{list: list, changed: make(chan struct{})} }

// Pods returns them.
func (p *Pods) Pods() ([]allocation.Pod, bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list), !p.Unlisted, p.changed
}

// Set has these pods, and no others.
func (p *Pods) Set(list ...allocation.Pod) { p.do(func() { p.list = list }) }

// Add adds a pod.
func (p *Pods) Add(pod allocation.Pod) { p.do(func() { p.list = append(p.list, pod) }) }

// Settle is the kubelet's word that it has admitted a pod.
func (p *Pods) Settle(name string) { p.Change(name, func(pod *allocation.Pod) { pod.Admitted = true }) }

// Started is the kubelet that has made the containers of a pod.
func (p *Pods) Started(name string) {
	p.Change(name, func(pod *allocation.Pod) { pod.Starting = false })
}

// TakeAway is somebody who removes a pod's annotation.
func (p *Pods) TakeAway(name string) {
	p.Change(name, func(pod *allocation.Pod) { pod.Assignment = placement.Assignment{} })
}

// Change changes a pod.
func (p *Pods) Change(name string, how func(*allocation.Pod)) {
	p.do(func() {
		for i := range p.list {
			if p.list[i].Pod.Name == name {
				how(&p.list[i])
			}
		}
	})
}

// Refresh brings what the watch has not shown.
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

// do changes the pods, and tells that they have changed.
func (p *Pods) do(how func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	how()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Correct refuses what the true one does: GPUs that the inventory lacks.
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

// Corrected returns what was written, a line each.
func (p *Pods) Corrected() []string { return p.corrections.All() }

// Kubelet knows pods and what it gave them.
type Kubelet struct {
	Fail      error
	Failures  int    // answers that fail before others
	Deaf      bool   // answers nothing until the caller gives up
	Meanwhile func() // what happens between its look and its answer

	mu    sync.Mutex
	held  []allocation.Allocated
	known map[string]bool
}

// NewKubelet returns one that lists some pods.
func NewKubelet(known ...string) *Kubelet {
	k := &Kubelet{known: make(map[string]bool)}
	for _, name := range known {
		k.known[name] = true
	}
	return k
}

// List returns what containers hold, and the pods that it lists.
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

// Lists has it list a pod.
func (k *Kubelet) Lists(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known[name] = true
}

// Give has a container hold slots.
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

// Free takes back all that was given.
func (k *Kubelet) Free() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = nil
}

// Allocated returns what it has given.
func (k *Kubelet) Allocated() []allocation.Allocated {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.held)
}

// SlotsOf returns what it has given to a pod.
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

// recorded are values that a test reads later.
type recorded[T any] struct {
	mu   sync.Mutex
	list []T
}

func (r *recorded[T]) add(value T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, value)
}

// All returns them.
func (r *recorded[T]) All() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

// Notes are the Events that were recorded.
type Notes struct{ recorded[string] }

// Pod records an event of a pod.
func (n *Notes) Pod(ref placement.PodRef, e event.OnPod, _ string) {
	n.add(ref.String() + " " + e.Row().Reason)
}

// Node records an event of the node.
func (n *Notes) Node(e event.OnNode, note string) { n.add("node " + e.Row().Reason + ": " + note) }

// Counts are what the metrics got.
type Counts struct {
	drifted     recorded[int]
	corrections recorded[string]
}

// Drifted implements grants.Metrics.
func (c *Counts) Drifted(pods int) { c.drifted.add(pods) }

// Corrected implements grants.Metrics.
func (c *Counts) Corrected(reason string) { c.corrections.add(reason) }

// Seen returns the drift at each look, and why each assignment was written.
func (c *Counts) Seen() (drifted []int, corrections []string) {
	return c.drifted.All(), c.corrections.All()
}

// Container is short for one of a request.
func Container(name string, kind placement.ContainerKind, units gpu.Units) placement.Container {
	return placement.Container{Name: name, Kind: kind, Units: units}
}

// App is a container called main.
func App(units gpu.Units) placement.Container { return Container("main", placement.App, units) }

// Pod returns one that was made at the n-th second and is assigned to a GPU, or
// to none.
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

// indexes are what is written for people of an assignment.
func indexes(a placement.Assignment) string {
	var out []int
	for _, id := range a.Devices() {
		out = append(out, map[gpu.UUID]int{GPUA: 0, GPUB: 1}[id])
	}
	return api.FormatIndexes(out)
}

// On reports whether a slot is of a GPU.
func On(id string, device gpu.UUID) bool {
	return strings.HasPrefix(id, strings.TrimPrefix(string(device), "GPU-")[:8])
}
