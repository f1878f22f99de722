package nvml

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/node/speeds"
)

// Config contains the settings of a Prober. All fields must be set.
type Config struct {
	// Open returns the uninitialised library, and the path that it is loaded from.
	Open func() (nvml.Interface, string)

	UnitMiB    int64 // 0 offers the GPUs in shares
	MIG        bool  // offer each MIG instance as a GPU
	ReserveMiB int64 // MiB of each GPU kept from pods, in addition to the driver's reserve
	Speeds     speeds.Tables

	// Offered returns the node's last inventory, from this process or an earlier one. Run calls it once, before
	// the first probe.
	Offered func(ctx context.Context) gpu.Inventory

	Interval   time.Duration // between two probes
	Retry      time.Duration // between two probes while no GPU is found
	Timeout    time.Duration // per probe of one GPU
	Recovery   int           // consecutive good probes after which a GPU is healthy again
	IgnoreXIDs []uint64      // further errors that leave a GPU healthy, besides applicationXIDs

	Host   Host
	Resets string // file that lists the GPUs that need a reset
}

// Prober probes the GPUs of a node and publishes their inventory.
type Prober struct {
	cfg Config
	log *zap.Logger

	*inventory.Latest // the GPUs of the last probe

	mu        sync.Mutex // guards the rest of this block
	usage     map[gpu.UUID]usage
	processes map[gpu.UUID][]inventory.Process
	measured  chan struct{}       // closed and replaced when usage and processes change
	foreign   map[gpu.UUID]uint64 // bytes by GPU that programs without a grant use, from SetForeign

	// Only Run uses the following fields.
	offered    gpu.Inventory // from Config.Offered
	session    *session
	devices    map[gpu.UUID]*tracked
	sampled    map[gpu.UUID]uint64 // newest sample by GPU (reading.sampled); replaced, never modified, because an abandoned read may still use it
	calls      calls
	lastLogged map[string]string // last message that logOnce logged, by key
	watcher    *watcher
	woken      backoff // between probes that NVML's events request
	reopen     reopen
	resets     resets
}

// backoff doubles its pause from first to max, until reset.
type backoff struct{ next, first, max time.Duration }

func (b *backoff) pause() time.Duration {
	pause := max(b.first, b.next)
	b.next = min(2*pause, b.max)
	return pause
}

func (b *backoff) reset() { b.next = 0 }

// reopen decides when to open the library again.
type reopen struct {
	bound, load string // driver state when the library was opened
	wait, every int    // while something fails: probes until the next attempt, and between the later attempts
}

// maxReopen is the maximum number of probes between two attempts to reopen the library.
const maxReopen = 20

// tracked is a GPU or MIG instance that was offered at least once.
type tracked struct {
	gpu.Device
	instance    *instance // nil for a GPU
	nvlinks     nvlinks
	good        int   // consecutive good probes since it became unhealthy
	reservedMiB int64 // the driver's own memory, as subtracted from the capacity; it can differ from the last reading
}

// New returns a prober whose inventory is empty until Run has probed.
func New(cfg Config, log *zap.Logger) *Prober {
	return &Prober{
		cfg: cfg, log: log,
		Latest:     inventory.NewLatest(gpu.Inventory{UnitMiB: cfg.UnitMiB, Enforcement: gpu.EnforcementAdvisory}, "the GPUs have not been probed yet"),
		measured:   make(chan struct{}),
		devices:    make(map[gpu.UUID]*tracked),
		calls:      calls{timeout: cfg.Timeout, pending: make(map[string]*pending)},
		lastLogged: make(map[string]string),
		woken:      backoff{first: min(time.Second, cfg.Interval), max: cfg.Interval},
		resets:     newResets(cfg.Resets),
	}
}

// Usage returns the usage of a GPU at the last probe: the used memory in bytes, and the fraction of time in
// which a kernel ran (-1 if unknown). It returns ok == false for a GPU that did not answer.
func (p *Prober) Usage(id gpu.UUID) (usedBytes uint64, busy float64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u, ok := p.usage[id]
	return u.usedBytes, u.busy, ok
}

// Processes returns the processes on each GPU that answered the last probe, and a channel that is closed after
// the next probe.
func (p *Prober) Processes() (of map[gpu.UUID][]inventory.Process, probed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.processes, p.measured
}

// SetForeign sets the bytes on each GPU that programs without a grant use. The next probe withdraws them from
// the offer: first from the reserve (Config.ReserveMiB), then in whole units.
func (p *Prober) SetForeign(bytes map[gpu.UUID]uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.foreign = bytes
}

