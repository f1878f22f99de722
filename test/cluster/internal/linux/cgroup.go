package linux

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the roots of the control groups: one for the second
// version, one for each controller for the first.
func hierarchies() (roots []string, unified bool, err error) {
	var info unix.Statfs_t
	if err := unix.Statfs(cgroupRoot, &info); err != nil {
		return nil, false, fmt.Errorf("%s: %w", cgroupRoot, err)
	}
	if info.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{cgroupRoot}, true, nil
	}
	dirs, err := filepath.Glob(cgroupRoot + "/*")
	if err != nil {
		return nil, false, err
	}
	for _, dir := range dirs {
		// Controllers mounted together are reached by a link for each one, too.
		if entry, err := os.Lstat(dir); err != nil || entry.Mode()&fs.ModeSymlink != 0 {
			continue
		}
		if err := unix.Statfs(dir, &info); err == nil && (info.Type == unix.CGROUP_SUPER_MAGIC || info.Type == unix.CGROUP2_SUPER_MAGIC) {
			roots = append(roots, dir)
		}
	}
	if len(roots) == 0 {
		return nil, false, fmt.Errorf("no control groups are mounted in %s", cgroupRoot)
	}
	return roots, false, nil
}

// MakeCgroup makes a control group, and those above it, with all controllers.
func MakeCgroup(path string) error {
	roots, unified, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for element := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
			if unified {
				if err := delegate(dir); err != nil {
					return err
				}
			}
			parent := dir
			dir = filepath.Join(dir, element)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make control group: %w", err)
			}
			// A new group of the first version's cpuset may use nothing.
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inherit(parent, dir, name); !unified && err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// delegate lets the groups below dir have the controllers that dir has.
func delegate(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0o644); err != nil {
			return fmt.Errorf("enable the controller %s below the control group %s (a container must have a control group namespace with no process in its root): %w", name, dir, err)
		}
	}
	return nil
}

func inherit(parent, dir, name string) error {
	value, err := os.ReadFile(filepath.Join(parent, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), value, 0o644)
}

// RemoveCgroup removes a control group and those below it, whose processes have
// been killed.
func RemoveCgroup(ctx context.Context, path string) error {
	roots, _, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := removeTree(ctx, filepath.Join(root, path)); err != nil {
			return err
		}
	}
	return nil
}

// thaw lets the processes of a control group and of those below it run. A container runtime freezes a
// container to kill it; where the runtime is killed then, the container's processes cannot end.
func thaw(path string) error {
	roots, _, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join(root, path), func(file string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Name() == "freezer.state" {
				err = os.WriteFile(file, []byte("THAWED"), 0)
			}
			if err == nil && entry.Name() == "cgroup.freeze" {
				err = os.WriteFile(file, []byte("0"), 0)
			}
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) { // it is gone meanwhile
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("thaw the control group %s: %w", path, err)
		}
	}
	return nil
}

func removeTree(ctx context.Context, dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(dirs) // children first
	for _, dir := range dirs {
		if err := removeGroup(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// removeGroup tries again while the kernel still counts a killed process.
func removeGroup(ctx context.Context, dir string) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove control group %s: %w", dir, err)
		case <-ticker.C:
		}
	}
}
