package enforcement

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Mode is the configured level of a node, or Auto.
type Mode string

// Auto selects the strongest level that the node can prove.
const Auto Mode = "auto"

// ParseMode parses the name of a mode.
func ParseMode(s string) (Mode, error) {
	if Mode(s) == Auto {
		return Auto, nil
	}
	if level, err := api.ParseEnforcement(s); err == nil {
		return Mode(level), nil
	}
	return "", fmt.Errorf("enforcement %q: want auto, kernel, mps or advisory", s)
}

const (
	minDriver     gpu.Version = "615" // the first with memory partitioning
	minCapability gpu.Version = "7.0" // Volta: MPS with limits per client
)

// Facts contains a node's abilities. Each error is the reason why an ability is missing.
type Facts struct {
	Driver  string // version
	Devices []gpu.Device

	NRI        error // why the container runtime does not call the plugin
	Cgroups    error // why the driver cannot limit the control groups
	Test       error // why no GPU passed the test of limits
	LimitError error // why a running container, or the last starting one, has no limit

	MPS     error // why the MPS daemon limits no clients
	MPSGPUs []int // indexes of the GPUs on which the daemon limits clients; empty if unknown

	Failed map[gpu.UUID]error // GPUs that failed the test while others passed
}

// Verdict is the level of a node, with the reasons why it is not stronger.
type Verdict struct {
	Level  gpu.Enforcement
	Kernel error // reason why level kernel is unavailable, or nil
	MPS    error // reason why level mps is unavailable, or nil
	Served bool  // containers are clients of the MPS daemon

	Unserved, Failed map[gpu.UUID]error // GPUs that fail level mps (Unserved) or kernel (Failed) while others pass
}

// failures returns the single GPUs that fail a level, and the reason why the node as a whole fails it. A stronger
// level does not include a weaker one, because container settings for one level have no effect at another.
func (v Verdict) failures(level gpu.Enforcement) (gpus map[gpu.UUID]error, node error) {
	switch level {
	case gpu.EnforcementKernel:
		return v.Failed, v.Kernel
	case gpu.EnforcementMPS:
		return v.Unserved, v.MPS
	default:
		return nil, nil
	}
}

// Judge returns the strongest level that the facts prove.
func Judge(f Facts) Verdict {
	v := Verdict{Level: gpu.EnforcementAdvisory, Kernel: f.kernel(), MPS: f.mps(), Unserved: f.unserved(), Failed: f.Failed}
	if v.MPS == nil {
		v.Level, v.Served = gpu.EnforcementMPS, true
	}
	if v.Kernel == nil {
		v.Level = gpu.EnforcementKernel
	}
	return v
}

// unserved returns the GPUs on which the MPS daemon limits no client.
func (f Facts) unserved() map[gpu.UUID]error {
	out := make(map[gpu.UUID]error)
	for _, d := range f.Devices {
		if len(f.MPSGPUs) > 0 && !slices.Contains(f.MPSGPUs, d.Index) {
			out[d.UUID] = errors.New("the MPS daemon was not seen to limit a client on it. If the GPU was added, came back, or left MIG mode after the daemon had started, delete the daemon's pod, with which its clients end")
		}
	}
	return out
}

// Weaker returns the reasons why the level is not stronger, or an empty string for the strongest.
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

func (f Facts) mps() error {
	for _, d := range f.Devices {
		if !gpu.Version(d.ComputeCapability).AtLeast(minCapability) {
			return fmt.Errorf("GPU %d (%s) has compute capability %q, want %s or newer", d.Index, d.Model, d.ComputeCapability, minCapability)
		}
	}
	if f.MPS != nil {
		return f.MPS
	}
	works, unserved := healthy(f.Devices), f.unserved()
	if len(works) > 0 && !slices.ContainsFunc(works, func(d gpu.Device) bool { return unserved[d.UUID] == nil }) {
		return fmt.Errorf("GPU %d (%s): %w", works[0].Index, works[0].Model, unserved[works[0].UUID])
	}
	return nil
}

// kernel returns the reason why level kernel is unavailable. The level requires no MPS daemon, because the driver
// itself rejects allocations beyond a hard limit. The daemon would only select a program to end if the limits
// exceeded the GPU's memory, and they never do.
func (f Facts) kernel() error {
	if !PartitionsMemory(f.Driver) {
		return fmt.Errorf("the driver is %q, want %s or newer", f.Driver, minDriver)
	}
	for _, d := range healthy(f.Devices) {
		if d.MIG() {
			return fmt.Errorf("GPU %d (%s) is a MIG instance: the driver limits memory of whole GPUs only", d.Index, d.Model)
		}
	}
	for _, missing := range []error{f.Cgroups, f.NRI, f.Test, f.LimitError} {
		if missing != nil {
			return missing
		}
	}
	return nil
}

// PartitionsMemory reports whether this driver version can limit the memory of containers.
func PartitionsMemory(driver string) bool {
	return gpu.Version(driver).AtLeast(minDriver)
}
