package sim

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// machine is one node: what survives the restarts of its processes.
type machine struct {
	w    *World
	name string

	shares   bool // it offers its GPUs in shares
	hardware []gpu.Device
	everHad  []gpu.UUID
	byPrefix map[string]string // those, by the first digits

	checkpoint map[string]map[part]*grant // the kubelet's, by UID
	registered [2]bool                    // the checkpoint knows the resource
	record     []byte                     // the plugin's own; goes with the kubelet's
	sandboxes  map[string]*sandbox        // the runtime's, by UID

	kubelet *kubelet
	plugin  *plugin
	rpcs    []*rpc        // under way between the two
	deaf    time.Duration // until when the kubelet's PodResources does not answer

	resized map[gpu.UUID]bool // GPUs that have shrunk or gone, and may hold more than they have
}

const unitMiB = 1024

// few is how many nodes a run has at most that does not have a large fleet of them.
const few = 9

var models = []string{"NVIDIA A", "NVIDIA B"}

func (w *World) machine(name string) *machine {
	return w.machines[slices.IndexFunc(w.machines, func(m *machine) bool { return m.name == name })]
}

func (w *World) newMachine(name string) *machine {
	m := &machine{
		w: w, name: name, shares: w.cfg.Shares && len(w.machines)%2 == 1, checkpoint: make(map[string]map[part]*grant),
		sandboxes: make(map[string]*sandbox), resized: make(map[gpu.UUID]bool), byPrefix: make(map[string]string),
	}
	for range 2 + w.rng.IntN(2) {
		m.addGPU()
	}
	return m
}

// fill has other programs use all GPUs.
func (m *machine) fill() {
	for i := range m.hardware {
		m.hardware[i].Foreign = m.hardware[i].Allocatable
	}
}

func (m *machine) addGPU() {
	index := 0
	for slices.ContainsFunc(m.hardware, func(d gpu.Device) bool { return d.Index == index }) {
		index++
	}
	kind := "GPU"
	if m.w.cfg.Shares && len(m.everHad)%3 == 1 {
		kind = "MIG"
	}
	uuid := gpu.UUID(fmt.Sprintf("%s-%08x-0000-0000-0000-%012x", kind, m.w.rng.Uint32(), len(m.everHad)))
	units := 8 + 2*m.w.rng.IntN(3)
	d := gpu.Device{
		UUID: uuid, Index: index, Model: pick(m.w.rng, models), Speed: 10 * m.w.rng.IntN(3), MemoryMiB: int64(units)*unitMiB + 512,
		Allocatable: gpu.Units(units), NUMANode: -1,
	}
	if m.shares {
		d.Allocatable, d.ShareMiB = gpu.SharesPerDevice, d.MemoryMiB/gpu.SharesPerDevice
	}
	m.hardware = append(m.hardware, d)
	slices.SortFunc(m.hardware, func(a, b gpu.Device) int { return a.Index - b.Index })
	m.everHad = append(m.everHad, uuid)
	m.byPrefix[string(uuid[len("GPU-"):len("GPU-")+8])] = string(uuid)
}

// inventory is what NVML tells: GPUs of which those with neighbouring indexes
// are linked.
func (m *machine) inventory() gpu.Inventory {
	unit := int64(unitMiB)
	if m.shares {
		unit = 0
	}
	inv := gpu.Inventory{UnitMiB: unit, DriverVersion: "615.00", Enforcement: gpu.EnforcementAdvisory, Devices: slices.Clone(m.hardware)}
	for i := 1; i < len(inv.Devices); i++ {
		if a, b := inv.Devices[i-1], inv.Devices[i]; a.Index/2 == b.Index/2 {
			inv.Links = append(inv.Links, gpu.Link{A: a.UUID, B: b.UUID, Lanes: 4})
		}
	}
	return inv
}

