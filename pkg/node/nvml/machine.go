package nvml

import (
	"errors"
	"fmt"
	"slices"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Machine asks all GPUs of a node at once. Each call initialises the library and shuts it down.
type Machine struct {
	// Open returns the library, not initialised, and the path it is loaded from.
	Open func() (nvml.Interface, string)
}

// each calls a function with every GPU.
func (m Machine) each(f func(s *session, index int, handle nvml.Device) error) (err error) {
	s, err := open(m.Open)
	if err != nil {
		return err
	}
	defer func() {
		if ret := s.lib.Shutdown(); ret != nvml.SUCCESS {
			err = errors.Join(err, fmt.Errorf("shut NVML down: %s", ret.Error()))
		}
	}()
	n, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS || n < 0 || n > maxGPUs {
		return fmt.Errorf("NVML reports %d GPUs: %s", n, ret.Error())
	}
	for i := range n {
		handle, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return fmt.Errorf("GPU %d: %s", i, failure(ret))
		}
		if err := f(s, i, handle); err != nil {
			return fmt.Errorf("GPU %d: %w", i, err)
		}
	}
	return nil
}

// Limits returns the driver's version and, by index, the MiB of each GPU that programs can have.
func (m Machine) Limits(reserveMiB int64) (driver string, limits []int64, err error) {
	err = m.each(func(s *session, index int, _ nvml.Device) error {
		r := s.read(index, nil, false)
		if r.failed != "" {
			return errors.New(r.failed)
		}
		driver = s.driver
		limits = append(limits, max(1, r.device.MemoryMiB-r.reservedMiB-reserveMiB))
		return nil
	})
	if err == nil && len(limits) == 0 {
		err = errors.New("NVML reports no GPU")
	}
	return driver, limits, err
}

// A Part is a GPU of a machine that is not in MIG mode, or a MIG instance.
type Part struct {
	UUID  gpu.UUID
	Index int
	MiB   int64 // that programs can have
	Free  int64 // MiB that no program uses
}

// Parts returns the GPUs that are not in MIG mode, and the MIG instances of the others, of those that are
// selected.
func (m Machine) Parts(reserveMiB int64, selects func(gpu.Device) bool) (gpus, instances []Part, err error) {
	var readings []reading
	err = m.each(func(s *session, index int, _ nvml.Device) error {
		r := s.read(index, nil, true)
		if r.failed != "" {
			return errors.New(r.failed)
		}
		readings = append(readings, r)
		return nil
	})
	for _, r := range flatten(readings) {
		if r.mig || r.failed != "" || !selects(r.device) {
			continue
		}
		has := r.device.MemoryMiB - r.reservedMiB
		part := Part{UUID: r.device.UUID, Index: r.index, MiB: max(1, has-reserveMiB), Free: has - int64(r.usage.usedBytes/mib)}
		if r.instance == nil {
			gpus = append(gpus, part)
		} else {
			instances = append(instances, part)
		}
	}
	return gpus, instances, err
}

// FreeOf returns how many MiB of parts no program uses.
func (m Machine) FreeOf(parts []Part) (free []int64, err error) {
	gpus, instances, err := m.Parts(0, func(gpu.Device) bool { return true })
	if err != nil {
		return nil, err
	}
	now := slices.Concat(gpus, instances)
	for _, p := range parts {
		at := slices.IndexFunc(now, func(n Part) bool { return n.UUID == p.UUID })
		if at < 0 {
			return nil, fmt.Errorf("NVML does not list %s", p.UUID)
		}
		free = append(free, now[at].Free)
	}
	return free, nil
}

// Free returns, by index, how many MiB of each selected GPU no program uses; -1 of the others, and
// of those in MIG mode.
func (m Machine) Free(selects func(gpu.Device) bool) (free []int64, err error) {
	err = m.each(func(s *session, index int, _ nvml.Device) error {
		r := s.read(index, nil, false)
		if r.failed != "" {
			return errors.New(r.failed)
		}
		free = append(free, r.device.MemoryMiB-r.reservedMiB-int64(r.usage.usedBytes/mib))
		if r.mig || !selects(r.device) {
			free[index] = -1
		}
		return nil
	})
	return free, err
}

// Modes returns the compute modes of the GPUs by UUID, as NVML numbers them. GPUs in MIG mode are left out.
func (m Machine) Modes() (map[string]int, error) {
	modes := make(map[string]int)
	err := m.each(func(s *session, _ int, handle nvml.Device) error {
		if s.mig {
			if now, _, ret := handle.GetMigMode(); ret == nvml.SUCCESS && now == nvml.DEVICE_MIG_ENABLE {
				return nil // it has none
			}
		}
		uuid, ret := handle.GetUUID()
		if ret != nvml.SUCCESS {
			return errors.New(failure(ret))
		}
		mode, ret := handle.GetComputeMode()
		if ret != nvml.SUCCESS {
			return errors.New(failure(ret))
		}
		modes[uuid] = int(mode)
		return nil
	})
	return modes, err
}

// SetMode sets the compute mode of one GPU.
func (m Machine) SetMode(uuid string, mode int) error {
	done := errors.New("NVML lists no such GPU")
	err := m.each(func(_ *session, _ int, handle nvml.Device) error {
		if own, ret := handle.GetUUID(); ret != nvml.SUCCESS || own != uuid {
			return nil
		}
		done = nil
		if ret := handle.SetComputeMode(nvml.ComputeMode(mode)); ret != nvml.SUCCESS {
			return errors.New(failure(ret))
		}
		return nil
	})
	return errors.Join(err, done)
}
