package usage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// GPUs lists the processes on GPUs, and withdraws foreign memory from the offer.
type GPUs interface {
	Processes() (of map[gpu.UUID][]inventory.Process, probed <-chan struct{})
	SetForeign(bytes map[gpu.UUID]uint64)
}

// Owners resolves the container of a process.
type Owners interface {
	Owner(pid int) (Owner, error)
}

// Pods looks up the node's pods that hold GPU memory, updates their annotations, and evicts them.
type Pods interface {
	// Container returns the pod and the name of a container by its ID.
	Container(id string) (pod placement.PodRef, name string, ok bool)
	// HoldsMemory reports whether a pod with this UID holds GPU memory. For a static pod, the UID is the kubelet's or
	// the API server's.
	HoldsMemory(uid string) bool
	// Disruptions lists the pods that Kubernetes terminates, with a channel that is closed when the list may
	// have changed.
	Disruptions() (disrupted []Disruption, changed <-chan struct{})
	// RecordUse publishes a pod's usage in its annotations, for users without access to the device plugin.
	RecordUse(ctx context.Context, ref placement.PodRef, usedMiB, peakMiB int64) error
	// Evict requests the eviction of a pod. It returns ErrStatic for a static pod.
	Evict(ctx context.Context, ref placement.PodRef) error
}

// Grant is the memory of a container on one GPU.
type Grant struct {
	Namespace, Name, Container string
	Device                     gpu.UUID
	Bytes                      uint64
}

// Grants lists the grants of the node's containers.
type Grants interface {
	Grants(ctx context.Context) ([]Grant, error)
}

// ErrStatic reports that a pod is static: only the removal of its manifest ends it.
var ErrStatic = errors.New("it is a static pod: remove its manifest from the node")

// Config contains the settings of a Watch.
type Config struct {
	ToleranceMiB int64 // tolerated usage above a grant
	Evict        bool  // evict pods that exceed their grants

	// Servers returns the process IDs of MPS servers that serve containers with a grant. The memory of these
	// servers is not foreign. If Servers also returns an error, some servers are missing.
	Servers func(ctx context.Context) (map[int]bool, error)
}

// Sample is one container's usage and grant on one GPU.
type Sample struct {
	Pod       placement.PodRef
	Container string
	Device    gpu.UUID
	Used      uint64 // bytes
	Granted   uint64
	Peak      uint64 // maximum of Used so far, in bytes
	SM        *int   // percentage of time in which the GPU ran the container's kernels; nil if unknown
}

// key identifies a container on a GPU.
type key struct {
	uid, container string
	device         gpu.UUID
}

func (s Sample) describeOverUse() string {
	return fmt.Sprintf("container %s uses %d MiB of GPU %s and was granted %d MiB", s.Container, s.Used/mib, s.Device, s.Granted/mib)
}

func (s Sample) key() key { return key{s.Pod.UID, s.Container, s.Device} }

func compareSamples(a, b Sample) int {
	return cmp.Or(strings.Compare(a.Pod.String(), b.Pod.String()), strings.Compare(a.Container, b.Container), cmp.Compare(a.Device, b.Device))
}

// Watch compares usage with grants after each probe.
type Watch struct {
	cfg    Config
	gpus   GPUs
	owners Owners
	pods   Pods
	grants Grants
	events event.Events
	log    *zap.Logger

	// Only Run uses the following fields.
	tracker    tracker
	evicted    map[string]bool // UIDs of pods that are evicted, or static
	peaks      map[key]uint64
	serverPIDs map[int]bool // MPS servers, last known
	records    map[placement.PodRef]recorded
	warned     map[string]bool // UIDs of terminating pods that were already reported

	mu          sync.Mutex // guards the rest
	samples     []Sample
	merged      map[gpu.UUID]uint64
	unavailable string
}

// New returns a watch.
func New(cfg Config, gpus GPUs, owners Owners, pods Pods, grants Grants, events event.Events, log *zap.Logger) *Watch {
	return &Watch{
		cfg: cfg, gpus: gpus, owners: owners, pods: pods, grants: grants, events: events, log: log,
		tracker: tracker{tolerance: uint64(max(0, cfg.ToleranceMiB)) * mib, states: make(map[key]state)},
		evicted: make(map[string]bool), peaks: make(map[key]uint64), serverPIDs: make(map[int]bool),
		records: make(map[placement.PodRef]recorded),
	}
}

