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

// exclusiveProcess is NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: only one process at a time can use a GPU, here the
// MPS server.
const exclusiveProcess = 3

// Modes reads and sets the compute modes of GPUs, by UUID and in NVML's numbering.
type Modes interface {
	Modes() (map[string]int, error)
	SetMode(uuid string, mode int) error
}

const modesFile = "modes.json"

// exclusive sets the GPUs to exclusive mode, and restores their original modes.
type exclusive struct {
	modes Modes
	file  string // contains the original modes while they are changed
	log   *zap.Logger
}

// set records the original modes, and then sets the GPUs to exclusive mode. Modes that an earlier, killed
// supervisor recorded take precedence over the current ones.
func (e exclusive) set() error {
	now, err := e.modes.Modes()
	if err != nil {
		return fmt.Errorf("read the compute modes: %w", err)
	}
	found, err := e.readFound()
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

// restore resets the GPUs to their original modes, if set changed them. The record keeps the modes of GPUs
// that NVML does not list now (lost, or in MIG mode), so that a later restore resets them.
func (e exclusive) restore() error {
	found, err := e.readFound()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore the compute modes: %w", err)
	}
	now, unread := e.modes.Modes() // one list of all GPUs, so that restore skips a lost GPU and restores the others
	unlisted := make(map[string]int)
	var errs []error
	for uuid, mode := range found {
		if _, listed := now[uuid]; !listed && unread == nil {
			unlisted[uuid] = mode
			continue
		}
		if err := e.modes.SetMode(uuid, mode); err != nil {
			errs = append(errs, fmt.Errorf("restore the compute mode of %s: %w", uuid, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.log.Info("compute modes restored", zap.Any("modes", found), zap.Any("unlisted", unlisted))
	if len(unlisted) > 0 {
		return checkpoint.WriteJSON(e.file, unlisted, 0o644)
	}
	return os.Remove(e.file)
}

func (e exclusive) readFound() (found map[string]int, err error) {
	data, err := os.ReadFile(e.file)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, fmt.Errorf("%s: %w", e.file, err)
	}
	return found, nil
}
