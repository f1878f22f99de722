package mps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.uber.org/zap"
)

// exclusiveProcess is NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: one process at a time
// may use a GPU, which is the MPS server.
const exclusiveProcess = 3

// Modes reads and sets the compute modes of the GPUs, by UUID, as NVML numbers
// them.
type Modes interface {
	Modes() (map[string]int, error)
	SetMode(uuid string, mode int) error
}

const modesFile = "modes.json"

// setModes makes the GPUs exclusive, after it has written down how they were. One
// that was killed before has written so, and its word counts.
func (s *Supervisor) setModes() error {
	if !s.cfg.Exclusive {
		return s.restoreModes()
	}
	found, err := s.foundModes()
	if errors.Is(err, fs.ErrNotExist) {
		if found, err = s.modes.Modes(); err == nil {
			err = s.writeModes(found)
		}
	}
	if err != nil {
		return fmt.Errorf("read the compute modes: %w", err)
	}
	for uuid := range found {
		if err := s.modes.SetMode(uuid, exclusiveProcess); err != nil {
			return errors.Join(fmt.Errorf("set the compute mode of %s: %w", uuid, err), s.restoreModes())
		}
	}
	return nil
}

// restoreModes puts the GPUs back to how they were found, if they were changed.
func (s *Supervisor) restoreModes() error {
	found, err := s.foundModes()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore the compute modes: %w", err)
	}
	var errs []error
	for uuid, mode := range found {
		if err := s.modes.SetMode(uuid, mode); err != nil {
			errs = append(errs, fmt.Errorf("restore the compute mode of %s: %w", uuid, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.log.Info("compute modes restored", zap.Any("modes", found))
	return os.Remove(s.path(modesFile))
}

func (s *Supervisor) foundModes() (found map[string]int, err error) {
	data, err := os.ReadFile(s.path(modesFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, fmt.Errorf("%s: %w", s.path(modesFile), err)
	}
	return found, nil
}

func (s *Supervisor) writeModes(found map[string]int) error {
	data, err := json.Marshal(found)
	if err != nil {
		return err
	}
	return s.writeWhole(modesFile, data)
}

// writeWhole writes a file in one step: half of it would be lost modes, or limits.
func (s *Supervisor) writeWhole(name string, data []byte) error {
	half := s.path(name + ".tmp")
	if err := os.WriteFile(half, data, 0o644); err != nil {
		return err
	}
	return os.Rename(half, s.path(name))
}
