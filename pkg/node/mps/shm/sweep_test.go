package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// process is a process in a fake proc file system.
type process struct {
	mounts  string        // mount point of the shared file system; empty if the process has none
	ours    bool          // in the supervisor's mount namespace
	started time.Duration // relative to now
	open    string        // open file in the shared file system
	mapped  string
	stat    string // replaces the generated content
}

// procOf creates a proc file system with processes that share a directory.
func procOf(t *testing.T, dir string, processes ...process) string {
	t.Helper()
	proc := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	device, err := DeviceOf(dir)
	must(err)
	booted := time.Now().Add(-24 * time.Hour).Truncate(time.Second)
	must(os.WriteFile(filepath.Join(proc, "stat"), fmt.Appendf(nil, "cpu 1 2\nbtime %d\n", booted.Unix()), 0o644))
	must(os.MkdirAll(filepath.Join(proc, "self", "ns"), 0o755))
	must(os.Symlink("mnt:[1]", filepath.Join(proc, "self", "ns", "mnt")))
	for i, p := range processes {
		at := filepath.Join(proc, strconv.Itoa(10+i))
		must(os.MkdirAll(filepath.Join(at, "ns"), 0o755))
		must(os.MkdirAll(filepath.Join(at, "fd"), 0o755))
		namespace := "mnt:[2]"
		if p.ours {
			namespace = "mnt:[1]"
		}
		must(os.Symlink(namespace, filepath.Join(at, "ns", "mnt")))
		mountinfo := "1 0 0:99 / / rw - overlay overlay rw\n2 1 0:98 / /dev/shm rw - tmpfs shm rw\n"
		if p.mounts != "" {
			mountinfo = fmt.Sprintf("1 0 0:99 / / rw - overlay overlay rw\n3 1 %d:%d / %s rw,nosuid - tmpfs tmpfs rw\n", major(device), minor(device), p.mounts)
		}
		must(os.WriteFile(filepath.Join(at, "mountinfo"), []byte(mountinfo), 0o644))
		stat := p.stat
		if stat == "" {
			since := time.Now().Add(p.started).Sub(booted)
			stat = fmt.Sprintf("%d (a) (b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", 10+i, int64(since/(time.Second/ticks)))
		}
		must(os.WriteFile(filepath.Join(at, "stat"), []byte(stat), 0o644))
		if p.open != "" {
			must(os.Symlink(filepath.Join(dir, p.open), filepath.Join(at, "fd", "3")))
		}
		maps := "7f00-7f01 r--p 00000000 00:00 0\n"
		if p.mapped != "" {
			info, err := os.Stat(filepath.Join(dir, p.mapped))
			must(err)
			maps += fmt.Sprintf("7f10-7f11 rw-s 00000000 %02x:%02x %d %s\n", major(device), minor(device), inodeOf(info), "/dev/shm/"+p.mapped)
		}
		maps += fmt.Sprintf("7f20-7f21 rw-s 00000000 %02x:%02x", major(device), minor(device)) // truncated by the end of the process
		must(os.WriteFile(filepath.Join(at, "maps"), []byte(maps), 0o644))
	}
	return proc
}

func inodeOf(info os.FileInfo) uint64 {
	file, _ := info.Sys().(*syscall.Stat_t)
	return file.Ino
}

