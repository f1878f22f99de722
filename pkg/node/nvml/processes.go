package nvml

import (
	"maps"
	"slices"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// notAvailable is what NVML says of a process whose memory it does not know.
const notAvailable = 1<<64 - 1

// processes reads which processes use a GPU, how much of its time since the last sample, and when the
// newest was taken. A process is in several lists when it uses the GPU in several ways, with all
// of its memory in each.
func (s *session) processes(handle nvml.Device, since uint64, r *reading) {
	most := make(map[int]uint64)
	clients := make(map[int]bool) // of MPS
	for _, list := range []struct {
		there bool
		of    func() ([]nvml.ProcessInfo, nvml.Return)
		mps   bool
	}{
		{s.compute, handle.GetComputeRunningProcesses, false},
		{s.graphics, handle.GetGraphicsRunningProcesses, false},
		{s.mps, handle.GetMPSComputeRunningProcesses, true},
	} {
		if !list.there {
			continue
		}
		found, ret := list.of()
		if !r.answered(ret) {
			r.unlisted = r.unlisted || ret != nvml.ERROR_NOT_SUPPORTED
			continue
		}
		for _, p := range found {
			if p.UsedGpuMemory != notAvailable {
				most[int(p.Pid)] = max(most[int(p.Pid)], p.UsedGpuMemory)
			}
			clients[int(p.Pid)] = clients[int(p.Pid)] || list.mps
		}
	}
	sm, sampled, known := s.sm(handle, since)
	for _, pid := range slices.Sorted(maps.Keys(most)) {
		p := inventory.Process{PID: pid, Bytes: most[pid]}
		if share, has := sm[pid]; has {
			p.SM = share
		} else if known && !clients[pid] {
			p.SM = new(0) // NVML has no sample of a process that does nothing
		}
		r.processes = append(r.processes, p)
	}
	r.sampled = sampled
}

// sm returns the per cent of the time in which a GPU ran kernels of each process that has a
// sample newer than since, nil where that makes no sense, and when the newest sample was taken.
// Not known is that the GPU does not tell, now or at all.
func (s *session) sm(handle nvml.Device, since uint64) (of map[int]*int, sampled uint64, known bool) {
	if !s.samples {
		return nil, since, false
	}
	if since > uint64(time.Now().UnixMicro()) {
		since = 0 // the machine's clock was set back: no sample would be newer until it is there again
	}
	samples, ret := newSamples(handle, since)
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_FOUND:
		return nil, since, true
	default:
		return nil, since, false
	}
	of, sampled = make(map[int]*int), since
	newest := make(map[int]uint64)
	for _, sample := range samples {
		sampled = max(sampled, sample.TimeStamp)
		pid := int(sample.Pid)
		if sample.TimeStamp < newest[pid] {
			continue
		}
		newest[pid], of[pid] = sample.TimeStamp, nil
		if sample.SmUtil <= 100 {
			of[pid] = new(int(sample.SmUtil))
		}
	}
	return of, sampled, true
}

// newSamples returns the samples that are newer than since. go-nvml panics when there are more
// of them than it has just made a buffer for.
func newSamples(handle nvml.Device, since uint64) (samples []nvml.ProcessUtilizationSample, ret nvml.Return) {
	defer func() {
		if recover() != nil {
			samples, ret = nil, nvml.ERROR_INSUFFICIENT_SIZE
		}
	}()
	return handle.GetProcessUtilization(since)
}
