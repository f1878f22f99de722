package cluster

import (
	"bytes"
	"fmt"
	"os"
)

// PeakMemory returns how much memory a process has had resident at most, in MiB.
func PeakMemory(pid int) (float64, error) { return statusMiB(pid, "VmHWM") }

// ResidentMemory returns how much memory a process has resident, in MiB.
func ResidentMemory(pid int) (float64, error) { return statusMiB(pid, "VmRSS") }

func statusMiB(pid int, field string) (float64, error) {
	file := fmt.Sprintf("/proc/%d/status", pid)
	status, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		var kib float64
		if _, err := fmt.Sscanf(string(line), field+": %f kB", &kib); err == nil {
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, field)
}