func (d *tracked) foreignUnits(cfg Config, bytes uint64) gpu.Units {
	foreignMiB := int64(min(bytes/mib, uint64(d.MemoryMiB)))
	if bytes%mib > 0 {
		foreignMiB++
	}
	left := gpu.UnitsIn(d.MemoryMiB, d.reservedMiB+max(cfg.ReserveMiB, foreignMiB), cmp.Or(d.ShareMiB, cfg.UnitMiB))
	return max(0, d.Allocatable-left)
}

type usage struct {
	usedBytes uint64
	busy      float64
}

// Run probes the GPUs until the context is done.
func (p *Prober) Run(ctx context.Context) error {
	defer func() { p.close(context.WithoutCancel(ctx)) }()
	p.offered = p.cfg.Offered(ctx)
	for {
		reason := p.probe(ctx)
		if ctx.Err() != nil {
			return nil // canceled calls prove nothing about the GPUs
		}
		p.publish(reason)
		if !p.waitForProbe(ctx) {
			return nil
		}
	}
}

// waitForProbe waits until the next probe is due, and applies NVML's events meanwhile. It returns false when the
// context is done.
func (p *Prober) waitForProbe(ctx context.Context) bool {
	interval := p.cfg.Interval
	if p.session == nil || len(p.devices) == 0 {
		interval = min(interval, p.cfg.Retry)
	}
	next := time.Now().Add(interval)
	timer := time.NewTimer(interval)
	defer timer.Stop()
	woken := false
	var events <-chan event
	if p.watcher != nil {
		events = p.watcher.events
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			if !woken {
				p.woken.reset()
			}
			return true
		case e, ok := <-events:
			if !ok {
				events = nil
			}
			if !ok || e.probe {
				if !woken {
					timer.Reset(min(time.Until(next), p.woken.pause()))
				}
				woken = true
				continue
			}
			if e.reset {
				p.logResets(p.resets.add(e.reason, e.uuids...))
			}
			for _, uuid := range e.uuids {
				if d := p.devices[uuid]; d != nil {
					p.markUnhealthy(d, e.reason)
				}
			}
			p.publish("")
		}
	}
}

// maxGPUs is a bound that no machine exceeds.
const maxGPUs = 1024

// probe reads all GPUs. If the node has no GPU to offer, it returns the reason.
func (p *Prober) probe(ctx context.Context) (reason string) {
	load, bound := p.cfg.Host.Load(), p.cfg.Host.Bound()
	p.logResets(p.resets.refresh(load))
	if p.session != nil && p.reopens(load, bound) && !p.close(ctx) {
		return p.lost("NVML does not answer")
	}
	if p.session == nil {
		type opened struct {
			session *session
			err     error
		}
		o, ok := call(ctx, p.calls, "open", func() opened {
			s, err := open(p.cfg.Open)
			return opened{s, err}
		})
		switch {
		case !ok:
			return p.lost("NVML does not answer")
		case o.err != nil:
			return p.lost(o.err.Error())
		}
		p.session, p.reopen.load, p.reopen.bound = o.session, load, bound
	}
	s := p.session
	type counted struct {
		n   int
		ret nvml.Return
	}
	count, ok := renew(ctx, p.calls, "count", func() counted {
		n, ret := s.lib.DeviceGetCount()
		return counted{n, ret}
	})
	switch {
	case !ok:
		return p.lost("NVML does not answer")
	case count.ret != nvml.SUCCESS:
		return p.lost("NVML does not report the number of GPUs: " + count.ret.Error())
	case count.n < 0 || count.n > maxGPUs:
		return p.lost(fmt.Sprintf("NVML reports %d GPUs, which is out of range", count.n))
	}
	readings := p.readAll(ctx, s, count.n)
	p.merge(readings)
	p.measure(readings)
	p.watch(s, readings)
	if len(p.devices) > 0 {
		return ""
	}
	switch {
	case count.n == 0:
		return "NVML reports no GPU"
	case slices.ContainsFunc(readings, func(r reading) bool { return r.mig && p.cfg.MIG }):
		return "all GPUs are in MIG mode without an instance, or do not answer"
	case slices.ContainsFunc(readings, func(r reading) bool { return r.mig }):
		return "all GPUs are in MIG mode, or do not answer"
	default:
		return "no GPU answers: " + readings[0].failed
	}
}

