package nvml

import (
	"testing"
	"testing/synctest"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

func to(index int) nvlink { return nvlink{to: busOf(index)} }

func toSwitch() nvlink {
	return nvlink{to: "00000000:C0:00.0", kind: nvml.NVLINK_DEVICE_TYPE_SWITCH}
}

func TestLinks(t *testing.T) {
	off := to(1)
	off.inactive = true
	tests := map[string]struct {
		nvlinks [][]nvlink // of each GPU: GPU-0, GPU-1, …
		want    []gpu.Link
	}{
		"none":                             {nvlinks: [][]nvlink{nil, nil}},
		"two between two of three":         {nvlinks: [][]nvlink{{to(2), to(2)}, nil, {to(0), to(0)}}, want: []gpu.Link{{A: "GPU-0", B: "GPU-2", Lanes: 2}}},
		"an end that tells nothing":        {nvlinks: [][]nvlink{{to(1)}, nil}, want: []gpu.Link{{A: "GPU-0", B: "GPU-1", Lanes: 1}}},
		"one of two is down":               {nvlinks: [][]nvlink{{off, to(1)}, {to(0)}}, want: []gpu.Link{{A: "GPU-0", B: "GPU-1", Lanes: 1}}},
		"all are down":                     {nvlinks: [][]nvlink{{off}, nil}},
		"to something else":                {nvlinks: [][]nvlink{{{to: "00000000:AA:00.0"}}, nil}},
		"a switch joins those at it":       {nvlinks: [][]nvlink{{toSwitch(), toSwitch()}, {toSwitch(), toSwitch()}, nil}, want: []gpu.Link{{A: "GPU-0", B: "GPU-1", Lanes: 2}}},
		"no more lanes than both have":     {nvlinks: [][]nvlink{{toSwitch(), toSwitch()}, {toSwitch()}}, want: []gpu.Link{{A: "GPU-0", B: "GPU-1", Lanes: 1}}},
		"each pair once, in their order":   {nvlinks: [][]nvlink{{to(2), to(1)}, {to(0), to(2)}, {to(1), to(0)}}, want: []gpu.Link{{A: "GPU-0", B: "GPU-1", Lanes: 1}, {A: "GPU-0", B: "GPU-2", Lanes: 1}, {A: "GPU-1", B: "GPU-2", Lanes: 1}}},
		"a GPU that is linked to no other": {nvlinks: [][]nvlink{{to(1)}, {to(0)}, nil}, want: []gpu.Link{{A: "GPU-0", B: "GPU-1", Lanes: 1}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cards []*card
				for i, links := range tc.nvlinks {
					c := t4("GPU-" + string(rune('0'+i)))
					c.nvlinks = links
					cards = append(cards, c)
				}
				p, _ := watched(t, config(newMachine(cards...).open))
				inv, _, _ := p.Inventory()
				if diff := cmp.Diff(tc.want, inv.Links); diff != "" {
					t.Errorf("links (-want +got):\n%s", diff)
				}
				if err := api.ValidateInventory(inv); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestALinkThatFailsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := t4("GPU-a"), t4("GPU-b")
		a.nvlinks, b.nvlinks = []nvlink{to(1)}, []nvlink{to(0)}
		m := newMachine(a, b)
		p, _ := watched(t, config(m.open))
		_, _, changed := p.Inventory()
		m.change(func() { a.nvlinks, b.nvlinks = nil, nil })
		pass(2 * interval)
		select {
		case <-changed:
		default:
			t.Error("the inventory has not changed")
		}
		if inv, _, _ := p.Inventory(); len(inv.Links) != 0 || !inv.Devices[0].Status.TakesPods() {
			t.Errorf("links %v, health %v; want none, and the GPUs as healthy as before", inv.Links, health(p))
		}
	})
}