const (
	mib = 1 << 20
	// serverOwnMiB exceeds the memory that an MPS server itself uses on a GPU. If a server has more, NVML counts
	// clients' memory as the server's: the CUDA context of a single client exceeds serverOwnMiB.
	serverOwnMiB = 100
	// callTimeout bounds a call to the kubelet or the API server.
	callTimeout = 5 * time.Second
)

// Samples returns the usage of containers with a grant after the last probe.
func (w *Watch) Samples() []Sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.samples)
}

// ServerMemory returns the bytes on each GPU that NVML counted as an MPS server's at the last probe. Clients
// use that memory, and their samples lack it.
func (w *Watch) ServerMemory() map[gpu.UUID]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.merged)
}

// Run compares usage after each probe, and reports disruptions immediately, until the context is done.
func (w *Watch) Run(ctx context.Context) error {
	for {
		processes, probed := w.gpus.Processes()
		if processes != nil {
			w.compareUsage(ctx, processes)
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-probed:
				waiting = false
			case <-w.reportDisruptions():
			}
		}
	}
}

// compareUsage compares the usage of the listed processes with the grants.
func (w *Watch) compareUsage(ctx context.Context, processes map[gpu.UUID][]inventory.Process) {
	asking, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	grants, err := w.grants.Grants(asking)
	if err != nil {
		w.log.Debug("use is not compared: grants are unknown", zap.Error(err))
		return
	}
	w.refreshServers(asking)
	processes, merged := withoutServers(processes, w.serverPIDs)
	samples, foreign, unavailable := w.measure(processes, grants)
	w.updatePeaks(samples)
	w.mu.Lock()
	previous := w.unavailable
	w.samples, w.merged, w.unavailable = samples, merged, unavailable
	w.mu.Unlock()
	if unavailable != "" && unavailable != previous {
		w.log.Warn("use is not known", zap.String("reason", unavailable))
	}
	w.gpus.SetForeign(foreign)
	exceeded, recovered, exceeding := w.tracker.observe(samples)
	for _, s := range exceeded {
		w.log.Warn("container uses more than it was granted", zap.Stringer("pod", s.Pod), zap.String("uid", s.Pod.UID), zap.String("container", s.Container),
			zap.String("device", string(s.Device)), zap.Uint64("used_mib", s.Used/mib), zap.Uint64("granted_mib", s.Granted/mib))
		w.events.Pod(s.Pod, event.OverUse, s.describeOverUse())
	}
	for _, s := range recovered {
		w.events.Pod(s.Pod, event.WithinGrant, fmt.Sprintf("container %s uses %d MiB of GPU %s, within the %d MiB that it was granted", s.Container, s.Used/mib, s.Device, s.Granted/mib))
	}
	w.evict(ctx, exceeding)
	w.record(ctx, samples)
}

// refreshServers updates the list of MPS servers. It removes no server while a supervisor does not answer,
// because the server's memory would count as foreign.
func (w *Watch) refreshServers(ctx context.Context) {
	servers, err := w.cfg.Servers(ctx)
	if err != nil {
		w.log.Debug("MPS servers not listed: the previous list stays valid", zap.Error(err))
	} else {
		clear(w.serverPIDs)
	}
	maps.Copy(w.serverPIDs, servers)
}

// updatePeaks sets the peak of each sample, and drops the peaks of pods that no longer hold GPU memory.
func (w *Watch) updatePeaks(samples []Sample) {
	maps.DeleteFunc(w.peaks, func(k key, _ uint64) bool { return !w.pods.HoldsMemory(k.uid) })
	for i, s := range samples {
		samples[i].Peak = max(w.peaks[s.key()], s.Used)
		w.peaks[s.key()] = samples[i].Peak
	}
}

