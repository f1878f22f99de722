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

// Probes read a node's abilities. None waits long.
type Probes struct {
	Cgroups Cgroups
	Driver  Driver
	NRI     func() error // why the container runtime does not call the plugin
	// Late names a container that runs without its limit, because the runtime started it without a call.
	Late func() error
	// MPS returns the indexes of the GPUs whose clients the MPS daemons limit; none with nil: unknown.
	MPS func(ctx context.Context, devices []gpu.Device) (gpus []int, err error)
}

// Node adds the level of enforcement to the inventory of a source.
type Node struct {
	mode     Mode
	interval time.Duration
	source   inventory.Upstream
	probes   Probes
	kernel   *kernel
	log      *zap.Logger

	inventory.Stage // adds the level. Where the node is set to a level that does not work, no GPU is healthy

	mu     sync.Mutex // guards the rest
	held   error      // what came of the last container that was to have a limit
	heldAt time.Time
}

// NewNode returns a node that publishes the source's inventory until it runs.
func NewNode(mode Mode, interval time.Duration, source inventory.Upstream, probes Probes, log *zap.Logger) *Node {
	return &Node{
		mode: mode, interval: interval, source: source, probes: probes, log: log,
		kernel: newKernel(probes.Driver, probes.Cgroups), Stage: inventory.NewStage(source),
	}
}

const (
	// forget is after how long a limit that could not be set no longer counts
	// against the node: the pod may be gone, and no one would try again.
	forget = 5 * time.Minute
	// patience is for the driver, when it sets limits.
	patience = 5 * time.Second
)

// lastHeld returns why a container has no limit: a running one, or the last one that was to start.
func (n *Node) lastHeld() error {
	if late := n.probes.Late(); late != nil {
		return late
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == nil || time.Since(n.heldAt) > forget {
		return nil
	}
	return fmt.Errorf("a limit could not be set: %w", n.held)
}

// Hold sets a container's limit on each of its GPUs, and reads it back. The outcome counts for the node: while limits cannot be
// set, its level is not kernel.
func (n *Node) Hold(ctx context.Context, group string, devices []gpu.Device, limitMiB int64) error {
	err := n.kernel.hold(ctx, group, devices, limitMiB)
	if errors.Is(err, errBusy) { // no answer
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held, n.heldAt = err, time.Now()
	return err
}

// Release frees the reservations of a container that ends.
func (n *Node) Release(ctx context.Context, group string) error {
	inv, _, _ := n.source.Inventory()
	return n.kernel.release(ctx, group, healthy(inv.Devices))
}

// healthy returns the GPUs that answer.
func healthy(devices []gpu.Device) []gpu.Device {
	return slices.DeleteFunc(slices.Clone(devices), func(d gpu.Device) bool { return d.Status.Unhealthy })
}

// Run judges the node at an interval, and when the GPUs change, until the context is done.
func (n *Node) Run(ctx context.Context) error { return n.Watch(ctx, n.interval, n.judge) }

// judge returns the inventory with the level of the node.
func (n *Node) judge(ctx context.Context, inv gpu.Inventory, reason string) (gpu.Inventory, string) {
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

// apply writes a verdict into an inventory.
func (v Verdict) apply(mode Mode, inv *gpu.Inventory) {
	inv.Enforcement, inv.Weaker, inv.MPS = v.Level, v.Weaker(), v.Served
	if mode != Auto {
		inv.Enforcement, inv.Weaker = gpu.Enforcement(mode), ""
	}
	if inv.Enforcement == gpu.EnforcementAdvisory {
		inv.MPS = inv.MPS && mode == Auto
		return
	}
	failed, lacks := v.lacks(inv.Enforcement)
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

// facts reads the node's abilities. It asks about MPS the daemons that serve the devices asked.
func (n *Node) facts(ctx context.Context, inv gpu.Inventory, asked []gpu.Device) Facts {
	f := Facts{Driver: inv.DriverVersion, Devices: inv.Devices, NRI: n.probes.NRI(), Cgroups: n.probes.Cgroups.check(), Held: n.lastHeld()}
	devices := healthy(inv.Devices)
	f.MPSGPUs, f.MPS = n.probes.MPS(ctx, asked)
	if len(devices) == 0 {
		f.Test = errors.New("no GPU answers")
	} else if PartitionsMemory(f.Driver) && f.Cgroups == nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		f.Failed, f.Test = n.kernel.proven(ctx, f.Driver, devices)
	}
	return f
}

// Ready returns why a container that was promised a level must not start now. It reads the node's abilities again, without the
// last inventory. Devices are those that must be limited, healthy or not; none: all.
func (n *Node) Ready(ctx context.Context, level gpu.Enforcement, devices []gpu.Device) error {
	if level == gpu.EnforcementAdvisory || level == "" {
		return nil // without a look at who enforces
	}
	inv, _, _ := n.source.Inventory()
	asked, judged := healthy(inv.Devices), inv.Devices
	if len(devices) > 0 {
		asked, judged = devices, devices
	}
	facts := n.facts(ctx, inv, asked)
	facts.Devices = judged
	facts.Held = nil // only the start of a container shows whether limits can be set again
	failed, lacks := Judge(facts).lacks(level)
	for _, d := range devices {
		lacks = cmp.Or(lacks, failed[d.UUID])
	}
	if lacks != nil {
		return fmt.Errorf("enforcement %s does not hold at present: %w", level, lacks)
	}
	return nil
}
