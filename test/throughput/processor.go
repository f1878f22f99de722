package throughput

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the measure of a process's times in /proc (USER_HZ).
const tick = 10 * time.Millisecond

// processorTimes returns how long processes have been on a processor: those
// named, and those that serve them.
func (b *bench) processorTimes(names []string) (map[string]time.Duration, error) {
	out := make(map[string]time.Duration)
	for _, name := range append([]string{"apiserver", "etcd"}, names...) {
		pid, running := b.cluster.Running(name)
		if !running {
			return nil, fmt.Errorf("%s has ended; see %s", name, b.cluster.LogFile(name))
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil, err
		}
		if out[name], err = processorTime(stat); err != nil {
			return nil, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
	}
	return out, nil
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
