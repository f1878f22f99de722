package deviceplugin

import (
	"testing"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// What is offered is worked out when there are other GPUs, and not for each who asks.
func TestAnOfferIsMadeWhenTheGPUsChange(t *testing.T) {
	prober := newProber(twoGPUs())
	o := &offers{source: prober}
	first, changed := o.now()
	if again, _ := o.now(); again.slots != first.slots || closed(changed) {
		t.Error("an offer is worked out again for the same GPUs")
	}
	prober.set(func(inv *gpu.Inventory) { inv.Devices = inv.Devices[:1] })
	if now, _ := o.now(); now.slots == first.slots || len(now.inventory.Devices) != 1 || !closed(changed) {
		t.Errorf("offered of another inventory: %v", now.inventory.Devices)
	}
	prober.set(func(inv *gpu.Inventory) { inv.Devices[0].Capacity = -1 })
	if now, _ := o.now(); now.why == "" || !now.refused {
		t.Errorf("what makes no sense is offered: %+v", now)
	}
}
