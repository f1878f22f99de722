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

// Pipe returns the pipe directory of the daemon in dir.
func Pipe(dir string) string { return filepath.Join(dir, "pipe") }

// Mounts mounts the file systems that daemon and clients share.
type Mounts interface {
	// Shared mounts a bounded file system in memory at dir, and also at this process's /dev/shm.
	Shared(dir string) error
	// ReadOnly mounts dir read-only at target too, for containers.
	ReadOnly(dir, target string) error
}

// shmMiB bounds the total size of all clients' files in /dev/shm of a node.
const shmMiB = 1024

// Kernel implements Mounts with mount(2), which requires CAP_SYS_ADMIN.
type Kernel struct {
	mu     sync.Mutex
	shared bool // /dev/shm of this process is mounted
}

// Shared implements Mounts. The file system and its files outlive the process, because containers of the node use
// them. All supervisors of a process share one file system.
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
func (*Kernel) ReadOnly(dir, target string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := syscall.Unmount(target, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) { // a mount of an earlier supervisor
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	err := syscall.Mount(dir, target, "", syscall.MS_BIND, "")
	if err == nil {
		err = syscall.Mount("", target, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s, to be read only: %w", dir, target, err)
	}
	return nil
}

// mounted reports whether a file system is mounted at dir.
func mounted(dir string) (bool, error) {
	own, err := shm.DeviceOf(dir)
	if err != nil {
		return false, err
	}
	parent, err := shm.DeviceOf(filepath.Dir(dir))
	return own != parent, err
}