// evict requests the eviction of pods that exceed their grants, and retries after each probe until the API
// server accepts.
func (w *Watch) evict(ctx context.Context, exceeding []Sample) {
	if !w.cfg.Evict {
		return
	}
	maps.DeleteFunc(w.evicted, func(uid string, _ bool) bool {
		return !slices.ContainsFunc(exceeding, func(s Sample) bool { return s.Pod.UID == uid })
	})
	handled := maps.Clone(w.evicted)
	for _, s := range exceeding {
		if handled[s.Pod.UID] {
			continue
		}
		handled[s.Pod.UID] = true
		asking, cancel := context.WithTimeout(ctx, callTimeout)
		err := w.pods.Evict(asking, s.Pod)
		cancel()
		if errors.Is(err, ErrStatic) {
			w.evicted[s.Pod.UID] = true // a retry cannot succeed
			w.events.Pod(s.Pod, event.NotEvicted, fmt.Sprintf("not evicted: %v; %s", ErrStatic, s.describeOverUse()))
		}
		if err != nil {
			w.log.Warn("pod not evicted", zap.Stringer("pod", s.Pod), zap.String("uid", s.Pod.UID), zap.Error(err))
			continue
		}
		w.evicted[s.Pod.UID] = true
		w.log.Info("pod evicted", zap.Stringer("pod", s.Pod), zap.String("uid", s.Pod.UID))
		w.events.Pod(s.Pod, event.Evicted, fmt.Sprintf("evicted: %s", s.describeOverUse()))
	}
}

// Disruption is a pod's termination by Kubernetes: by preemption, eviction, or a taint.
type Disruption struct {
	Pod    placement.PodRef
	Reason string // from the condition DisruptionTarget
}

// reportDisruptions records one event for each terminating pod that holds GPU memory on a node with MPS clients
// (NVIDIA, "Multi-Process Service", Limitations). The channel is closed when the list of terminating pods may have
// changed.
func (w *Watch) reportDisruptions() (changed <-chan struct{}) {
	disrupted, changed := w.pods.Disruptions()
	warned := make(map[string]bool)
	for _, d := range disrupted {
		if len(w.serverPIDs) == 0 || !w.pods.HoldsMemory(d.Pod.UID) {
			continue
		}
		warned[d.Pod.UID] = true
		if !w.warned[d.Pod.UID] {
			w.events.Pod(d.Pod, event.Disrupted, fmt.Sprintf("terminates (%s) on a node where programs share MPS: if it outlives its grace period and is killed, its neighbours may fail", d.Reason))
		}
	}
	w.warned = warned
	return changed
}

// withoutServers returns the processes that are not MPS servers. It also returns the memory of each GPU, in bytes,
// that NVML counts as a server's, if it exceeds a server's own usage.
func withoutServers(processes map[gpu.UUID][]inventory.Process, servers map[int]bool) (remaining map[gpu.UUID][]inventory.Process, merged map[gpu.UUID]uint64) {
	remaining, merged = make(map[gpu.UUID][]inventory.Process), make(map[gpu.UUID]uint64)
	for device, list := range processes {
		remaining[device] = slices.DeleteFunc(slices.Clone(list), func(p inventory.Process) bool {
			if servers[p.PID] && p.Bytes > serverOwnMiB*mib {
				merged[device] += p.Bytes
			}
			return servers[p.PID]
		})
	}
	return remaining, merged
}

// measure sums up the usage of containers with a grant, and foreign usage. If no process is visible, unavailable
// is the reason.
func (w *Watch) measure(processes map[gpu.UUID][]inventory.Process, grants []Grant) (samples []Sample, foreign map[gpu.UUID]uint64, unavailable string) {
	used := make(map[key]Sample)
	foreign = make(map[gpu.UUID]uint64)
	hidden, total := 0, 0
	for device, list := range processes {
		for _, p := range list {
			total++
			owner, err := w.owners.Owner(p.PID)
			switch {
			case errors.Is(err, ErrGone):
				hidden++
				continue
			case err != nil:
				w.log.Debug("process not attributed", zap.Int("pid", p.PID), zap.Error(err))
				continue
			}
			pod, name, ok := w.pods.Container(owner.Container)
			s := Sample{Pod: pod, Container: name, Device: device}
			granted := false
			s.Granted, granted = grantOf(grants, s)
			switch {
			case !ok && owner.Pod != "" && w.pods.HoldsMemory(owner.Pod):
				continue // the container has just started, and the pod's status lacks it
			case !ok || !granted:
				foreign[device] += p.Bytes
				continue
			}
			before, several := used[s.key()]
			s.Used, s.SM = before.Used+p.Bytes, p.SM
			if several {
				s.SM = sum(before.SM, p.SM)
			}
			used[s.key()] = s
		}
	}
	for _, s := range used {
		samples = append(samples, s)
	}
	slices.SortFunc(samples, compareSamples)
	if total > 0 && hidden == total {
		unavailable = fmt.Sprintf("none of the %d processes that NVML lists is seen here: the plugin does not share the host's process IDs", total)
	}
	return samples, foreign, unavailable
}

