package fakenvml

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

// The presets carry the names that NVIDIA's driver prints and the totals that NVML reports,
// which are less than the nominal size on some models. ReservedMiB is plausible, no more:
// it differs between driver versions.

// UUID returns a UUID for the GPU called name: the same at every call.
func UUID(name string) string {
	h := sha256.Sum256([]byte(name))
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// Each makes a GPU of its model whose UUID follows from a name.
var (
	T4         = preset(GPU{Model: "Tesla T4", MemoryMiB: 15360, ReservedMiB: 450, BAR1MiB: 256, ComputeCapability: "7.5", SMs: 40, PCIDeviceID: 0x1EB810DE, PowerW: 27, PowerLimitW: 70})
	V100_16GB  = preset(GPU{Model: "Tesla V100-SXM2-16GB", MemoryMiB: 16384, ReservedMiB: 224, BAR1MiB: 16384, ComputeCapability: "7.0", SMs: 80, PCIDeviceID: 0x1DB110DE, PowerW: 42, PowerLimitW: 300}) // of the SXM2 form
	A10        = preset(GPU{Model: "NVIDIA A10", MemoryMiB: 23028, ReservedMiB: 297, BAR1MiB: 32768, ComputeCapability: "8.6", SMs: 72, PCIDeviceID: 0x223610DE, PowerW: 22, PowerLimitW: 150})
	A100_40GB  = preset(GPU{Model: "NVIDIA A100-SXM4-40GB", MemoryMiB: 40960, ReservedMiB: 569, BAR1MiB: 65536, ComputeCapability: "8.0", SMs: 108, PCIDeviceID: 0x20B010DE, PowerW: 52, PowerLimitW: 400}) // of the SXM4 form, as the next
	A100_80GB  = preset(GPU{Model: "NVIDIA A100-SXM4-80GB", MemoryMiB: 81920, ReservedMiB: 693, BAR1MiB: 131072, ComputeCapability: "8.0", SMs: 108, PCIDeviceID: 0x20B210DE, PowerW: 61, PowerLimitW: 400})
	L4         = preset(GPU{Model: "NVIDIA L4", MemoryMiB: 23034, ReservedMiB: 464, BAR1MiB: 32768, ComputeCapability: "8.9", SMs: 58, PCIDeviceID: 0x27B810DE, PowerW: 16, PowerLimitW: 72})
	L40S       = preset(GPU{Model: "NVIDIA L40S", MemoryMiB: 46068, ReservedMiB: 568, BAR1MiB: 65536, ComputeCapability: "8.9", SMs: 142, PCIDeviceID: 0x26B910DE, PowerW: 35, PowerLimitW: 350})
	H100       = preset(GPU{Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559, ReservedMiB: 551, BAR1MiB: 131072, ComputeCapability: "9.0", SMs: 132, PCIDeviceID: 0x233010DE, PowerW: 70, PowerLimitW: 700}) // of the SXM5 form, as the next
	H200       = preset(GPU{Model: "NVIDIA H200", MemoryMiB: 143771, ReservedMiB: 597, BAR1MiB: 262144, ComputeCapability: "9.0", SMs: 132, PCIDeviceID: 0x233510DE, PowerW: 77, PowerLimitW: 700})
	RTX4090    = preset(GPU{Model: "NVIDIA GeForce RTX 4090", MemoryMiB: 24564, ReservedMiB: 348, BAR1MiB: 32768, ComputeCapability: "8.9", SMs: 128, PCIDeviceID: 0x268410DE, PowerW: 25, PowerLimitW: 450})                        // with no serial number, and no ECC by default
	RTXPRO6000 = preset(GPU{Model: "NVIDIA RTX PRO 6000 Blackwell Server Edition", MemoryMiB: 97887, ReservedMiB: 600, BAR1MiB: 131072, ComputeCapability: "12.0", SMs: 188, PCIDeviceID: 0x2BB510DE, PowerW: 35, PowerLimitW: 600}) // on which NVIDIA measured limits of memory
)

func preset(g GPU) func(name string) GPU {
	return func(name string) GPU {
		one := g
		if one.UUID = UUID(name); !strings.Contains(g.Model, "GeForce") {
			one.Serial = serial(name)
		}
		return one
	}
}

// A100InSevenths returns an A100 with 40 GB in MIG mode, in seven parts (NVIDIA, "Multi-Instance GPU",
// profile 1g.5gb). Their UUIDs follow from name.
func A100InSevenths(name string) GPU {
	g := A100_40GB(name)
	g.MIGMode = true
	for i := range 7 {
		g.MIGDevices = append(g.MIGDevices, MIG{
			UUID:    strings.Replace(UUID(fmt.Sprintf("%s/%d", name, i)), "GPU-", "MIG-", 1),
			Profile: "1g.5gb", MemoryMiB: 4864, ReservedMiB: 12, SMs: 14, Slices: 1,
		})
	}
	return g
}

// DGX1 returns the eight V100 of a DGX-1, four on each NUMA node, with the six
// NVLinks that each has to others: a hybrid cube mesh (NVIDIA, "DGX-1 With Tesla
// V100 System Architecture"). Their UUIDs follow from name.
func DGX1(name string) []GPU {
	gpus := make([]GPU, 8)
	for i := range gpus {
		gpus[i] = V100_16GB(fmt.Sprint(name, "-", i))
		gpus[i].NUMANode = new(i / 4)
	}
	gpus = NewMachine(gpus...).GPUs
	for _, l := range [][3]int{
		{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {1, 2, 2}, {1, 3, 1}, {2, 3, 2},
		{4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2},
		{0, 4, 2}, {1, 5, 2}, {2, 6, 1}, {3, 7, 1},
	} {
		a, b := &gpus[l[0]], &gpus[l[1]]
		for range l[2] {
			a.NVLinks = append(a.NVLinks, NVLink{PeerPCI: b.PCI})
			b.NVLinks = append(b.NVLinks, NVLink{PeerPCI: a.PCI})
		}
	}
	return gpus
}

func serial(name string) string {
	h := sha256.Sum256([]byte("serial " + name))
	return fmt.Sprintf("13%011d", (uint64(h[0])<<32|uint64(h[1])<<24|uint64(h[2])<<16|uint64(h[3])<<8|uint64(h[4]))%1e11)
}
