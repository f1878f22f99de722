package grants

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// Offers computes an offer when the GPUs change, and not for each reader.
func TestAnOfferIsMadeWhenTheGPUsChange(t *testing.T) {
	source := plugintest.NewSource(plugintest.TwoGPUs())
	o := NewOffers(source, false)
	first, changed := o.Current()
	if again, _ := o.Current(); again.Slots != first.Slots || plugintest.IsClosed(changed) {
		t.Error("an offer is computed again for the same GPUs")
	}
	source.Set(func(inv *gpu.Inventory) { inv.Devices = inv.Devices[:1] })
	if now, _ := o.Current(); now.Slots == first.Slots || len(now.Inventory.Devices) != 1 || !plugintest.IsClosed(changed) {
		t.Errorf("offered of another inventory: %v", now.Inventory.Devices)
	}
	source.Set(func(inv *gpu.Inventory) { inv.Devices[0].Allocatable = -1 })
	if now, _ := o.Current(); now.Reason == "" || !now.Refused {
		t.Errorf("what makes no sense is offered: %+v", now)
	}
}

// On a node whose GPUs have no whole unit, somebody must correct the cause (Refused). On a node without GPUs,
// nobody must.
func TestOffersOfNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		inv     gpu.Inventory
		why     string
		refused bool
	}{
		"no GPU":                  {gpu.Inventory{UnitMiB: 1024}, "the driver is not loaded", false},
		"GPUs that are too small": {gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-a", MemoryMiB: 512, NUMANode: -1}}}, "no GPU has a whole unit of 1024 MiB to give", true},
	} {
		o := newOffer(tc.inv, "the driver is not loaded")
		if o.Reason != tc.why || o.Refused != tc.refused || len(o.Inventory.Devices) > 0 || len(o.List(gpu.Memory).GetDevices()) > 0 {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// fresh is a source whose GPUs change with every call.
type fresh struct{}

func (fresh) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	return plugintest.TwoGPUs(), "", make(chan struct{})
}

// TestReadersOfAnOffer reads an offer concurrently. The race detector checks the lock of Offers, because the
// source has none.
func TestReadersOfAnOffer(t *testing.T) {
	o := NewOffers(fresh{}, true)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			if inv, _ := o.Inventory(); !inv.Coreless || len(inv.Devices) != 2 {
				t.Errorf("offered %+v", inv)
			}
		})
	}
	readers.Wait()
}

// Eight GPUs of 141 GB with a unit of 1 MiB would make a device list that the kubelet drops silently. The offer
// is then empty, and its reason names a unit that fits. With that unit, and with the default unit, the message
// is within the kubelet's limit.
func TestEightLargeGPUsInSmallUnits(t *testing.T) {
	const mib = 144384 // 141 GiB
	offerIn := func(unit int64) Offer {
		inv := gpu.Inventory{UnitMiB: unit}
		for i := range 8 {
			inv.Devices = append(inv.Devices, gpu.Device{
				UUID: gpu.UUID(fmt.Sprintf("GPU-%08x-0000-0000-0000-000000000000", i)), Index: i, Model: "NVIDIA H200",
				MemoryMiB: mib, Allocatable: gpu.UnitsIn(mib, 0, unit), NUMANode: -1,
			})
		}
		return newOffer(inv, "")
	}
	tooSmall := offerIn(1)
	var suggested int64
	_, advice, ok := strings.Cut(tooSmall.Reason, "use --unit-mib=")
	if _, err := fmt.Sscanf(advice, "%d or more", &suggested); err != nil || !ok || len(tooSmall.List(gpu.Memory).GetDevices()) != 0 {
		t.Fatalf("offered %d devices, and said %q", len(tooSmall.List(gpu.Memory).GetDevices()), tooSmall.Reason)
	}
	for _, unit := range []int64{suggested, 256, 1024} {
		o := offerIn(unit)
		list := o.List(gpu.Memory)
		if size := proto.Size(list); o.Reason != "" || size > messageLimit || len(list.GetDevices()) != 8*int(mib/unit) {
			t.Errorf("unit of %d MiB: %d devices in %d bytes, %q", unit, len(list.GetDevices()), size, o.Reason)
		}
	}
	if o := offerIn(suggested - 1); o.Reason == "" {
		t.Errorf("a unit of %d MiB would have done, and %d was suggested", suggested-1, suggested)
	}
}
