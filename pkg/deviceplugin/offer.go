package deviceplugin

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/inventory"
)

// offer is what the plugin advertises: what there is, or nothing.
type offer struct {
	inventory gpu.Inventory
	slots     *gpu.Slots
	why       string // why nothing is offered; empty when something is
	refused   bool   // there is something that could not be offered
}

// newOffer decides what to advertise of the GPUs that were found. The reason is
// why there is none.
func newOffer(inv gpu.Inventory, reason string) offer {
	nothing := func(why string) offer {
		refused := len(inv.Devices) > 0
		inv.Devices, inv.Links = nil, nil
		slots, _ := gpu.NewSlots(inv) // of no device: nothing to fail
		return offer{inventory: inv, slots: slots, why: why, refused: refused}
	}
	if len(inv.Devices) == 0 {
		return nothing(reason)
	}
	if err := inv.Validate(); err != nil {
		return nothing(fmt.Sprintf("NVML's answers make no sense: %v", err))
	}
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		return nothing(err.Error())
	}
	if size := listSize(inv, slots); size > messageLimit {
		return nothing(fmt.Sprintf(
			"units of %d MiB make %d devices, a message of %d bytes, and the kubelet receives %d at most: use --unit-mib=%d or more",
			inv.UnitMiB, inv.Capacity(), size, messageLimit, smallestUnit(usable(inv), messageLimit)))
	}
	if inv.Capacity() == 0 {
		return nothing(fmt.Sprintf("no GPU has a whole unit of %d MiB to give", inv.UnitMiB))
	}
	return offer{inventory: inv, slots: slots}
}

// usable returns the memory of each GPU that could be given away, in MiB. What
// the floor cut off may count again in a smaller unit.
func usable(inv gpu.Inventory) []int64 {
	out := make([]int64, 0, len(inv.Devices))
	for _, d := range inv.Devices {
		out = append(out, min(d.MemoryMiB, (int64(d.Capacity)+1)*inv.UnitMiB-1))
	}
	return out
}

// list returns what is offered of a resource as the kubelet takes it.
func (o offer) list(r gpu.Resource) *pluginapi.ListAndWatchResponse {
	out := &pluginapi.ListAndWatchResponse{}
	for _, d := range o.inventory.Devices {
		health := pluginapi.Unhealthy
		if d.Advertised() {
			health = pluginapi.Healthy
		}
		for _, id := range o.slots.Of(r, d.UUID) {
			out.Devices = append(out.Devices, &pluginapi.Device{ID: string(id), Health: health})
		}
	}
	return out
}

// offers keeps what is offered of a source's GPUs. It is worked out when the source has
// others: a reader waits for nothing but the source.
type offers struct {
	source inventory.Source

	mu      sync.Mutex // guards the rest
	made    bool
	changed <-chan struct{} // the source's, which came with what was offered last
	last    offer
}

// now returns what is offered, and a channel that is closed when that may be something else.
func (o *offers) now() (offer, <-chan struct{}) {
	inv, reason, changed := o.source.Inventory()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.made || changed != o.changed {
		o.made, o.changed, o.last = true, changed, newOffer(inv, reason)
	}
	return o.last, changed
}

func (p *Plugin) offer() (offer, <-chan struct{}) { return p.offers.now() }

// Inventory returns what the plugin advertises, and a channel that is closed
// when that may have changed.
func (p *Plugin) Inventory() (gpu.Inventory, <-chan struct{}) {
	o, changed := p.offer()
	o.inventory.Devices = slices.Clone(o.inventory.Devices) // the reader's own
	o.inventory.Coreless = p.cfg.Coreless
	return o.inventory, changed
}

// Nothing says why the plugin offers nothing, and whether that is a mistake to
// put right rather than a node without a GPU.
func (p *Plugin) Nothing() (why string, mistake bool) {
	o, _ := p.offer()
	return o.why, o.refused
}

// Announce logs when what is there cannot be offered, and says so on the node.
// It returns when the context is done.
func (p *Plugin) Announce(ctx context.Context) error {
	for said := ""; ; {
		o, changed := p.offer()
		if o.refused && o.why != said {
			p.log.Error("nothing is offered", zap.String("node", p.cfg.Node), zap.String("reason", o.why))
			p.events.Node(true, "GPUMemoryNotOffered", o.why)
		}
		said = o.why
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
