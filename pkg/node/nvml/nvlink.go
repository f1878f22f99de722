package nvml

import (
	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// nvlinks says where the active NVLinks of a GPU lead.
type nvlinks struct {
	to       map[string]int // how many to each other GPU, by its bus address
	switches int            // how many to NVSwitches, which lead to all others
}

func (s *session) nvlinks(handle nvml.Device) nvlinks {
	out := nvlinks{to: make(map[string]int)}
	for link := range nvml.NVLINK_MAX_LINKS {
		if state, ret := handle.GetNvLinkState(link); ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue // numbers can have gaps
		}
		if s.nvlinkType {
			if kind, ret := handle.GetNvLinkRemoteDeviceType(link); ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				out.switches++
				continue
			}
		}
		if pci, ret := handle.GetNvLinkRemotePciInfo(link); ret == nvml.SUCCESS {
			out.to[busID(pci)]++
		}
	}
	return out
}

// links returns the pairs of devices that NVLinks join, by index. One end that
// tells of a link is enough.
func links(devices []*tracked) []gpu.Link {
	var out []gpu.Link
	for i, b := range devices {
		for _, a := range devices[:i] {
			if a.instance != nil || b.instance != nil {
				continue // of a GPU in MIG mode NVLinks are off
			}
			lanes := max(a.nvlinks.to[b.PCI], b.nvlinks.to[a.PCI])
			if lanes == 0 {
				lanes = min(a.nvlinks.switches, b.nvlinks.switches)
			}
			if lanes > 0 {
				out = append(out, gpu.Link{A: a.UUID, B: b.UUID, Lanes: lanes})
			}
		}
	}
	return out
}