// sum adds two numbers; nil means unknown.
func sum(a, b *int) *int {
	if a == nil || b == nil {
		return nil
	}
	return new(*a + *b)
}

// grantOf returns a container's grant on a GPU, which may be 0. It returns ok == false for a container without
// a grant on any GPU.
func grantOf(grants []Grant, s Sample) (bytes uint64, ok bool) {
	for _, g := range grants {
		if g.Namespace == s.Pod.Namespace && g.Name == s.Pod.Name && g.Container == s.Container {
			ok = true
			if g.Device == s.Device {
				bytes += g.Bytes
			}
		}
	}
	return bytes, ok
}

const (
	// recordInterval is the minimum time between two writes for a pod.
	recordInterval = 5 * time.Minute
	// recordStepMiB is the step to which usage is rounded up, so that small changes cause no write.
	recordStepMiB = 64
)

// recorded is the last write for a pod.
type recorded struct {
	used, peak int64 // MiB
	writtenAt  time.Time
}

// record publishes the usage of pods if it has changed and their last write is old enough. Failed writes count
// as writes, so that a slow API server does not receive more of them.
func (w *Watch) record(ctx context.Context, samples []Sample) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	maps.DeleteFunc(w.records, func(ref placement.PodRef, _ recorded) bool { return !w.pods.HoldsMemory(ref.UID) })
	sums := make(map[placement.PodRef]recorded)
	for _, s := range samples {
		sum := sums[s.Pod]
		sum.used, sum.peak, sum.writtenAt = sum.used+int64(s.Used/mib), sum.peak+int64(s.Peak/mib), time.Now()
		sums[s.Pod] = sum
	}
	for ref, current := range sums {
		current.used, current.peak = roundUp(current.used), roundUp(current.peak)
		previous, known := w.records[ref]
		if known && (current.writtenAt.Sub(previous.writtenAt) < recordInterval || current.used == previous.used && current.peak == previous.peak) {
			continue
		}
		w.records[ref] = current
		if err := w.pods.RecordUse(ctx, ref, current.used, current.peak); err != nil {
			w.log.Debug("the use of a pod is not recorded", zap.Stringer("pod", ref), zap.Error(err))
		}
	}
}

func roundUp(mib int64) int64 { return (mib + recordStepMiB - 1) / recordStepMiB * recordStepMiB }

// ConfirmingSamples is the number of consecutive samples after which a container counts as exceeding its grant,
// or as within it again.
const ConfirmingSamples = 3

// tracker records which containers are over their grants.
type tracker struct {
	tolerance uint64 // bytes
	states    map[key]state
}

type state struct {
	exceeding     bool
	contradicting int // consecutive samples that contradict field exceeding
}

// observe returns the samples of containers that newly exceed their grants, that are within their grants again,
// and that currently exceed their grants.
func (t *tracker) observe(samples []Sample) (exceeded, recovered, exceeding []Sample) {
	seen := make(map[key]bool)
	for _, s := range samples {
		seen[s.key()] = true
		previous := t.states[s.key()]
		current := previous
		if exceeds := s.Used > s.Granted && s.Used-s.Granted > t.tolerance; exceeds == previous.exceeding {
			current.contradicting = 0
		} else if current.contradicting++; current.contradicting >= ConfirmingSamples {
			current = state{exceeding: exceeds}
		}
		t.states[s.key()] = current
		switch {
		case current.exceeding && !previous.exceeding:
			exceeded = append(exceeded, s)
		case !current.exceeding && previous.exceeding:
			recovered = append(recovered, s)
		}
		if current.exceeding {
			exceeding = append(exceeding, s)
		}
	}
	maps.DeleteFunc(t.states, func(k key, _ state) bool { return !seen[k] })
	for _, list := range [][]Sample{exceeded, recovered, exceeding} {
		slices.SortFunc(list, compareSamples)
	}
	return exceeded, recovered, exceeding
}
