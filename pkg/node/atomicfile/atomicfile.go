// Package atomicfile writes files that must be whole: what a process remembers past its end.
package atomicfile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// halfSuffix ends the name of a file that is being written. One that is left is of no use.
const halfSuffix = ".tmp"

// Write writes a file in one step, which a crash of the machine does not undo: what was there before
// remains until all of the new is on the disk.
func Write(file string, data []byte, mode fs.FileMode) error {
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

// WriteJSON is Write of a value as JSON.
func WriteJSON(file string, what any, mode fs.FileMode) error {
	data, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return Write(file, data, mode)
}
