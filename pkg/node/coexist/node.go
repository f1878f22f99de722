package coexist

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// Users are the containers that hold devices of the node's plugins.
type Users interface {
	// Users returns what the kubelet has given out of each resource, by device ID:
	// the pod, as namespace/name.
	Users(ctx context.Context) (map[string]map[string]string, error)
}

// Retired returns the pods or claims on each GPU, as namespace/name, that are clients of an MPS protocol which gpumem no
// longer runs.
// The map has the kubelet's device IDs of our resource, each with its pod.
type Retired func(inv gpu.Inventory, held map[string]string) map[gpu.UUID][]string

// askTime bounds a question to the kubelet.
const askTime = time.Second

const (
	// retryPause is the time between two questions to a kubelet that has never answered.
	retryPause = time.Second
	// firstPatience is how long the node repeats its first question before it publishes its GPUs as unhealthy.
	firstPatience = 10 * time.Second
)

// unanswered is the reason why a GPU takes no pods before the kubelet's first answer about PodResources.
const unanswered = "the kubelet has not reported yet which pods use it"

// nvidiaGPU is what NVIDIA's plugin calls GPUs, GPUs that it shares, and MIG instances.
func nvidiaGPU(resource string) bool {
	return resource == "nvidia.com/gpu" || resource == "nvidia.com/gpu.shared" || strings.HasPrefix(resource, "nvidia.com/mig-")
}

// Node is a prober's GPUs without those that are somebody else's.
type Node struct {
	selector Selector
	selected map[gpu.UUID]bool // by the index that a GPU had first: indexes move
	memory   string            // our resource
	interval time.Duration
	prober   inventory.Source
	users    Users
	events   event.Events
	log      *zap.Logger

	others *Published          // nil: they are not looked for
	said   map[gpu.UUID]bool   // the GPUs that were reported as given away by both
	taken  map[gpu.UUID]string // by whom, at the last look
	old    string              // the pods of gpushare on the node, at the last look

	findRetired Retired               // nil: they are not looked for
	retired     map[gpu.UUID][]string // at the last look

	answered bool      // the kubelet has reported the users of GPUs
	began    time.Time // when the first question was left unanswered
	gaveUp   bool      // the first question is repeated no sooner than others

	latest *inventory.Latest // what is gpumem's
}

// NewNode returns a node that knows of no other until it runs. Memory is the
// resource that gpumem offers.
func NewNode(selector Selector, memory string, interval time.Duration, prober inventory.Source, users Users, events event.Events, log *zap.Logger) *Node {
	inv, reason, _ := prober.Inventory()
	return &Node{
		selector: selector, memory: memory, interval: interval, prober: prober, users: users, events: events, log: log,
		said: make(map[gpu.UUID]bool), selected: make(map[gpu.UUID]bool), latest: inventory.NewLatest(inv, reason),
	}
}

// Heed has GPUs left alone that others publish. It is called before Run.
func (n *Node) Heed(others *Published) { n.others = others }

// Retire withdraws GPUs while they have clients of a retired MPS protocol. It is called before Run.
func (n *Node) Retire(find Retired) { n.findRetired = find }

// Inventory returns the prober's GPUs that are gpumem's. Those that another has
// now are unhealthy. The channel is closed when any of this has changed.
func (n *Node) Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{}) {
	return n.latest.Inventory()
}

// selects reports whether a GPU is gpumem's. It stays so, or another's, for as long as the process runs.
func (n *Node) selects(d gpu.Device) bool {
	is, known := n.selected[d.UUID]
	if !known {
		is = n.selector.Selects(d)
		n.selected[d.UUID] = is
	}
	return is
}