// readAll reads the GPUs concurrently, so that a hanging GPU delays no other. For a GPU that does not answer in
// time, it returns the late answer of the previous probe.
func (p *Prober) readAll(ctx context.Context, s *session, n int) []reading {
	readings := make([]reading, n)
	pending := make([]*pending, n)
	sampled := p.sampled
	for i := range n {
		late, ok := takeAnswer[reading](p.calls, strconv.Itoa(i))
		if readings[i] = late; !ok {
			readings[i] = reading{index: i, failed: "does not answer"}
		}
		pending[i] = startCall(p.calls, strconv.Itoa(i), func() reading { return s.read(i, sampled, p.cfg.MIG) })
	}
	deadline := time.NewTimer(p.cfg.Timeout)
	defer deadline.Stop()
	late := false
	for i := range n {
		if !late {
			select {
			case <-pending[i].done:
			case <-deadline.C:
				late = true
			case <-ctx.Done():
				late = true
			}
		}
		if r, ok := takeAnswer[reading](p.calls, strconv.Itoa(i)); ok {
			readings[i] = r
		}
	}
	return distinct(flatten(readings))
}

// distinct marks readings as failed if an earlier reading has the same UUID.
func distinct(readings []reading) []reading {
	seen := make(map[gpu.UUID]bool)
	for i, r := range readings {
		if r.failed == "" && seen[r.device.UUID] {
			readings[i] = reading{index: r.index, failed: "another GPU has its UUID " + string(r.device.UUID)}
		}
		seen[r.device.UUID] = true
	}
	return readings
}

// merge updates the devices with the readings.
func (p *Prober) merge(readings []reading) {
	seen := make(map[gpu.UUID]bool)
	for _, r := range readings {
		seen[r.device.UUID] = true
	}
	failed := make(map[gpu.UUID]string)
	for _, r := range readings {
		key := strconv.Itoa(r.index)
		switch {
		case r.failed != "":
			if of := p.devicesAt(r, seen); len(of) > 0 {
				for _, d := range of {
					failed[d.UUID] = r.failed
				}
				delete(p.lastLogged, key)
			} else {
				p.logOnce(key, "GPU is not offered", zap.Int("index", r.index), zap.String("reason", r.failed))
			}
		case r.mig && p.devices[r.device.UUID] != nil:
			failed[r.device.UUID] = "it is in MIG mode"
		case r.mig && p.cfg.MIG:
			p.logOnce(key, "GPU is in MIG mode: its instances are offered", zap.Int("index", r.index), zap.String("device", string(r.device.UUID)))
		case r.mig:
			p.logOnce(key, "GPU is not offered", zap.Int("index", r.index), zap.String("device", string(r.device.UUID)), zap.String("reason", "MIG mode"))
		default:
			delete(p.lastLogged, key)
			p.applyReading(r)
		}
	}
	for uuid, d := range p.devices {
		needed := p.needsReset(d)
		switch reason, ok := failed[uuid]; {
		case ok:
			p.markUnhealthy(d, reason)
		case needed != "":
			p.markUnhealthy(d, needed)
		case !seen[uuid]:
			p.markUnhealthy(d, "the driver no longer lists it")
		}
	}
	last := 0
	for _, r := range readings {
		last = max(last, r.index)
	}
	p.separateIndexes(last + 1)
}

// measure publishes the usage and the processes of the GPUs.
func (p *Prober) measure(readings []reading) {
	measured, processes, sampled := make(map[gpu.UUID]usage), make(map[gpu.UUID][]inventory.Process), make(map[gpu.UUID]uint64)
	maps.Copy(sampled, p.sampled)
	for _, r := range readings {
		if r.failed == "" && !r.mig {
			measured[r.device.UUID], processes[r.device.UUID], sampled[r.device.UUID] = r.usage, r.processes, r.sampled
		}
	}
	p.sampled = sampled
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range readings {
		if was, ok := p.processes[r.device.UUID]; ok && r.failed == "" && r.unlisted {
			processes[r.device.UUID] = was
		}
	}
	p.usage, p.processes = measured, processes
	close(p.measured)
	p.measured = make(chan struct{})
}

// devicesAt returns the device that last had the reading's index, and the MIG instances of that GPU. It omits
// the devices in seen, which this probe has read at any index.
func (p *Prober) devicesAt(r reading, seen map[gpu.UUID]bool) (out []*tracked) {
	for uuid, d := range p.devices {
		inside := r.instance == nil && d.instance != nil && d.instance.of == r.index
		if (d.Index == r.index || inside) && !seen[uuid] {
			out = append(out, d)
		}
	}
	return out
}

