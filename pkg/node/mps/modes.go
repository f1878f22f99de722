package mps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/checkpoint"
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

// exclusive makes the GPUs exclusive, and restores how they were found.
type exclusive struct {
	modes Modes
	file  string // with the modes as they were found, while they are changed
	log   *zap.Logger
}

// set makes the GPUs exclusive, after it has written down how they were. A supervisor that was
// killed before has written so, and what it has written counts.
func (e exclusive) set() error {
	now, err := e.modes.Modes()
	if err != nil {
		return fmt.Errorf("read the compute modes: %w", err)
	}
	found, err := e.found()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the compute modes: %w", err)
	}
	was := maps.Clone(now)
	maps.Copy(was, found)
	if err := checkpoint.WriteJSON(e.file, was, 0o644); err != nil {
		return fmt.Errorf("record the compute modes: %w", err)
	}
	for uuid := range now {
		if err := e.modes.SetMode(uuid, exclusiveProcess); err != nil {
			return errors.Join(fmt.Errorf("set the compute mode of %s: %w", uuid, err), e.restore())
		}
	}
	return nil
}

// restore puts the GPUs back to how they were found, if they were changed. Those that are gone, or in
// MIG mode by now, have no mode.
func (e exclusive) restore() error {
	found, err := e.found()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore the compute modes: %w", err)
	}
	now, unread := e.modes.Modes() // as a whole: one GPU that is lost does not keep the others from their modes
	var errs []error
	for uuid, mode := range found {
		if _, there := now[uuid]; !there && unread == nil {
			continue
		}
		if err := e.modes.SetMode(uuid, mode); err != nil {
			errs = append(errs, fmt.Errorf("restore the compute mode of %s: %w", uuid, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.log.Info("compute modes restored", zap.Any("modes", found))
	return os.Remove(e.file)
}

func (e exclusive) found() (found map[string]int, err error) {
	data, err := os.ReadFile(e.file)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, fmt.Errorf("%s: %w", e.file, err)
	}
	return found, nil
}
