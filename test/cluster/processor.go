package cluster

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the measure of a process's times in /proc (USER_HZ).
const tick = 10 * time.Millisecond

// ProcessorTime returns how long a process has been on a processor.
func ProcessorTime(pid int) (time.Duration, error) {
	file := fmt.Sprintf("/proc/%d/stat", pid)
	stat, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	spent, err := processorTime(stat)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return spent, nil
}

// processorTime reads utime and stime of proc_pid_stat(5). The name before them
// can contain anything.
func processorTime(stat []byte) (time.Duration, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("%q has too few fields", stat)
	}
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * tick
	}
	return sum, nil
}

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