// applyReading adds or updates the device of a good reading.
func (p *Prober) applyReading(r reading) {
	d := p.devices[r.device.UUID]
	if d == nil {
		d = &tracked{Device: r.device, instance: r.instance, nvlinks: r.nvlinks}
		d.Speed = r.speed(p.cfg.Speeds)
		was, known := p.offered.Device(d.UUID)
		d.size(p.cfg, r, was, known && p.offered.UnitMiB == p.cfg.UnitMiB && was.MemoryMiB == r.device.MemoryMiB)
		p.devices[d.UUID] = d
		p.log.Info("GPU found", zap.String("device", string(d.UUID)), zap.Int("index", d.Index), zap.String("model", d.Model),
			zap.Int64("memory_mib", d.MemoryMiB), zap.Int64("reserved_mib", r.reservedMiB+p.cfg.ReserveMiB), zap.Int64("units", int64(d.Allocatable)))
		return
	}
	d.instance, d.nvlinks = r.instance, r.nvlinks
	if d.Index != r.device.Index {
		p.log.Info("GPU has another index", zap.String("device", string(d.UUID)), zap.Int("index", r.device.Index), zap.Int("was", d.Index))
		d.Index = r.device.Index
	}
	if d.MemoryMiB != r.device.MemoryMiB { // for example, a MIG instance was recreated with another size
		d.Model, d.Speed = r.device.Model, r.speed(p.cfg.Speeds)
		p.resize(d, r)
	}
	if !d.Status.Unhealthy {
		return
	}
	if d.good++; d.good >= p.cfg.Recovery {
		p.log.Info("GPU is healthy again", zap.String("device", string(d.UUID)), zap.Int("index", d.Index), zap.String("was", d.Status.Reason))
		d.Status = gpu.Status{}
		p.resize(d, r)
	}
}

// variation is the difference in the driver's own memory, in MiB, that does not change the capacity (see
// Decisions).
const variation = 32

// size sets the device's memory and capacity from a reading. Parameter offered is the device with its earlier
// capacity. If keepOffer is true, size keeps that capacity while the driver's own memory differs by at most
// variation. If a larger difference costs exactly one unit, the unit stays in the capacity and counts as foreign
// use: the kubelet would not restart a container whose slot is gone.
func (d *tracked) size(cfg Config, r reading, offered gpu.Device, keepOffer bool) {
	total := r.device.MemoryMiB
	of := func(reserved int64) gpu.Device { return inventory.Size(total, reserved, cfg.ReserveMiB, cfg.UnitMiB) }
	mib := func(d gpu.Device) int64 { return d.MiB(d.Allocatable, cfg.UnitMiB) }
	now := of(r.reservedMiB)
	if keepOffer && mib(of(r.reservedMiB+variation)) <= mib(offered) && mib(offered) <= mib(of(r.reservedMiB-variation)) {
		now = offered
	}
	d.MemoryMiB, d.Allocatable, d.ShareMiB = total, now.Allocatable, now.ShareMiB
	d.reservedMiB = min(r.reservedMiB, total-cfg.ReserveMiB-mib(now))
	if keepOffer && now.ShareMiB == offered.ShareMiB && now.Allocatable == offered.Allocatable-1 && mib(offered) <= total {
		d.Allocatable, d.reservedMiB = offered.Allocatable, r.reservedMiB
	}
}

func (p *Prober) resize(d *tracked, r reading) {
	was := d.Device
	d.size(p.cfg, r, was, d.MemoryMiB == r.device.MemoryMiB)
	if d.Allocatable != was.Allocatable || d.ShareMiB != was.ShareMiB {
		p.log.Warn("GPU offers another amount", zap.String("device", string(d.UUID)), zap.Int("index", d.Index),
			zap.Int64("memory_mib", d.MemoryMiB), zap.Int64("units", int64(d.Allocatable)), zap.Int64("was", int64(was.Allocatable)), zap.Int64("share_mib", d.ShareMiB))
	}
}

func (p *Prober) markUnhealthy(d *tracked, reason string) {
	if d.Status != gpu.Unhealthy(reason) {
		p.log.Warn("GPU is not healthy", zap.String("device", string(d.UUID)), zap.Int("index", d.Index), zap.String("reason", reason))
	}
	d.Status, d.good = gpu.Unhealthy(reason), 0
}

