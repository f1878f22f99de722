package coexist

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// Prober tells which GPUs the node has, why it has none, and when that changes.
type Prober interface {
	Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{})
}

// Users are the containers that hold devices of the node's plugins.
type Users interface {
	// Users returns what the kubelet has given out of each resource, by device ID:
	// the pod, as namespace/name.
	Users(ctx context.Context) (map[string]map[string]string, error)
}

// Events tells people of the node.
type Events interface {
	Node(warning bool, reason, note string)
}

// askTime bounds a question to the kubelet.
const askTime = time.Second

// nvidiaGPU is what NVIDIA's plugin calls GPUs, and GPUs that it shares.
func nvidiaGPU(resource string) bool {
	return resource == "nvidia.com/gpu" || resource == "nvidia.com/gpu.shared"
}

// Node is a prober's GPUs without those that are somebody else's.
type Node struct {
	selector Selector
	memory   string // our resource
	interval time.Duration
	prober   Prober
	users    Users
	events   Events
	log      *zap.Logger

	looked chan struct{} // closed after the first look
	first  sync.Once

	said  map[gpu.UUID]bool   // of which GPUs it was said that both have them
	taken map[gpu.UUID]string // by whom, at the last look

	mu      sync.Mutex // guards the rest
	view    view
	changed chan struct{} // closed and replaced when the view changes
}

// view is what is gpumem's.
type view struct {
	inventory gpu.Inventory
	reason    string // why there is no GPU
}

// NewNode returns a node that knows of nobody else until it runs. Memory is the
// resource that gpumem offers.
func NewNode(selector Selector, memory string, interval time.Duration, prober Prober, users Users, events Events, log *zap.Logger) *Node {
	inv, reason, _ := prober.Inventory()
	return &Node{
		selector: selector, memory: memory, interval: interval, prober: prober, users: users, events: events, log: log,
		looked: make(chan struct{}), changed: make(chan struct{}), said: make(map[gpu.UUID]bool), view: view{inventory: inv, reason: reason},
	}
}

// Inventory returns the prober's GPUs that are gpumem's. Those that another has
// now are unhealthy. The channel is closed when any of this has changed.
func (n *Node) Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	inv = n.view.inventory
	inv.Devices = slices.Clone(inv.Devices)
	return inv, n.view.reason, n.changed
}

// ours returns what is left of the prober's GPUs for gpumem.
func (n *Node) ours(inv gpu.Inventory, reason string) view {
	all := len(inv.Devices)
	inv.Devices = slices.DeleteFunc(slices.Clone(inv.Devices), func(d gpu.Device) bool { return !n.selector.Selects(d) })
	inv.Links = slices.DeleteFunc(slices.Clone(inv.Links), func(l gpu.Link) bool {
		_, a := inv.Device(l.A)
		_, b := inv.Device(l.B)
		return !a || !b
	})
	if len(inv.Devices) == 0 && all > 0 {
		reason = fmt.Sprintf("none of the %d GPUs is among --devices", all)
	}
	for i := range inv.Devices {
		if d := &inv.Devices[i]; n.taken[d.UUID] != "" && d.Healthy {
			d.Healthy, d.Unhealthy = false, "in use as nvidia.com/gpu by pod "+n.taken[d.UUID]
		}
	}
	return view{inventory: inv, reason: reason}
}

// Looked is closed once Run has asked for the first time.
func (n *Node) Looked() <-chan struct{} { return n.looked }

// Run asks at an interval, and when there are other GPUs, until the context is
// done.
func (n *Node) Run(ctx context.Context) error {
	timer := time.NewTicker(n.interval)
	defer timer.Stop()
	for {
		changed := n.look(ctx)
		n.first.Do(func() { close(n.looked) })
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-timer.C:
		}
	}
}

// look asks who uses what, and publishes what has changed. It returns what is
// closed when there are other GPUs.
func (n *Node) look(ctx context.Context) <-chan struct{} {
	inv, reason, changed := n.prober.Inventory()
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	users, err := n.users.Users(asking)
	if err != nil { // the last answer holds
		n.log.Debug("who uses GPUs is not known", zap.Error(err))
		n.publish(n.ours(inv, reason))
		return changed
	}
	n.taken = takenBy(users)
	n.publish(n.ours(inv, reason))
	n.tell(inv, users[n.memory])
	return changed
}

// takenBy returns which GPUs are in use as nvidia.com/gpu, and by whom: of
// several, by the last in the alphabet.
func takenBy(users map[string]map[string]string) map[gpu.UUID]string {
	taken := make(map[gpu.UUID]string)
	for resource, by := range users {
		if !nvidiaGPU(resource) {
			continue
		}
		for id, pod := range by {
			uuid, _, _ := strings.Cut(id, "::")
			taken[gpu.UUID(uuid)] = max(taken[gpu.UUID(uuid)], pod)
		}
	}
	return taken
}

// publish makes a view known, if it is another.
func (n *Node) publish(now view) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if reflect.DeepEqual(n.view, now) {
		return
	}
	n.view = now
	close(n.changed)
	n.changed = make(chan struct{})
}

// tell says of which GPUs both have given something away.
func (n *Node) tell(inv gpu.Inventory, ours map[string]string) {
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		return // nothing of such a node is offered
	}
	pods := make(map[gpu.UUID][]string)
	for id, pod := range ours {
		if device, err := slots.Device(gpu.SlotID(id)); err == nil && !slices.Contains(pods[device.UUID], pod) {
			pods[device.UUID] = append(pods[device.UUID], pod)
		}
	}
	both := make(map[gpu.UUID]bool)
	for _, d := range inv.Devices {
		if n.taken[d.UUID] == "" || len(pods[d.UUID]) == 0 {
			continue
		}
		both[d.UUID] = true
		if n.said[d.UUID] {
			continue
		}
		slices.Sort(pods[d.UUID])
		n.log.Warn("GPU in use twice", zap.String("device", string(d.UUID)), zap.String("nvidia", n.taken[d.UUID]), zap.Strings("pods", pods[d.UUID]))
		n.events.Node(true, "GPUMemoryConflict", fmt.Sprintf(
			"GPU %d (%s) is in use twice: as nvidia.com/gpu by pod %s, and as %s by %s. Delete one of them, and split the GPUs between the two device plugins.",
			d.Index, d.UUID, n.taken[d.UUID], n.memory, strings.Join(pods[d.UUID], ", ")))
	}
	n.said = both
}
