// Package checkpoint stores the state of the node agent that outlives a process, in a versioned form.
// A checkpoint can be lost: each owner rebuilds its state without one.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/node/atomicfile"
)

// Store contains one checkpoint. A write is durable when Write returns, or had no effect.
type Store interface {
	Read() ([]byte, error) // nil: there is none
	Write(data []byte) error
	SetAside() (where string, err error) // removes an unusable checkpoint and preserves it for people
}

// header is the part of a checkpoint that every version has.
type header struct {
	Version int `json:"v"`
}

// Load decodes the checkpoint of a store into a value and reports whether there was one. It sets aside a checkpoint
// that it cannot read, and one of another version: neither keeps a process from its start.
func Load[T any](store Store, version int, log *zap.Logger) (state T, found bool) {
	state, found, err := read[T](store, version)
	if err != nil {
		where, failed := store.SetAside()
		log.Warn("checkpoint is not usable: set aside and rebuilt", zap.String("file", where), zap.Error(errors.Join(err, failed)))
	}
	return state, found
}

// Peek decodes the checkpoint of a store while another process may still write it. It returns an empty value for an
// unusable checkpoint.
func Peek[T any](store Store, version int) (state T) {
	state, _, _ = read[T](store, version) // empty with an error
	return state
}

func read[T any](store Store, version int) (none T, found bool, err error) {
	data, err := store.Read()
	if err != nil || data == nil {
		return none, false, err
	}
	var h header
	if err := json.Unmarshal(data, &h); err != nil {
		return none, false, fmt.Errorf("read the checkpoint: %w", err)
	}
	if h.Version != version {
		return none, false, fmt.Errorf("the checkpoint has version %d, and this program reads version %d", h.Version, version)
	}
	var state T
	if err := json.Unmarshal(data, &state); err != nil {
		return none, false, fmt.Errorf("read the checkpoint: %w", err)
	}
	return state, true, nil
}

// asideSuffix ends the name of a checkpoint that was set aside. The next one replaces it.
const asideSuffix = ".unusable"

// File is a Store in one file.
type File string

// Read implements Store.
func (f File) Read() ([]byte, error) {
	data, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// Write implements Store.
func (f File) Write(data []byte) error { return atomicfile.Write(string(f), data, 0o600) }

// SetAside implements Store.
func (f File) SetAside() (where string, err error) {
	where = string(f) + asideSuffix
	return where, os.Rename(string(f), where)
}