// needsReset returns the reason why a GPU must be reset before it is healthy again, or an empty string. A MIG
// instance needs the reset of its GPU.
func (p *Prober) needsReset(d *tracked) string {
	return cmp.Or(p.resets.of[d.UUID], p.resets.of[d.Parent])
}

func (p *Prober) logResets(err error) {
	if err != nil {
		p.logOnce("resets", "the file of GPUs that need a reset cannot be read or written", zap.String("error", err.Error()))
	}
}

// separateIndexes gives a missing device a new index, higher than all others, if another device has its old
// index.
func (p *Prober) separateIndexes(n int) {
	byUUID := slices.SortedFunc(maps.Values(p.devices), func(a, b *tracked) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	taken := make(map[int]bool)
	next := n
	for _, d := range byUUID {
		next = max(next, d.Index+1)
		if !d.Status.Unhealthy || d.good > 0 {
			taken[d.Index] = true
		}
	}
	for _, d := range byUUID {
		if !d.Status.Unhealthy || d.good > 0 {
			continue
		}
		if taken[d.Index] {
			d.Index = next
			next++
		}
		taken[d.Index] = true
	}
}

// lost marks all devices unhealthy after a failure of NVML as a whole.
func (p *Prober) lost(reason string) string {
	p.measure(nil)
	for _, d := range p.devices {
		p.markUnhealthy(d, reason)
	}
	return reason
}

// reopens reports whether to reopen the library to detect other GPUs or another driver: immediately when the
// kernel shows a change, and at growing intervals while something fails.
func (p *Prober) reopens(load, bound string) bool {
	switch {
	case load != p.reopen.load || bound != p.reopen.bound:
		return true
	case p.allWell():
		p.reopen.wait, p.reopen.every = 0, 0
		return false
	case p.reopen.wait > 0:
		p.reopen.wait--
		return false
	default:
		p.reopen.wait, p.reopen.every = p.reopen.every, min(2*p.reopen.every+1, maxReopen-1)
		return true
	}
}

// allWell returns false if there is a failure that reopening the library could repair.
func (p *Prober) allWell() bool {
	if len(p.devices) == 0 || p.watcher == nil || p.watcher.hasEnded() {
		return false
	}
	for _, d := range p.devices {
		of := d.Index
		if d.instance != nil {
			of = d.instance.of
		}
		late := p.calls.isOverdue(strconv.Itoa(of)) // reopening the library would discard the late answer
		if d.Status.Unhealthy && d.good == 0 && p.needsReset(d) == "" && !late {
			return false
		}
	}
	return true
}

func (p *Prober) publish(reason string) {
	inv := gpu.Inventory{UnitMiB: p.cfg.UnitMiB, Enforcement: gpu.EnforcementAdvisory}
	if p.session != nil {
		inv.DriverVersion = p.session.driver
	}
	byIndex := slices.SortedFunc(maps.Values(p.devices), func(a, b *tracked) int { return cmp.Compare(a.Index, b.Index) })
	p.mu.Lock()
	foreign := p.foreign
	p.mu.Unlock()
	for _, d := range byIndex {
		d.Foreign = d.foreignUnits(p.cfg, foreign[d.UUID])
		inv.Devices = append(inv.Devices, d.Device)
	}
	inv.Links = links(byIndex)
	if len(inv.Devices) > 0 {
		reason = ""
	}
	was, text, _ := p.Inventory()
	if len(inv.Devices) > 0 && inv.DriverVersion == "" {
		inv.DriverVersion = was.DriverVersion
	}
	if reason != "" && reason != text {
		p.log.Info("the node has no GPU to offer", zap.String("reason", reason))
	}
	p.Set(inv, reason)
}

// logOnce logs a message unless it repeats the last one of the same key.
func (p *Prober) logOnce(key, message string, fields ...zap.Field) {
	words := []string{message}
	for _, f := range fields {
		words = append(words, f.String)
	}
	text := strings.Join(words, " ")
	if p.lastLogged[key] == text {
		return
	}
	p.lastLogged[key] = text
	p.log.Info(message, fields...)
}

// close ends the session, unless a call hangs in it. It returns false if the shutdown itself hangs.
func (p *Prober) close(ctx context.Context) bool {
	p.unwatch()
	if p.calls.pending["shutdown"] == nil && (p.session == nil || p.calls.anyHanging()) {
		return true
	}
	s := p.session
	if _, ok := call(ctx, p.calls, "shutdown", func() nvml.Return { return s.lib.Shutdown() }); !ok {
		return false
	}
	p.session = nil
	clear(p.calls.pending) // the calls belong to the ended session
	return true
}
