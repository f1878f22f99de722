// Package checkpoint stores the state of the node agent that outlives a process, in a versioned form.
// A checkpoint can be lost: each owner rebuilds its state without one.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.uber.org/zap"
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
// that it cannot decode, one of another version, and one that a Bounded store cannot read any more: none keeps a process
// from its start. It returns only errors of Store.Read. The checkpoint may be valid, so the caller tries again and writes
// nothing until then.
func Load[T any](store Store, version int, log *zap.Logger) (state T, found bool, err error) {
	data, err := store.Read()
	if err == nil && data == nil || err != nil && !errors.Is(err, errUnreadable) {
		return state, false, err
	}
	if err == nil {
		state, err = decode[T](data, version)
	}
	if err != nil {
		where, failed := store.SetAside()
		log.Warn("checkpoint is not usable: set aside and rebuilt", zap.String("file", where), zap.Error(errors.Join(err, failed)))
	}
	return state, err == nil, nil
}

// errUnreadable ends the tries to read a checkpoint.
var errUnreadable = errors.New("the checkpoint was not readable in many tries")

// Bounded returns a store whose checkpoint Load sets aside when that many reads have failed: no later read may succeed.
func Bounded(store Store, reads int) Store { return &bounded{Store: store, left: reads} }

type bounded struct {
	Store

	left int // failures until the end
}

// Read implements Store.
func (b *bounded) Read() ([]byte, error) {
	data, err := b.Store.Read()
	if err == nil {
		return data, nil
	}
	if b.left--; b.left <= 0 {
		err = fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil, err
}

// Peek decodes the checkpoint of a store while another process may still write it. It returns an empty value for an
// unusable checkpoint, and for one that it cannot read.
func Peek[T any](store Store, version int) (state T) {
	if data, err := store.Read(); err == nil && data != nil {
		state, _ = decode[T](data, version) // empty with an error
	}
	return state
}

func decode[T any](data []byte, version int) (none T, err error) {
	var h header
	if err := json.Unmarshal(data, &h); err != nil {
		return none, fmt.Errorf("decode the checkpoint: %w", err)
	}
	if h.Version != version {
		return none, fmt.Errorf("the checkpoint has version %d, and this program reads version %d", h.Version, version)
	}
	var state T
	if err := json.Unmarshal(data, &state); err != nil {
		return none, fmt.Errorf("decode the checkpoint: %w", err)
	}
	return state, nil
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
func (f File) Write(data []byte) error { return WriteFile(string(f), data, 0o600) }

// SetAside implements Store.
func (f File) SetAside() (where string, err error) {
	where = string(f) + asideSuffix
	return where, os.Rename(string(f), where)
}

// halfSuffix ends the name of a file that is being written.
const halfSuffix = ".tmp"

// WriteFile replaces a file in one step that survives a crash of the machine: the former content remains until all of the new
// content is on the disk.
func WriteFile(file string, data []byte, mode fs.FileMode) error {
	half, err := os.OpenFile(file+halfSuffix, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = half.Write(data)
	if err := errors.Join(err, half.Sync(), half.Close()); err != nil {
		return err
	}
	if err := os.Rename(half.Name(), file); err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// WriteJSON writes a value as JSON in the way of WriteFile.
func WriteJSON(file string, value any, mode fs.FileMode) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return WriteFile(file, data, mode)
}
