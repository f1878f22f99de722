package nvml

import (
	"errors"
	"fmt"

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

// An Instance is a MIG instance of a machine.
type Instance struct {
	UUID gpu.UUID
	MiB  int64 // that programs can have
	Free int64 // MiB that no program uses
}

// Instances returns the MIG instances of the selected GPUs and instances, and whether there is a GPU
// that is not in MIG mode.
func (m Machine) Instances(reserveMiB int64, selects func(gpu.Device) bool) (out []Instance, whole bool, err error) {
	var readings []reading
	err = m.each(func(s *session, index int, _ nvml.Device) error {
		r := s.read(index, nil, true)
		if r.failed != "" {
			return errors.New(r.failed)
		}
		readings = append(readings, r)
		whole = whole || !r.mig
		return nil
	})
	for _, r := range flatten(readings) {
		if r.instance == nil || r.failed != "" || !selects(r.device) {
			continue
		}
		has := r.device.MemoryMiB - r.reservedMiB
		out = append(out, Instance{UUID: r.device.UUID, MiB: max(1, has-reserveMiB), Free: has - int64(r.usage.usedBytes/mib)})
	}
	return out, whole, err
}

// FreeOf returns how many MiB of a MIG instance no program uses, as its daemon numbers it.
func (m Machine) FreeOf(id gpu.UUID) ([]int64, error) {
	instances, _, err := m.Instances(0, func(d gpu.Device) bool { return d.UUID == id })
	if err == nil && len(instances) == 0 {
		err = fmt.Errorf("NVML lists no MIG instance %s", id)
	}
	if err != nil {
		return nil, err
	}
	return []int64{instances[0].Free}, nil
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

// Modes returns the compute modes of the GPUs by UUID, as NVML numbers them.
func (m Machine) Modes() (map[string]int, error) {
	modes := make(map[string]int)
	err := m.each(func(_ *session, _ int, handle nvml.Device) error {
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