// device returns a GPU as it is, or nil.
func (m *machine) device(uuid string) *gpu.Device {
	for i := range m.hardware {
		if string(m.hardware[i].UUID) == uuid {
			return &m.hardware[i]
		}
	}
	return nil
}

// capacity returns the units of a GPU, as they are.
func (m *machine) capacity(uuid string) int {
	if d := m.device(uuid); d != nil {
		return int(d.Allocatable)
	}
	return 0
}

// countOf returns how many IDs a GPU has of a resource, as they are.
func (m *machine) countOf(uuid string, r gpu.Resource) int {
	if r == gpu.Cores && m.device(uuid) != nil {
		return allCores
	}
	return m.capacity(uuid)
}

// join makes the node's API object, as a kubelet does that starts.
func (m *machine) join() {
	if m.w.api.nodes[m.name] != nil {
		return
	}
	m.w.serial++
	m.w.api.setNode(m.name, &v1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: m.name, UID: types.UID(fmt.Sprintf("node-uid-%d", m.w.serial)), CreationTimestamp: m.w.api.wallClock(),
	}})
}

func (m *machine) startKubelet() {
	if m.kubelet != nil && m.kubelet.live {
		return
	}
	m.kubelet = m.w.newKubelet(m)
	m.joinSoon()
	if m.plugin != nil && m.plugin.live {
		m.plugin.registerSoon()
	}
}

func (m *machine) joinSoon() {
	m.w.after(2*tick, m.kubelet.process, m.name+": joins", func() {
		if m.w.api.down {
			m.joinSoon()
			return
		}
		m.join()
		m.kubelet.publish()
	})
}

func (m *machine) killKubelet() {
	if m.kubelet == nil || !m.kubelet.live {
		return
	}
	m.kubelet.kill()
	m.cancelCalls(func(*rpc) bool { return true })
	if m.plugin != nil {
		m.plugin.endStreams()
	}
}

// cancelCalls breaks calls under way, one after another: were they all to end
// at once, the order would be the Go scheduler's.
func (m *machine) cancelCalls(which func(*rpc) bool) {
	for _, c := range m.rpcs {
		if which(c) {
			m.w.after(1*tick, c.plugin.process, "call cancelled on "+m.name, func() {
				m.w.busy = true
				c.cancel()
			})
			m.w.after(1*tick, c.kubelet.process, "call broken on "+m.name, c.fail)
		}
	}
	m.rpcs = slices.DeleteFunc(m.rpcs, func(c *rpc) bool { return !c.kubelet.live })
}

func (m *machine) startPlugin() {
	if m.plugin != nil && m.plugin.live {
		return
	}
	m.plugin = m.w.newPlugin(m)
	m.plugin.registerSoon()
}

func (m *machine) killPlugin() {
	p := m.plugin
	if p == nil || !p.live {
		return
	}
	p.endStreams()
	p.kill()
	if p.endPass != nil {
		p.endPass()
	}
	m.cancelCalls(func(*rpc) bool { return true })
	if k := m.kubelet; k != nil && k.live {
		m.w.after(1*tick, k.process, k.name+": the plugin is gone", func() { k.disconnected(p) })
	}
}

// reboot ends everything on the machine. The kubelet's directory may be lost.
func (m *machine) reboot() {
	m.killPlugin()
	m.killKubelet()
	m.sandboxes = make(map[string]*sandbox)
	if m.w.rng.IntN(4) == 0 {
		m.w.logf("  %s: the checkpoint is lost", m.name)
		m.checkpoint, m.registered, m.record = make(map[string]map[part]*grant), [2]bool{}, nil
	}
	for i := range m.hardware {
		m.hardware[i].Status = gpu.Status{}
	}
	m.w.after(m.w.between(time.Second, 5*time.Second), nil, m.name+": kubelet starts", m.startKubelet)
	m.w.after(m.w.between(500*tick, 8*time.Second), nil, m.name+": plugin starts", m.startPlugin)
}
