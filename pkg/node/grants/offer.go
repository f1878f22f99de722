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

// Offer is the inventory that the plugin advertises, or an empty one with a reason. It must not be modified.
type Offer struct {
	Inventory gpu.Inventory
	Slots     *gpu.Slots // for Inventory
	Reason    string     // reason for an empty offer; otherwise empty
	Refused   bool       // the node has GPUs but cannot offer them: somebody must correct the cause
}

// newOffer returns the offer for an inventory. The text `reason` explains an inventory without GPUs.
func newOffer(inv gpu.Inventory, reason string) Offer {
	nothing := func(why string) Offer {
		refused := len(inv.Devices) > 0
		inv.Devices, inv.Links = nil, nil
		slots, _ := gpu.NewSlots(inv) // cannot fail without devices
		return Offer{Inventory: inv, Slots: slots, Reason: why, Refused: refused}
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

// usable returns the memory that each GPU could offer with a smaller unit, in MiB: its units, and the largest
// possible remainder below one unit.
func usable(inv gpu.Inventory) []int64 {
	out := make([]int64, 0, len(inv.Devices))
	for _, d := range inv.Devices {
		out = append(out, min(d.MemoryMiB, (int64(d.Allocatable)+1)*inv.UnitMiB-1))
	}
	return out
}

// List returns the kubelet's device list of a resource.
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

// Offers computes the offer for a source's inventory, and recomputes it when the source changes. It is safe for
// concurrent use.
type Offers struct {
	source   inventory.Source
	coreless bool

	mu            sync.Mutex // guards the rest
	computed      bool
	sourceChanged <-chan struct{} // the source's channel for the last offer
	current       Offer
}

// NewOffers returns the offers for a source. If coreless is true, schedulers allocate no cores of the node.
func NewOffers(source inventory.Source, coreless bool) *Offers {
	return &Offers{source: source, coreless: coreless}
}

// Current returns the current offer, and a channel that is closed when it may have changed.
func (o *Offers) Current() (Offer, <-chan struct{}) {
	inv, reason, changed := o.source.Inventory()
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.computed || changed != o.sourceChanged {
		o.computed, o.sourceChanged, o.current = true, changed, newOffer(inv, reason)
	}
	return o.current, changed
}

// CheckLock blocks while the lock is held: see State.CheckLock.
func (o *Offers) CheckLock() {
	o.mu.Lock()
	defer o.mu.Unlock()
}

// Inventory returns the offered inventory for schedulers, and a channel that is closed when it may have
// changed.
func (o *Offers) Inventory() (gpu.Inventory, <-chan struct{}) {
	offer, changed := o.Current()
	inv := offer.Inventory
	inv.Devices = slices.Clone(inv.Devices) // a copy for the caller
	inv.Coreless = o.coreless
	return inv, changed
}
