package grants

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// Offer is what the plugin advertises: what there is, or nothing. It is not to be changed.
type Offer struct {
	Inventory gpu.Inventory
	Slots     *gpu.Slots // of Inventory
	Why       string     // why nothing is offered; empty when something is
	Refused   bool       // there is something that could not be offered: a mistake to put right
}

// newOffer decides what to advertise of the GPUs that were found. The reason is
// why there is none.
func newOffer(inv gpu.Inventory, reason string) Offer {
	nothing := func(why string) Offer {
		refused := len(inv.Devices) > 0
		inv.Devices, inv.Links = nil, nil
		slots, _ := gpu.NewSlots(inv) // of no device: nothing to fail
		return Offer{Inventory: inv, Slots: slots, Why: why, Refused: refused}
	}
	if len(inv.Devices) == 0 {
		return nothing(reason)
	}
	if err := api.ValidateInventory(inv); err != nil {
		return nothing(fmt.Sprintf("NVML's answers make no sense: %v", err))
	}
	slots, err := gpu.NewSlots(inv)
	if err != nil {
		return nothing(err.Error())
	}
	if size := listSize(inv, slots); size > messageLimit {
		return nothing(fmt.Sprintf(
			"units of %d MiB make %d devices, a message of %d bytes, and the kubelet receives %d at most: use --unit-mib=%d or more",
			inv.UnitMiB, inv.Allocatable(), size, messageLimit, smallestUnit(usable(inv), messageLimit)))
	}
	if inv.Allocatable() == 0 {
		return nothing(fmt.Sprintf("no GPU has a whole unit of %d MiB to give", cmp.Or(inv.UnitMiB, gpu.SharesPerDevice)))
	}
	return Offer{Inventory: inv, Slots: slots}
}

// usable returns the memory of each GPU that could be given away, in MiB. What
// the floor cut off may count again in a smaller unit.
func usable(inv gpu.Inventory) []int64 {
	out := make([]int64, 0, len(inv.Devices))
	for _, d := range inv.Devices {
		out = append(out, min(d.MemoryMiB, (int64(d.Allocatable)+1)*inv.UnitMiB-1))
	}
	return out
}

// List returns what is offered of a resource as the kubelet takes it.
func (o Offer) List(r gpu.Resource) *pluginapi.ListAndWatchResponse {
	out := &pluginapi.ListAndWatchResponse{}
	for _, d := range o.Inventory.Devices {
		health := pluginapi.Unhealthy
		if d.Advertised() {
			health = pluginapi.Healthy
		}
		for _, id := range o.Slots.Of(r, d.UUID) {
			out.Devices = append(out.Devices, &pluginapi.Device{ID: string(id), Health: health})
		}
	}
	return out
}

// Offers keeps the offer of a source's GPUs. It is computed when the source has other GPUs. It is
// safe for concurrent use.
type Offers struct {
	source   inventory.Source
	coreless bool

	mu      sync.Mutex // guards the rest
	made    bool
	changed <-chan struct{} // the source's, which came with what was offered last
	last    Offer
}

// NewOffers returns the offer of a source's GPUs. A coreless one has schedulers give no cores of
// the node to pods.
func NewOffers(source inventory.Source, coreless bool) *Offers {
	return &Offers{source: source, coreless: coreless}
}

// Now returns what is offered, and a channel that is closed when that may be something else.
func (o *Offers) Now() (Offer, <-chan struct{}) {
	inv, reason, changed := o.source.Inventory()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.made || changed != o.changed {
		o.made, o.changed, o.last = true, changed, newOffer(inv, reason)
	}
	return o.last, changed
}

// Alive returns unless the lock is never released.
func (o *Offers) Alive() {
	o.mu.Lock()
	defer o.mu.Unlock()
}

// Inventory returns what is offered as schedulers are to hear of it, and a channel that is closed
// when that may have changed.
func (o *Offers) Inventory() (gpu.Inventory, <-chan struct{}) {
	offer, changed := o.Now()
	inv := offer.Inventory
	inv.Devices = slices.Clone(inv.Devices) // the reader's own
	inv.Coreless = o.coreless
	return inv, changed
}
