package mps

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumem/gpumem/pkg/node/mps/shm"
)

// inMounts marks the child process of TestMounts.
const inMounts = "GPUMEM_TEST_MOUNTS"

// TestMounts runs in a child process with its own mounts, where mounting needs no privilege.
func TestMounts(t *testing.T) {
	if os.Getenv(inMounts) != "" {
		testMounts(t)
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMounts$", "-test.v")
	child.Env = append(os.Environ(), inMounts+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := child.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this machine allows no user namespace: %v", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func testMounts(t *testing.T) {
	base := t.TempDir()
	if err := syscall.Mount("tmpfs", base, "tmpfs", 0, ""); err != nil {
		t.Skipf("this machine allows no mount in a user namespace: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(base, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Run("shared", func(t *testing.T) { testShared(t, base) })
	t.Run("read-only", func(t *testing.T) { testReadOnly(t, base) })
}

// mountsAt returns the number of mounts at a path.
func mountsAt(t *testing.T, path string) (n int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Fields(line)[4] == path {
			n++
		}
	}
	return n
}

// testShared verifies that all supervisors, in this process and the next, share one file system of bounded size,
// and that its files stay.
func testShared(t *testing.T, base string) {
	dir, file := filepath.Join(base, "shm"), filepath.Join(base, "file")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	var k Kernel
	if err := k.Shared(filepath.Join(base, "none")); err == nil {
		t.Error("a directory that is not there is shared")
	}
	if err := k.Shared(file); err == nil || !strings.Contains(err.Error(), "mount a file system for shared memory at "+file) {
		t.Errorf("a file is shared: %v", err)
	}
	before := mountsAt(t, shm.Dir)
	if there, err := mounted(dir); there || err != nil {
		t.Errorf("mounted before: %t, %v", there, err)
	}
	for name, of := range map[string]*Kernel{"the first supervisor": &k, "the second one": &k, "the next process": {}} {
		if err := of.Shared(dir); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if there, err := mounted(dir); !there || err != nil || mountsAt(t, dir) != 1 {
			t.Errorf("%s: mounted %d times, %v", name, mountsAt(t, dir), err)
		}
		if _, err := os.Stat(filepath.Join(dir, "tensor")); err != nil && mountsAt(t, shm.Dir) > before+1 {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(shm.Dir, "tensor"), nil, 0o666); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "tensor")); err != nil {
			t.Errorf("%s: a file in %s is not in the shared file system: %v", name, shm.Dir, err)
		}
	}
	if got := mountsAt(t, shm.Dir) - before; got != 2 {
		t.Errorf("%d mounts at %s by two processes", got, shm.Dir)
	}
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	const want = syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC
	if size := int64(s.Blocks) * s.Bsize >> 20; size != shmMiB || s.Flags&want != want {
		t.Errorf("%d MiB, flags %#x; want %d MiB, flags %#x", size, s.Flags, shmMiB, want)
	}
}

// testReadOnly verifies that clients see the directory and cannot change it, also after a restart of the
// supervisor.
func testReadOnly(t *testing.T, base string) {
	dir, at, file := filepath.Join(base, "pipe"), filepath.Join(base, "clients"), filepath.Join(base, "file")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var k Kernel
	for range 2 {
		if err := k.ReadOnly(dir, at); err != nil {
			t.Fatal(err)
		}
		if n := mountsAt(t, at); n != 1 {
			t.Errorf("%d mounts", n)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "control"), []byte("here"), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(at, "control")); err != nil || string(text) != "here" {
		t.Errorf("clients read %q, %v", text, err)
	}
	if err := os.WriteFile(filepath.Join(at, "new"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("clients can write: %v", err)
	}
	if err := k.ReadOnly(filepath.Join(base, "none"), at); err == nil || !strings.Contains(err.Error(), "to be read only") {
		t.Errorf("a directory that is not there: %v", err)
	}
	if err := k.ReadOnly(dir, filepath.Join(file, "clients")); err == nil || strings.Contains(err.Error(), "mount") {
		t.Errorf("a path below a file: %v", err)
	}
}