func TestSweep(t *testing.T) {
	const before, after = -time.Hour, time.Hour // relative to the creation of the files
	all := []string{"folder", "folder/inner", "link", "torch_1"}
	for name, tc := range map[string]struct {
		processes []process
		left      []string
		fails     bool
	}{
		"no container is left":            {nil, nil, false},
		"the daemon has nothing open":     {[]process{{mounts: Dir, ours: true, started: before}}, nil, false},
		"a server has it open":            {[]process{{mounts: Dir, ours: true, started: before, open: "torch_1"}}, []string{"torch_1"}, false},
		"a server has it mapped":          {[]process{{mounts: Dir, ours: true, started: before, mapped: "folder/inner"}}, []string{"folder", "folder/inner"}, false},
		"a container was there before":    {[]process{{mounts: Dir, started: after}, {mounts: Dir, started: before}}, all, false},
		"a container came later":          {[]process{{mounts: Dir, started: after}}, nil, false},
		"it has opened one":               {[]process{{mounts: Dir, started: after, open: "torch_1"}}, []string{"torch_1"}, false},
		"it has mapped one":               {[]process{{mounts: Dir, started: after, mapped: "torch_1"}}, []string{"torch_1"}, false},
		"others have another /dev/shm":    {[]process{{started: before}}, nil, false},
		"the host has it elsewhere":       {[]process{{mounts: "/run/gpumem/mps/shm", started: before}}, nil, false},
		"it is not known when it started": {[]process{{mounts: Dir, stat: "10 (a) S 1"}}, all, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "kept")
			for _, path := range []string{filepath.Join(dir, "torch_1"), outside} {
				if err := os.WriteFile(path, []byte("tensor"), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "folder", "inner"), nil, 0o666); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			if err := Sweep(procOf(t, dir, tc.processes...), dir); (err != nil) != tc.fails {
				t.Errorf("error %v, want one: %v", err, tc.fails)
			}
			var left []string
			if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, _ fs.DirEntry, err error) error {
				if path != "." {
					left = append(left, path)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.left, left); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if _, err := os.Stat(outside); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestUnknownTimesAreToldApart verifies that the error distinguishes an unknown boot time of the machine from an
// unknown start time of a process.
func TestUnknownTimesAreToldApart(t *testing.T) {
	dir := t.TempDir()
	proc := procOf(t, dir, process{mounts: Dir, stat: "10 (a) S 1"})
	if err := Sweep(proc, dir); err == nil || err.Error() != "process 10: the kernel does not report when the process started" {
		t.Errorf("a process without a start time: %v", err)
	}
	if err := os.WriteFile(filepath.Join(proc, "stat"), []byte("cpu 1 2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(proc, dir); err == nil || err.Error() != "the kernel does not report when the machine was booted" {
		t.Errorf("a machine without a boot time: %v", err)
	}
}

// TestSweepWithoutFacts verifies that Sweep removes nothing if it cannot determine the processes that use the
// directory.
func TestSweepWithoutFacts(t *testing.T) {
	const before = -time.Hour
	for name, tc := range map[string]struct {
		spoil func(proc, dir string) error
		fails bool
		left  bool
	}{
		"the directory is gone": {func(_, dir string) error { return os.RemoveAll(dir) }, true, false},
		"no boot time": {func(proc, _ string) error {
			return os.WriteFile(filepath.Join(proc, "stat"), []byte("cpu 1 2\n"), 0o644)
		}, true, true},
		"no file with the boot time": {func(proc, _ string) error { return os.Remove(filepath.Join(proc, "stat")) }, true, true},
		"a boot time that is no number": {func(proc, _ string) error {
			return os.WriteFile(filepath.Join(proc, "stat"), []byte("btime x\n"), 0o644)
		}, true, true},
		"no namespace of its own": {func(proc, _ string) error { return os.RemoveAll(filepath.Join(proc, "self")) }, true, true},
		"mounts that cannot be read": {func(proc, _ string) error {
			file := filepath.Join(proc, "10", "mountinfo")
			return errors.Join(os.Remove(file), os.Mkdir(file, 0o755))
		}, true, true},
		"the process ends before its mounts are read": {func(proc, _ string) error { return os.Remove(filepath.Join(proc, "10", "mountinfo")) }, false, false},
		"the process ends before its start is read":   {func(proc, _ string) error { return os.Remove(filepath.Join(proc, "10", "stat")) }, false, false},
		"its start is no number": {func(proc, _ string) error {
			return os.WriteFile(filepath.Join(proc, "10", "stat"), []byte("10 (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 x 0 0\n"), 0o644)
		}, true, true},
		"a container uses it": {func(string, string) error { return nil }, false, true},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "torch_1")
		if err := os.WriteFile(file, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		proc := procOf(t, dir, process{mounts: Dir, started: before})
		if err := tc.spoil(proc, dir); err != nil {
			t.Fatal(err)
		}
		err := Sweep(proc, dir)
		if _, gone := os.Stat(file); (err != nil) != tc.fails || (gone == nil) != tc.left {
			t.Errorf("%s: %v, left: %t", name, err, gone == nil)
		}
	}
}

// TestOtherFileSystems verifies that Sweep considers only processes with this file system at /dev/shm.
func TestOtherFileSystems(t *testing.T) {
	const device = 0x801 // 8:1
	for line, want := range map[string]bool{
		"3 1 8:1 / /dev/shm rw - tmpfs tmpfs rw": true, "3 1 8:2 / /dev/shm rw - tmpfs tmpfs rw": false,
		"3 1 8:1 / /mnt rw - tmpfs tmpfs rw": false, "3 1 8:1 / /dev/shm": true, "3 1 8:1 /": false, "": false,
	} {
		if got := hasShm(line+"\n", device); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}

func TestADirectoryThatIsNotThereHasNoDevice(t *testing.T) {
	if device, err := DeviceOf(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Errorf("device %d", device)
	}
}
