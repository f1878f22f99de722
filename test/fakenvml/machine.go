package fakenvml

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// State is what a GPU does when it is asked something.
type State string

// What a GPU can do.
const (
	OK           State = "ok"
	Lost         State = "lost"          // every call answers GPU_IS_LOST
	Hang         State = "hang"          // every call blocks for GPU.HangSeconds
	UnknownError State = "unknown-error" // every call answers UNKNOWN
	NotSupported State = "not-supported" // every call answers NOT_SUPPORTED
)

// Machine is a whole configuration file.
type Machine struct {
	DriverVersion     string  `json:"driverVersion,omitempty"`
	NVMLVersion       string  `json:"nvmlVersion,omitempty"`
	CUDADriverVersion int     `json:"cudaDriverVersion,omitempty"`
	DriverLoaded      *bool   `json:"driverLoaded,omitempty"` // nil: true
	InitReturn        uint32  `json:"initReturn,omitempty"`   // what nvmlInit answers; 0: success
	GPUs              []GPU   `json:"gpus"`
	Events            []Event `json:"events,omitempty"`
}

// GPU is one device; its index is its position. Only UUID, Model and MemoryMiB are required.
type GPU struct {
	UUID              string     `json:"uuid"`
	Model             string     `json:"model"`
	Name              string     `json:"name,omitempty"` // empty: Model
	MemoryMiB         int64      `json:"memoryMiB"`
	ReservedMiB       int64      `json:"reservedMiB,omitempty"`
	UsedMiB           *int64     `json:"usedMiB,omitempty"` // nil: the sum over Processes
	BAR1MiB           int64      `json:"bar1MiB,omitempty"`
	Minor             *int       `json:"minor,omitempty"`             // nil: the index
	NUMANode          *int       `json:"numaNode,omitempty"`          // nil: 0; -1: the machine has no NUMA
	GPUMemoryNUMANode *int       `json:"gpuMemoryNumaNode,omitempty"` // coherent machines only
	CPUAffinity       string     `json:"cpuAffinity,omitempty"`       // "0-15,32-47"; empty: all
	PCI               string     `json:"pci,omitempty"`               // "00000000:3B:00.0"
	PCIDeviceID       uint32     `json:"pciDeviceId,omitempty"`
	PCISubsystemID    uint32     `json:"pciSubsystemId,omitempty"`
	ComputeCapability string     `json:"computeCapability,omitempty"`
	Brand             string     `json:"brand,omitempty"`
	SMs               int        `json:"smCount,omitempty"` // streaming multiprocessors; 0: 80
	MIGMode           bool       `json:"migMode,omitempty"`
	PersistenceMode   *bool      `json:"persistenceMode,omitempty"` // nil: true
	ECCMode           *bool      `json:"eccMode,omitempty"`         // nil: true, but not for GeForce
	UtilizationGPU    int        `json:"utilizationGpu,omitempty"`
	UtilizationMemory int        `json:"utilizationMemory,omitempty"`
	ECCCorrected      int64      `json:"eccCorrected,omitempty"`
	ECCUncorrected    int64      `json:"eccUncorrected,omitempty"`
	NVLinks           []NVLink   `json:"nvlinks,omitempty"`
	Topology          []Topology `json:"topology,omitempty"`
	Processes         []Process  `json:"processes,omitempty"`
	State             State      `json:"state,omitempty"`
	HangSeconds       float64    `json:"hangSeconds,omitempty"` // 0: until the state changes
	ComputeMode       int        `json:"computeMode,omitempty"`
	Temperature       int        `json:"temperature,omitempty"`
	PowerW            float64    `json:"powerW,omitempty"`
	PowerLimitW       float64    `json:"powerLimitW,omitempty"`
	Serial            string     `json:"serial,omitempty"`
	VBIOS             string     `json:"vbios,omitempty"`
	MIGDevices        []MIG      `json:"migDevices,omitempty"` // while MIGMode is on
}

// MIG is a MIG device of a GPU: a compute instance that has the whole of its GPU instance. What it
// does not say is as with its GPU.
type MIG struct {
	UUID        string    `json:"uuid"`
	Profile     string    `json:"profile"` // for example 1g.5gb
	MemoryMiB   int64     `json:"memoryMiB"`
	ReservedMiB int64     `json:"reservedMiB,omitempty"`
	UsedMiB     *int64    `json:"usedMiB,omitempty"` // nil: the sum over Processes
	SMs         int       `json:"smCount,omitempty"` // 0: 14
	Slices      int       `json:"slices,omitempty"`  // of the GPU's compute slices; 0: 1
	Processes   []Process `json:"processes,omitempty"`
}

// Process is one process on a GPU.
type Process struct {
	PID     uint32 `json:"pid"`
	UsedMiB int64  `json:"usedMiB"`
	Type    string `json:"type,omitempty"` // compute (default), graphics, mps, or several joined by +
	SMUtil  int    `json:"smUtil,omitempty"`
	MemUtil int    `json:"memUtil,omitempty"`
	Name    string `json:"name,omitempty"`
}

// NVLink is one link of a GPU; its number is its position.
type NVLink struct {
	PeerPCI string `json:"peerPci"`          // of another GPU, or else of an NVSwitch
	Active  *bool  `json:"active,omitempty"` // nil: true
}

// Topology says how near another GPU is: internal, single, multiple, hostbridge, node or system.
type Topology struct {
	Peer  string `json:"peer"` // UUID
	Level string `json:"level"`
}

// Event is delivered once to every event set that is older than it and has its GPU registered.
type Event struct {
	Seq  uint64 `json:"seq"` // rising from 1
	XID  uint32 `json:"xid,omitempty"`
	GPU  string `json:"gpu"`            // UUID
	Type string `json:"type,omitempty"` // xid (default), single-bit-ecc, double-bit-ecc, nvlink
}

// NewMachine returns a machine with these GPUs. It fixes the minor number and the PCI address
// of each, so that they do not move when a GPU is taken out of the list.
func NewMachine(gpus ...GPU) Machine {
	m := Machine{GPUs: gpus}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if g.Minor == nil {
			g.Minor = new(i)
		}
		if g.PCI == "" {
			g.PCI = fmt.Sprintf("%08X:%02X:00.0", i/0xE0, i%0xE0+0x10)
		}
	}
	return m
}

// WriteConfig replaces the file at path in one step: a reader sees the old machine or the new one.
func WriteConfig(path string, m Machine) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, and then nothing is left to remove
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
