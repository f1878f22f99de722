package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// Host is what Linux reports about NVIDIA's driver.
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

// Bound returns the PCI addresses that the driver is bound to.
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
