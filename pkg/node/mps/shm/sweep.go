package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Dir is the path of the shared file system in containers.
const Dir = "/dev/shm"

// ticks is the number of clock ticks per second in the kernel's times (CLK_TCK, on every machine).
const ticks = 100

// Sweep removes leftover files from a directory that containers share. A file is left over if it is older than
// every container process that has the directory's file system at /dev/shm, and if no process has the file open or
// mapped. The process that created it has then ended.
func Sweep(proc, dir string) error {
	device, err := DeviceOf(dir)
	if err != nil {
		return err
	}
	seen, err := readUsers(proc, device)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // no symbolic link can lead out of it
	if err != nil {
		return err
	}
	defer root.Close()
	var remaining []string
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return nil //nolint:nilerr // removed meanwhile
		}
		info, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // removed meanwhile
		}
		file, ok := info.Sys().(*syscall.Stat_t)
		if ok && file.Dev == device && !seen.used[file.Ino] && time.Unix(file.Ctim.Unix()).Before(seen.oldest) {
			remaining = append(remaining, path)
		}
		return nil
	})
	for _, path := range slices.Backward(remaining) { // directories after their contents
		if bad := root.Remove(path); bad != nil && !errors.Is(bad, fs.ErrNotExist) && !errors.Is(bad, syscall.ENOTEMPTY) {
			err = errors.Join(err, bad)
		}
	}
	return err
}

// users describes the processes that use a file system.
type users struct {
	oldest time.Time       // start time of the oldest container process; now, if there is none
	used   map[uint64]bool // inodes that any process has open or mapped
}

// readUsers finds the processes that have a file system at /dev/shm. Processes in this process's mount namespace are
// the daemon and its servers, not containers.
func readUsers(proc string, device uint64) (users, error) {
	out := users{oldest: time.Now(), used: make(map[uint64]bool)}
	booted, err := bootTime(proc)
	if err != nil {
		return out, err
	}
	own, err := os.Readlink(filepath.Join(proc, "self", "ns", "mnt"))
	if err != nil {
		return out, err
	}
	entries, err := os.ReadDir(proc)
	for _, e := range entries {
		if _, no := strconv.Atoi(e.Name()); no != nil {
			continue
		}
		process := filepath.Join(proc, e.Name())
		mounts, err := os.ReadFile(filepath.Join(process, "mountinfo"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EINVAL) {
			continue // the process has ended
		}
		if err != nil {
			return out, err
		}
		if !hasShm(string(mounts), device) {
			continue
		}
		out.note(process, device)
		if ns, err := os.Readlink(filepath.Join(process, "ns", "mnt")); err == nil && ns == own {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(process, "stat"))
		if err != nil {
			continue
		}
		started, err := startTime(string(stat), booted)
		if err != nil {
			return out, fmt.Errorf("process %s: %w", e.Name(), err)
		}
		if started.Before(out.oldest) {
			out.oldest = started
		}
	}
	return out, err
}

// note adds the inodes that a process has open or mapped.
func (u users) note(process string, device uint64) {
	maps, _ := os.ReadFile(filepath.Join(process, "maps")) // the process may have ended
	name := fmt.Sprintf("%02x:%02x", major(device), minor(device))
	for line := range strings.Lines(string(maps)) { // address perms offset dev inode path
		if f := strings.Fields(line); len(f) > 4 && f[3] == name {
			inode, _ := strconv.ParseUint(f[4], 10, 64)
			u.used[inode] = true
		}
	}
	open, _ := os.ReadDir(filepath.Join(process, "fd"))
	for _, fd := range open {
		var s syscall.Stat_t
		if syscall.Stat(filepath.Join(process, "fd", fd.Name()), &s) == nil && s.Dev == device {
			u.used[s.Ino] = true
		}
	}
}

// hasShm reports whether the process with this mountinfo (proc(5)) has the file system at /dev/shm.
func hasShm(mountinfo string, device uint64) bool {
	name := fmt.Sprintf("%d:%d", major(device), minor(device))
	for line := range strings.Lines(mountinfo) { // ID parent major:minor root mount-point …
		if f := strings.Fields(line); len(f) > 4 && f[2] == name && f[4] == Dir {
			return true
		}
	}
	return false
}

// bootTime returns the time at which the machine booted.
func bootTime(proc string) (time.Time, error) {
	text, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(text)) {
		if seconds, ok := strings.CutPrefix(line, "btime "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(seconds), 10, 64)
			return time.Unix(n, 0), err
		}
	}
	return time.Time{}, errors.New("the kernel does not report when the machine was booted")
}

// startTime returns the start time of a process from its stat (proc(5)), minus a second, because the boot time
// has a precision of one second.
func startTime(stat string, booted time.Time) (time.Time, error) {
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // from the third field on
	if len(fields) < 20 {
		return time.Time{}, errors.New("the kernel does not report when the process started")
	}
	n, err := strconv.ParseInt(fields[19], 10, 64)
	return booted.Add(time.Duration(n)*time.Second/ticks - time.Second), err
}

// major and minor decode the kernel's device number (makedev(3)).
func major(device uint64) uint64 { return device>>8&0xfff | device>>32&^0xfff }
func minor(device uint64) uint64 { return device&0xff | device>>12&0xffffff00 }

// DeviceOf returns the device number of the file system that contains dir.
func DeviceOf(dir string) (uint64, error) {
	var s syscall.Stat_t
	if err := syscall.Stat(dir, &s); err != nil {
		return 0, fmt.Errorf("check %s: %w", dir, err)
	}
	return s.Dev, nil
}
