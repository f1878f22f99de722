package enforcement

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// Probes ask the node what there is. None waits long.
type Probes struct {
	Cgroups Cgroups
	Hook    func() error
	NRI     func() error
	// MPS asks the MPS daemon whether it works, and whether it accounts for memory.
	MPS func(ctx context.Context) (accounting bool, err error)
}

// Node is a prober's GPUs with the level at which containers are held to their
// grants.
type Node struct {
	mode     Mode
	interval time.Duration
	prober   inventory.Source
	probes   Probes
	log      *zap.Logger

	latest *inventory.Latest // with the level

	mu        sync.Mutex // guards the rest
	regions   []Region   // as found at the last look
	writes    bool
	written   error // what came of the last limit that was to be written
	writtenAt time.Time
}

// NewNode returns a node that has nothing until it runs.
func NewNode(mode Mode, interval time.Duration, prober inventory.Source, probes Probes, log *zap.Logger) *Node {
	inv, reason, _ := prober.Inventory()
	return &Node{
		mode: mode, interval: interval, prober: prober, probes: probes, log: log,
		latest: inventory.NewLatest(inv, reason),
	}
}

// forget is after how long a limit that could not be written is no longer held
// against the node: the pod may be gone, and nobody would try again.
const forget = 5 * time.Minute

// lastWrite says why the last limit could not be written.
func (n *Node) lastWrite() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.written == nil || time.Since(n.writtenAt) > forget {
		return nil
	}
	return fmt.Errorf("a limit could not be set: %w", n.written)
}

// Inventory returns the prober's, with the level that holds and why it is no
// stronger. Where the node was told to have a level that does not hold, no GPU
// is healthy. The channel is closed when any of this has changed.
func (n *Node) Inventory() (inv gpu.Inventory, reason string, changed <-chan struct{}) {
	return n.latest.Inventory()
}

// Looked is closed once Run has looked for the first time.
func (n *Node) Looked() <-chan struct{} { return n.latest.Looked() }

// Run looks at an interval, and when the GPUs change, until the context is done.
func (n *Node) Run(ctx context.Context) error { return inventory.Watch(ctx, n.interval, n.look) }

// look judges the node anew and publishes what has changed. It returns what is
// closed when there are other GPUs.
func (n *Node) look(ctx context.Context) <-chan struct{} {
	inv, reason, changed := n.prober.Inventory()
	facts := n.facts(ctx, inv)
	if ctx.Err() != nil {
		return changed
	}
	verdict := Judge(facts)
	verdict.apply(n.mode, &inv)
	was, _, _ := n.latest.Inventory()
	n.mu.Lock()
	n.regions, n.writes = facts.Regions, verdict.Writes
	n.mu.Unlock()
	n.latest.Set(inv, reason)
	if was.Enforcement != inv.Enforcement || was.Weaker != inv.Weaker {
		n.log.Info("enforcement judged", zap.String("level", string(inv.Enforcement)),
			zap.String("was", string(was.Enforcement)), zap.String("weaker", inv.Weaker))
	}
	return changed
}

// apply writes a verdict into an inventory.
func (v Verdict) apply(mode Mode, inv *gpu.Inventory) {
	inv.Enforcement, inv.Weaker = v.Level, v.Weaker()
	if mode == Auto {
		return
	}
	told := gpu.Enforcement(mode)
	inv.Enforcement, inv.Weaker = gpu.WeakerOf(v.Level, told), ""
	if v.Level.AtLeast(told) {
		return
	}
	inv.Weaker = fmt.Sprintf("%s: %v", told, v.lacks(told))
	for i := range inv.Devices {
		if d := &inv.Devices[i]; d.Status.TakesPods() {
			d.Status = gpu.Unhealthy("enforcement " + inv.Weaker)
		}
	}
}

func (n *Node) facts(ctx context.Context, inv gpu.Inventory) Facts {
	f := Facts{Driver: inv.DriverVersion, Devices: inv.Devices, Hook: n.probes.Hook(), NRI: n.probes.NRI()}
	f.Regions, f.Dmem = n.probes.Cgroups.Regions()
	f.Written = n.lastWrite()
	f.Accounting, f.MPS = n.probes.MPS(ctx)
	return f
}

// Ready says why a container that was promised a level must not start now; nil
// when it may. It asks those who enforce, and not what was found last.
func (n *Node) Ready(ctx context.Context, level gpu.Enforcement) error {
	if level == gpu.EnforcementAdvisory || level == "" {
		return nil
	}
	inv, _, _ := n.prober.Inventory()
	facts := n.facts(ctx, inv)
	facts.Written = nil // only the start of a container shows whether limits can be set again
	if verdict := Judge(facts); !verdict.Level.AtLeast(level) {
		return fmt.Errorf("enforcement %s does not hold at present: %w", level, verdict.lacks(level))
	}
	return nil
}

// regionsOf returns the regions of some GPUs, and whether the plugin has to write
// the limits itself.
func (n *Node) regionsOf(devices []gpu.Device) (regions []Region, writes bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range devices {
		if r, ok := RegionOf(d, n.regions); ok {
			regions = append(regions, r)
		}
	}
	return regions, n.writes
}
