package enforcement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// Probes read a node's abilities. All of them return quickly.
type Probes struct {
	Cgroups Cgroups
	Driver  Driver
	NRI     func() error // returns the reason why the container runtime does not call the plugin, or nil
	// UnlimitedContainer returns an error that names a container without a limit, if the runtime started one
	// without calling the plugin.
	UnlimitedContainer func() error
	// MPS returns the indexes of the GPUs on which the MPS daemons limit their clients. An empty list with a
	// nil error means unknown.
	MPS func(ctx context.Context, devices []gpu.Device) (gpus []int, err error)
}

// LevelFilter is an inventory stage that adds the enforcement level.
type LevelFilter struct {
	mode     Mode
	interval time.Duration
	source   inventory.Upstream
	probes   Probes
	kernel   *kernel
	log      *zap.Logger

	inventory.Stage // adds the level; all GPUs become unhealthy if the configured level does not work

	mu         sync.Mutex // guards the rest
	limitErr   error      // error of the last attempt to set a container's limit
	limitErrAt time.Time
}

// NewLevelFilter returns a filter that publishes the source's inventory until Run is called.
func NewLevelFilter(mode Mode, interval time.Duration, source inventory.Upstream, probes Probes, log *zap.Logger) *LevelFilter {
	return &LevelFilter{
		mode: mode, interval: interval, source: source, probes: probes, log: log,
		kernel: newKernel(probes.Driver, probes.Cgroups), Stage: inventory.NewStage(source),
	}
}

const (
	// limitErrTTL is the time after which a failure to set a limit no longer lowers the node's level: the pod may be
	// gone, so that nobody retries.
	limitErrTTL = 5 * time.Minute
	// limitTimeout bounds the wait for the driver to set limits.
	limitTimeout = 5 * time.Second
)

// lastLimitError returns an error if a running container, or the last starting one, has no limit.
func (n *LevelFilter) lastLimitError() error {
	if late := n.probes.UnlimitedContainer(); late != nil {
		return late
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.limitErr == nil || time.Since(n.limitErrAt) > limitErrTTL {
		return nil
	}
	return fmt.Errorf("a limit could not be set: %w", n.limitErr)
}

// SetLimit sets a container's limit on each of its GPUs, and reads it back. A failure affects the node: its level
// is not kernel while limits cannot be set.
func (n *LevelFilter) SetLimit(ctx context.Context, group string, devices []gpu.Device, limitMiB int64) error {
	err := n.kernel.setLimits(ctx, group, devices, limitMiB)
	if errors.Is(err, errBusy) { // proves nothing
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limitErr, n.limitErrAt = err, time.Now()
	return err
}

// Release releases the reservations of a container that ends.
func (n *LevelFilter) Release(ctx context.Context, group string) error {
	inv, _, _ := n.source.Inventory()
	return n.kernel.release(ctx, group, healthy(inv.Devices))
}

// healthy returns the GPUs that are not unhealthy.
func healthy(devices []gpu.Device) []gpu.Device {
	return slices.DeleteFunc(slices.Clone(devices), func(d gpu.Device) bool { return d.Status.Unhealthy })
}

// Run updates the level at an interval and when the GPUs change, until the context is done.
func (n *LevelFilter) Run(ctx context.Context) error { return n.Watch(ctx, n.interval, n.addLevel) }

// addLevel returns the inventory with the node's level.
func (n *LevelFilter) addLevel(ctx context.Context, inv gpu.Inventory, reason string) (gpu.Inventory, string) {
	Judge(n.facts(ctx, inv, healthy(inv.Devices))).apply(n.mode, &inv)
	was, _, _ := n.Inventory()
	if ctx.Err() != nil {
		return inv, reason
	}
	if was.Enforcement != inv.Enforcement || was.Weaker != inv.Weaker {
		n.log.Info("enforcement judged", zap.String("level", string(inv.Enforcement)),
			zap.String("was", string(was.Enforcement)), zap.String("weaker", inv.Weaker))
	}
	return inv, reason
}

// apply writes a verdict to an inventory.
func (v Verdict) apply(mode Mode, inv *gpu.Inventory) {
	inv.Enforcement, inv.Weaker, inv.MPS = v.Level, v.Weaker(), v.Served
	if mode != Auto {
		inv.Enforcement, inv.Weaker = gpu.Enforcement(mode), ""
	}
	if inv.Enforcement == gpu.EnforcementAdvisory {
		inv.MPS = inv.MPS && mode == Auto
		return
	}
	failed, lacks := v.failures(inv.Enforcement)
	for i := range inv.Devices {
		d := &inv.Devices[i]
		if why := cmp.Or(lacks, failed[d.UUID]); why != nil && d.Status.TakesPods() {
			d.Status = gpu.Unhealthy(fmt.Sprintf("enforcement %s: %v", inv.Enforcement, why))
		}
	}
	if lacks != nil {
		inv.Enforcement, inv.Weaker = gpu.EnforcementAdvisory, fmt.Sprintf("%s: %v", inv.Enforcement, lacks)
	}
}

// facts reads the node's abilities. Parameter asked lists the devices whose MPS daemons it queries.
func (n *LevelFilter) facts(ctx context.Context, inv gpu.Inventory, asked []gpu.Device) Facts {
	f := Facts{Driver: inv.DriverVersion, Devices: inv.Devices, NRI: n.probes.NRI(), Cgroups: n.probes.Cgroups.check(), LimitError: n.lastLimitError()}
	devices := healthy(inv.Devices)
	f.MPSGPUs, f.MPS = n.probes.MPS(ctx, asked)
	if len(devices) == 0 {
		f.Test = errors.New("no GPU answers")
	} else if PartitionsMemory(f.Driver) && f.Cgroups == nil {
		ctx, cancel := context.WithTimeout(ctx, limitTimeout)
		defer cancel()
		f.Failed, f.Test = n.kernel.testResult(ctx, f.Driver, devices)
	}
	return f
}

// Ready returns an error if a container must not start now, because the level promised to it does not hold. Ready
// reads the node's abilities anew. Parameter devices lists the GPUs that must have limits, healthy or not; an empty
// list means all GPUs.
func (n *LevelFilter) Ready(ctx context.Context, level gpu.Enforcement, devices []gpu.Device) error {
	if level == gpu.EnforcementAdvisory || level == "" {
		return nil // needs no check
	}
	inv, _, _ := n.source.Inventory()
	asked, judged := healthy(inv.Devices), inv.Devices
	if len(devices) > 0 {
		asked, judged = devices, devices
	}
	facts := n.facts(ctx, inv, asked)
	facts.Devices = judged
	facts.LimitError = nil // only a container's start shows whether limits can be set again
	failed, lacks := Judge(facts).failures(level)
	for _, d := range devices {
		lacks = cmp.Or(lacks, failed[d.UUID])
	}
	if lacks != nil {
		return fmt.Errorf("enforcement %s does not hold at present: %w", level, lacks)
	}
	return nil
}
