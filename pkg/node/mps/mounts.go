package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/gpumem/gpumem/pkg/node/mps/shm"
)

// Pipe returns the pipe directory of a daemon's clients.
func Pipe(dir string) string { return filepath.Join(dir, "pipe") }

// Mounts makes file systems for what daemon and clients share.
type Mounts interface {
	// Shared makes a directory a file system of its own, in memory and bounded, and the
	// /dev/shm of this process too.
	Shared(dir string) error
	// ReadOnly shows a directory at another path too, as it is mounted into containers.
	ReadOnly(dir, at string) error
}

// shmMiB bounds what all clients of a node can have in /dev/shm together.
const shmMiB = 1024

// Kernel makes mounts, for which it needs the right to.
type Kernel struct {
	mu     sync.Mutex
	shared bool // the /dev/shm of this process is what it is to be
}

// Shared implements Mounts. The file system outlives the process, with what is in it: containers
// of the node have it. All supervisors of a process share one.
func (k *Kernel) Shared(dir string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	flags := uintptr(syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC)
	switch there, err := mounted(dir); {
	case err != nil:
		return err
	case k.shared:
		return nil
	case there:
		flags |= syscall.MS_REMOUNT
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, fmt.Sprintf("mode=1777,size=%dm", shmMiB)); err != nil {
		return fmt.Errorf("mount a file system for shared memory at %s: %w", dir, err)
	}
	if err := syscall.Mount(dir, shm.Dir, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", dir, shm.Dir, err)
	}
	k.shared = true
	return nil
}

// ReadOnly implements Mounts.
func (*Kernel) ReadOnly(dir, at string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := syscall.Unmount(at, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) { // of the one before
		return fmt.Errorf("unmount %s: %w", at, err)
	}
	err := syscall.Mount(dir, at, "", syscall.MS_BIND, "")
	if err == nil {
		err = syscall.Mount("", at, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s, to be read only: %w", dir, at, err)
	}
	return nil
}

// mounted reports whether a file system of its own is at a directory.
func mounted(dir string) (bool, error) {
	own, err := shm.DeviceOf(dir)
	if err != nil {
		return false, err
	}
	parent, err := shm.DeviceOf(filepath.Dir(dir))
	return own != parent, err
}
