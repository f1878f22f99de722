package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// Machine reads all GPUs of a node, and sets their compute modes. Each call initialises the library and shuts it
// down. No caller waits longer than the timeout; SetMode may wait that long again for each earlier SetMode. Machine
// is safe for concurrent use.
type Machine struct {
	open  func() (nvml.Interface, string)
	calls *Bounded
}

// NewMachine returns a Machine. Parameter open returns the uninitialised library, and the path that it is loaded
// from.
func NewMachine(open func() (nvml.Interface, string), timeout time.Duration) *Machine {
	return &Machine{open: open, calls: NewBounded(timeout)}
}

// forEachGPU calls f for every GPU, and collects errors of single GPUs in failed. A failing GPU does not stop the
// others.
func (m *Machine) forEachGPU(f func(s *session, index int, handle nvml.Device) error) (failed []error, err error) {
	err = inSession(m.open, func(s *session) error {
		n, ret := s.lib.DeviceGetCount()
		if ret != nvml.SUCCESS || n < 0 || n > maxGPUs {
			return fmt.Errorf("NVML reports %d GPUs: %s", n, ret.Error())
		}
		for i := range n {
			handle, ret := s.lib.DeviceGetHandleByIndex(i)
			if ret != nvml.SUCCESS {
				failed = append(failed, fmt.Errorf("GPU %d: %s", i, failure(ret)))
				continue
			}
			if err := f(s, i, handle); err != nil {
				failed = append(failed, fmt.Errorf("GPU %d: %w", i, err))
			}
		}
		return nil
	})
	return failed, err
}

// Parts returns the driver's version, the GPUs that answer, the selected MIG instances, and the number of GPUs
// that do not answer. It returns an error if none answers.
func (m *Machine) Parts(reserveMiB int64, selected func([]gpu.Device) map[gpu.UUID]bool) (driver string, gpus, instances []inventory.Part, lost int, err error) {
	type answer struct {
		driver string
		flat   []reading
		lost   int
		err    error
	}
	a, err := Call(context.Background(), m.calls, "parts", func() (a answer) {
		a.driver, a.flat, a.lost, a.err = m.readings()
		return a
	})
	if err := cmp.Or(err, a.err); err != nil {
		return a.driver, nil, nil, a.lost, err
	}
	var devices []gpu.Device
	for _, r := range a.flat {
		if r.failed == "" {
			devices = append(devices, r.device)
		}
	}
	ours := selected(devices)
	for _, r := range a.flat {
		has := r.device.MemoryMiB - r.reservedMiB
		part := inventory.Part{UUID: r.device.UUID, Index: r.index, MiB: max(1, has-reserveMiB), Free: has - int64(r.usage.usedBytes/mib), Closed: r.mig || !ours[r.device.UUID]}
		switch {
		case r.failed != "":
		case r.instance == nil:
			gpus = append(gpus, part)
		case !part.Closed:
			instances = append(instances, part)
		}
	}
	return a.driver, gpus, instances, a.lost, nil
}

// readings reads all GPUs, each followed by its MIG instances, and counts the GPUs that do not answer.
func (m *Machine) readings() (driver string, flat []reading, lost int, err error) {
	var answers []reading
	failed, err := m.forEachGPU(func(s *session, index int, _ nvml.Device) error {
		driver = s.driver
		r := s.read(index, nil, true)
		if r.failed != "" {
			return errors.New(r.failed)
		}
		answers = append(answers, r)
		return nil
	})
	if err == nil && len(answers) == 0 {
		err = cmp.Or(errors.Join(failed...), errors.New("NVML reports no GPU"))
	}
	readings := make([]reading, len(answers)+len(failed)) // indexes of MIG instances depend on the number of GPUs
	for i := range readings {
		readings[i].failed = "does not answer"
	}
	for _, r := range answers {
		readings[r.index] = r
	}
	return driver, flatten(readings), len(failed), err
}

// Modes returns the compute mode of each GPU by UUID, in NVML's numbering. It omits GPUs in MIG mode and GPUs
// that do not answer.
func (m *Machine) Modes() (map[string]int, error) {
	type answer struct {
		modes map[string]int
		err   error
	}
	a, err := Call(context.Background(), m.calls, "modes", func() (a answer) {
		a.modes, a.err = m.modes()
		return a
	})
	return a.modes, cmp.Or(err, a.err)
}

func (m *Machine) modes() (map[string]int, error) {
	modes := make(map[string]int)
	failed, err := m.forEachGPU(func(s *session, _ int, handle nvml.Device) error {
		if s.hasFunctions("nvmlDeviceGetMigMode") {
			if now, _, ret := handle.GetMigMode(); ret == nvml.SUCCESS && now == nvml.DEVICE_MIG_ENABLE {
				return nil // GPUs in MIG mode have no compute mode
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
	if len(modes) == 0 {
		err = errors.Join(append(failed, err)...)
	}
	return modes, err
}

// SetMode sets the compute mode of one GPU. It first waits for an earlier call that has not returned, so that the
// last mode remains.
func (m *Machine) SetMode(uuid string, mode int) error {
	return Do(context.Background(), m.calls, "set", func() error { return m.setMode(uuid, mode) })
}

func (m *Machine) setMode(uuid string, mode int) error {
	done := errors.New("NVML lists no such GPU")
	_, err := m.forEachGPU(func(_ *session, _ int, handle nvml.Device) error {
		if own, ret := handle.GetUUID(); ret != nvml.SUCCESS || own != uuid {
			return nil
		}
		if done = nil; handle.SetComputeMode(nvml.ComputeMode(mode)) != nvml.SUCCESS {
			done = errors.New("NVML cannot set its compute mode")
		}
		return nil
	})
	return errors.Join(err, done)
}
