// Package checkpoint stores state of the node agent across restarts, with a version. A checkpoint may be lost:
// each owner can rebuild its state without one.
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

// Store contains one checkpoint. A write is durable when Write returns nil; a failed write has no effect.
type Store interface {
	Read() ([]byte, error) // nil if there is none
	Write(data []byte) error
	SetAside() (copyPath string, err error) // moves an unusable checkpoint away, for people to inspect
}

// header is the part of a checkpoint that all versions have in common.
type header struct {
	Version int `json:"v"`
}

// Load decodes the checkpoint of a store, and reports whether it found one. It sets aside a checkpoint that it
// cannot decode, that has another version, or that a Bounded store has given up reading, because an unusable
// checkpoint must not stop a process from starting. It returns only errors of Store.Read. The checkpoint may
// then be valid, so the caller retries and writes nothing until Load succeeds.
func Load[T any](store Store, version int, log *zap.Logger) (state T, found bool, err error) {
	data, err := store.Read()
	if err == nil && data == nil || err != nil && !errors.Is(err, errUnreadable) {
		return state, false, err
	}
	if err == nil {
		state, err = decode[T](data, version)
	}
	if err != nil {
		copyPath, failed := store.SetAside()
		log.Warn("checkpoint is not usable: set aside and rebuilt", zap.String("file", copyPath), zap.Error(errors.Join(err, failed)))
	}
	return state, err == nil, nil
}

// errUnreadable reports that a Bounded store has given up reading.
var errUnreadable = errors.New("the checkpoint was not readable in many tries")

// Bounded returns a store that gives up after the given number of failed reads. Load then sets the checkpoint
// aside.
func Bounded(store Store, reads int) Store { return &bounded{Store: store, remaining: reads} }

type bounded struct {
	Store

	remaining int // remaining failures
}

// Read implements Store.
func (b *bounded) Read() ([]byte, error) {
	data, err := b.Store.Read()
	if err == nil {
		return data, nil
	}
	if b.remaining--; b.remaining <= 0 {
		err = fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil, err
}

// Peek decodes the checkpoint of a store while another process may still write it. It returns an empty value if
// the checkpoint is unusable or unreadable.
func Peek[T any](store Store, version int) (state T) {
	if data, err := store.Read(); err == nil && data != nil {
		state, _ = decode[T](data, version) // empty on an error
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

// asideSuffix is the suffix of a checkpoint that was set aside. A later one replaces it.
const asideSuffix = ".unusable"

// File is the path of a Store in one file.
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
func (f File) SetAside() (copyPath string, err error) {
	copyPath = string(f) + asideSuffix
	return copyPath, os.Rename(string(f), copyPath)
}

// halfSuffix is the suffix of an incomplete file.
const halfSuffix = ".tmp"

// WriteFile replaces a file atomically, even if the machine crashes: the old content remains until all of the
// new content is on disk.
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

// WriteJSON writes a value as JSON, like WriteFile.
func WriteJSON(file string, value any, mode fs.FileMode) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return WriteFile(file, data, mode)
}
