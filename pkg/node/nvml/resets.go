package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/checkpoint"
)

const needsReset = "needs a reset"

// resets are the GPUs that need a reset, with the reason. NVML answers well about such a GPU, so only a file carries the
// fact to the next process. It holds for one load of the driver.
type resets struct {
	path   string
	load   string
	of     map[gpu.UUID]string
	unsafe map[gpu.UUID]bool // not in the file yet
}

func newResets(path string) resets {
	return resets{path: path, of: make(map[gpu.UUID]string), unsafe: make(map[gpu.UUID]bool)}
}

// resetFile is the file's content.
type resetFile struct {
	Load string              `json:"load"` // see Host.Load
	GPUs map[gpu.UUID]string `json:"gpus"`
}

func readResets(path string) (f resetFile, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return resetFile{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// ClearResets removes GPUs from the file at path, and returns those that were not in it.
func ClearResets(path string, ids ...gpu.UUID) (unknown []gpu.UUID, err error) {
	f, err := readResets(path)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if _, ok := f.GPUs[id]; !ok {
			unknown = append(unknown, id)
		}
		delete(f.GPUs, id)
	}
	return unknown, checkpoint.WriteJSON(path, f, 0o644)
}

// refresh reads the file again, from which a person may have removed a GPU, and drops all GPUs once the driver was loaded
// again. An unreadable file changes nothing.
func (r *resets) refresh(load string) error {
	f, err := readResets(r.path)
	if r.load != load {
		r.load = load
		clear(r.of)
		clear(r.unsafe)
	}
	if err == nil {
		maps.DeleteFunc(r.of, func(id gpu.UUID, _ string) bool { return !r.unsafe[id] })
		if f.Load == load {
			maps.Copy(r.of, f.GPUs)
		}
	}
	if len(r.unsafe) == 0 {
		return err
	}
	return r.write()
}

// add records a GPU that needs a reset.
func (r *resets) add(reason string, ids ...gpu.UUID) error {
	for _, id := range ids {
		if _, known := r.of[id]; !known { // the first error is the cause of the others
			r.of[id], r.unsafe[id] = reason, true
		}
	}
	return r.write()
}

func (r *resets) write() error {
	if err := checkpoint.WriteJSON(r.path, resetFile{r.load, r.of}, 0o644); err != nil {
		return fmt.Errorf("GPUs that need a reset are forgotten when the process ends (%v): %w", slices.Sorted(maps.Keys(r.unsafe)), err)
	}
	clear(r.unsafe)
	return nil
}

// Host reads Linux's facts about NVIDIA's driver.
type Host struct {
	Sys, Proc string // where sysfs and procfs are mounted
}

// Load identifies one load of the driver: it changes when the machine boots, and when the module is loaded again. The
// kernel gives each directory of sysfs an inode number that no other had since the machine was booted. Load returns an
// empty string where no module is loaded.
func (h Host) Load() string {
	module, err := os.Stat(filepath.Join(h.Sys, "module/nvidia"))
	if err != nil {
		return ""
	}
	stat, ok := module.Sys().(*syscall.Stat_t)
	boot, err := os.ReadFile(filepath.Join(h.Proc, "sys/kernel/random/boot_id"))
	if err != nil || !ok {
		return ""
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), stat.Ino)
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// Bound returns the PCI addresses of the driver's devices.
func (h Host) Bound() string {
	entries, _ := os.ReadDir(filepath.Join(h.Sys, "bus/pci/drivers/nvidia")) // none: the driver is not loaded
	var bound []string
	for _, e := range entries {
		if pciAddress.MatchString(e.Name()) {
			bound = append(bound, e.Name())
		}
	}
	return strings.Join(bound, " ")
}
