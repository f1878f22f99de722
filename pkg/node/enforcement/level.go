package enforcement

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Mode is which level a node is to have: one of the levels, or Auto.
type Mode string

// Auto is the strongest level that the node can prove.
const Auto Mode = "auto"

// ParseMode reads a mode by its name.
func ParseMode(s string) (Mode, error) {
	if Mode(s) == Auto {
		return Auto, nil
	}
	if level, err := gpu.ParseEnforcement(s); err == nil {
		return Mode(level), nil
	}
	return "", fmt.Errorf("enforcement %q: want auto, kernel, mps or advisory", s)
}

const (
	minDriver     gpu.Version = "615" // with memory partitioning
	minCapability gpu.Version = "7.0" // Volta: MPS with limits for each client
)

// Facts is what a node has shown. Each error says what is missing; nil says that
// it is there.
type Facts struct {
	Driver  string // version
	Devices []gpu.Device

	Dmem    error // the dmem controller, of cgroup v2
	Regions []Region
	Written error // of the last limit that was to be written or read back

	Hook error // of NVIDIA's container toolkit
	NRI  error // the container runtime calls the plugin

	MPS        error // the MPS daemon
	Accounting bool  // it accounts for memory
}

// Verdict is what holds on a node.
type Verdict struct {
	Level  gpu.Enforcement
	Kernel error // why the kernel does not hold containers to their grants; nil where it does
	MPS    error // the same of MPS
	Writes bool  // at level kernel, nobody but the plugin writes the limits
}

// Judge returns the strongest level that the facts prove.
func Judge(f Facts) Verdict {
	v := Verdict{Level: gpu.EnforcementAdvisory, Kernel: f.kernel(), MPS: f.mps(), Writes: f.Hook != nil}
	switch {
	case v.Kernel == nil:
		v.Level = gpu.EnforcementKernel
	case v.MPS == nil:
		v.Level = gpu.EnforcementMPS
	}
	return v
}

// Weaker says why the level is no stronger; it is empty for the strongest.
func (v Verdict) Weaker() string {
	var parts []string
	if v.MPS != nil && v.Level != gpu.EnforcementKernel {
		parts = append(parts, "mps: "+v.MPS.Error())
	}
	if v.Kernel != nil {
		parts = append(parts, "kernel: "+v.Kernel.Error())
	}
	return strings.Join(parts, "; ")
}

// lacks says why a node does not have the level that it was told to have.
func (v Verdict) lacks(want gpu.Enforcement) error {
	if want == gpu.EnforcementKernel {
		return v.Kernel
	}
	return v.MPS
}

func (f Facts) mps() error {
	for _, d := range f.Devices {
		if !gpu.Version(d.ComputeCapability).AtLeast(minCapability) {
			return fmt.Errorf("GPU %d (%s) has compute capability %q, want %s or newer", d.Index, d.Model, d.ComputeCapability, minCapability)
		}
	}
	return f.MPS
}

func (f Facts) kernel() error {
	if !PartitionsMemory(f.Driver) {
		return fmt.Errorf("the driver is %q, want %s or newer", f.Driver, minDriver)
	}
	if f.Dmem != nil {
		return f.Dmem
	}
	for _, d := range f.Devices {
		if _, ok := RegionOf(d, f.Regions); !ok {
			return fmt.Errorf("dmem.capacity has no region of GPU %d (%s)", d.Index, d.PCI)
		}
	}
	if f.Hook != nil && f.NRI != nil {
		return fmt.Errorf("nobody writes the limits: %w, %w", f.Hook, f.NRI)
	}
	if f.Written != nil {
		return f.Written
	}
	if err := f.mps(); err != nil {
		return err
	}
	if !f.Accounting {
		return errors.New("the MPS daemon does not account for memory")
	}
	return nil
}

// PartitionsMemory reports whether a driver of that version can hold containers to
// their memory, and has an MPS daemon of version 3.
func PartitionsMemory(driver string) bool {
	return gpu.Version(driver).AtLeast(minDriver)
}