// ours returns what is left of the prober's GPUs for gpumem.
func (n *Node) ours(inv gpu.Inventory, reason string) (gpu.Inventory, string) {
	all := len(inv.Devices)
	inv.Devices = slices.DeleteFunc(slices.Clone(inv.Devices), func(d gpu.Device) bool { return !n.selects(d) })
	inv.Links = slices.DeleteFunc(slices.Clone(inv.Links), func(l gpu.Link) bool {
		_, a := inv.Device(l.A)
		_, b := inv.Device(l.B)
		return !a || !b
	})
	if len(inv.Devices) == 0 && all > 0 {
		reason = fmt.Sprintf("none of the %d GPUs is among --devices", all)
	}
	published := n.others.gpus()
	for i := range inv.Devices {
		d := &inv.Devices[i]
		switch by := cmp.Or(published[d.UUID], published[d.Parent]); {
		case !d.Status.Works():
		case !n.answered:
			d.Status = gpu.Unhealthy(unanswered)
		case n.old != "":
			d.Status = gpu.Unhealthy("in use by pods that gpushare placed: " + n.old)
		case n.taken[d.UUID] != "":
			d.Status = gpu.Unhealthy("in use as nvidia.com/gpu by pod " + n.taken[d.UUID])
		case len(n.retired[d.UUID]) > 0:
			d.Status = gpu.Unhealthy(retiredReason(n.retired[d.UUID]))
		case by != "":
			d.Status = gpu.Unhealthy("published by driver " + by + ", which hands it out")
		}
	}
	return inv, reason
}

// Looked is closed once the kubelet has answered Run, or has left its retries unanswered.
func (n *Node) Looked() <-chan struct{} { return n.latest.Looked() }

// Run asks at an interval, and when there are other GPUs, until the context is
// done.
func (n *Node) Run(ctx context.Context) error {
	if n.others != nil {
		if err := n.others.watch(ctx); err != nil {
			n.log.Info("it is not known what other drivers publish", zap.Error(err))
			return nil
		}
	}
	return inventory.Watch(ctx, n.interval, n.look)
}

// look asks who uses what, and publishes what has changed. It returns what is
// closed when there are other GPUs, or when the first question is to be repeated.
func (n *Node) look(ctx context.Context) <-chan struct{} {
	inv, reason, changed := n.prober.Inventory()
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	users, err := n.users.Users(asking)
	if err != nil { // the last answer holds
		n.log.Debug("who uses GPUs is not known", zap.Error(err))
		if retry := n.retry(inv, err); retry != nil {
			return retry
		}
		n.latest.Set(n.ours(inv, reason))
		return changed
	}
	n.answered = true
	n.taken, n.old = takenBy(users), gpusharePods(users)
	if n.findRetired != nil {
		n.retired = n.findRetired(inv, users[n.memory])
	}
	n.latest.Set(n.ours(inv, reason))
	n.tell(inv, users[n.memory])
	return changed
}

// retry returns a channel that is closed when the first question is to be repeated, and nil when the GPUs are to be published
// without an answer: there are none, the kubelet has answered before, or it has left all retries unanswered.
func (n *Node) retry(inv gpu.Inventory, err error) <-chan struct{} {
	if n.answered || n.gaveUp || len(inv.Devices) == 0 {
		return nil
	}
	if n.began.IsZero() {
		n.began = time.Now()
	}
	if time.Since(n.began) >= firstPatience {
		n.gaveUp = true
		n.log.Warn("GPUs are unhealthy until the kubelet reports which pods use them", zap.Error(err))
		return nil
	}
	again := make(chan struct{})
	time.AfterFunc(retryPause, func() { close(again) })
	return again
}

// retiredReason names the clients of a retired MPS protocol, and the remedy.
func retiredReason(clients []string) string {
	const shown = 8
	clients = slices.Sorted(slices.Values(clients))
	more := ""
	if len(clients) > shown {
		more = fmt.Sprintf(" and %d more", len(clients)-shown)
		clients = clients[:shown]
	}
	return "clients of MPS protocol 3, which gpumem no longer runs, use it: delete " + strings.Join(clients, ", ") + more
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

// gpusharePods names the first pods that hold IDs of gpushare's device plugin, and counts the others.
func gpusharePods(users map[string]map[string]string) string {
	const shown = 3
	pods := make(map[string]bool)
	for _, by := range users {
		for id, pod := range by {
			if gpu.SlotID(id).GPUShare() {
				pods[pod] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(pods))
	if len(names) > shown {
		names = append(names[:shown], fmt.Sprintf("%d more", len(names)-shown))
	}
	return strings.Join(names, ", ")
}

// tell names the GPUs that both have given something away of.
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
		n.events.Node(event.Conflict, fmt.Sprintf(
			"GPU %d (%s) is in use twice: as nvidia.com/gpu by pod %s, and as %s by %s. Delete one of them, and split the GPUs between the two device plugins.",
			d.Index, d.UUID, n.taken[d.UUID], n.memory, strings.Join(pods[d.UUID], ", ")))
	}
	n.said = both
}
