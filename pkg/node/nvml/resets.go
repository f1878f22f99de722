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

// resets tracks the GPUs that need a reset, with the reason. NVML answers normally for such a GPU, so a file
// passes the record to the next process. The record is valid until the driver is loaded again.
type resets struct {
	path   string
	load   string
	of     map[gpu.UUID]string
	unsafe map[gpu.UUID]bool // not yet written to the file
}

func newResets(path string) resets {
	return resets{path: path, of: make(map[gpu.UUID]string), unsafe: make(map[gpu.UUID]bool)}
}

// resetFile is the JSON content of the file.
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

// ClearResets removes GPUs from the file at path, and returns those GPUs that the file did not contain.
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

// refresh rereads the file, because an administrator may have removed GPUs from it. If the driver has been
// loaded again, refresh drops all GPUs. Otherwise, it changes nothing if the file is unreadable.
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

// add records GPUs that need a reset.
func (r *resets) add(reason string, ids ...gpu.UUID) error {
	for _, id := range ids {
		if _, known := r.of[id]; !known { // the first error is the cause of later ones
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

// Host reads facts about NVIDIA's driver from Linux.
type Host struct {
	Sys, Proc string // mount points of sysfs and procfs
}

// Load identifies one load of the driver. The result contains the boot ID, which changes at each boot, and the
// inode number of the module's directory in sysfs, which changes when the module is reloaded: within one boot,
// the kernel never reuses such a number. Load returns an empty string if the module is not loaded.
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

// Bound returns the PCI addresses of the devices that the driver serves, separated by spaces.
func (h Host) Bound() string {
	entries, _ := os.ReadDir(filepath.Join(h.Sys, "bus/pci/drivers/nvidia")) // missing if the driver is not loaded
	var bound []string
	for _, e := range entries {
		if pciAddress.MatchString(e.Name()) {
			bound = append(bound, e.Name())
		}
	}
	return strings.Join(bound, " ")
}
