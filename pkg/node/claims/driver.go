package claims

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/mps"
	"github.com/gpumem/gpumem/pkg/node/render"
	"github.com/gpumem/gpumem/pkg/process/operation"
)

// Config contains the settings of a Driver. All fields must be set.
type Config struct {
	Domain     string // name of the driver, and domain of its CDI devices
	Node       string // name of the pool
	Cores      bool   // also offer cores
	Containers render.Config

	// Ready returns an error if a level does not hold now.
	Ready func(ctx context.Context, level gpu.Enforcement, devices []gpu.Device) error
}

// Driver prepares the claims of a node's pods.
type Driver struct {
	cfg    Config
	offers *grants.Offers
	disk   Disk
	log    *zap.Logger

	mu      sync.Mutex // guards the rest; held while claims are written to disk
	claims  map[types.UID]Claim
	changed chan struct{} // closed and replaced when claims change
}

// New returns a driver. The parameter prepared is the map from Recover; the driver owns it from now on.
func New(cfg Config, offers *grants.Offers, disk Disk, prepared map[types.UID]Claim, log *zap.Logger) *Driver {
	return &Driver{cfg: cfg, offers: offers, disk: disk, log: log, claims: prepared, changed: make(chan struct{})}
}

// Restore makes the CDI files match the checkpoint. Call it after the first probe of the GPUs.
func (d *Driver) Restore() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	uids, err := d.disk.Specs()
	if err != nil {
		return fmt.Errorf("CDI files: %w", err)
	}
	for _, uid := range uids {
		if _, ok := d.claims[uid]; !ok {
			d.log.Info("CDI file removed of a claim that is not prepared", zap.String("uid", string(uid)))
			if err := d.disk.RemoveSpec(uid); err != nil {
				return fmt.Errorf("CDI file of claim %s: %w", uid, err)
			}
		}
	}
	offer, _ := d.offers.Current()
	for _, c := range d.claims {
		if _, err := d.write(c, offer.Inventory); err != nil {
			// The claim's containers cannot start until the GPU is back. Other claims are unaffected.
			d.log.Warn("claim has no CDI file", zap.String("claim", c.Namespace+"/"+c.Name), zap.Error(err))
		}
	}
	return nil
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	ctx = operation.Begin(ctx)
	out := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		result, err := d.prepare(ctx, claim)
		if err != nil {
			// The kubelet records the error in an event on the pod, and retries.
			result.Err = fmt.Errorf("claim %s: %s", claim.Name, reasons.Error(err))
			operation.Log(ctx, d.log).Warn("claim is not prepared", zap.String("claim", claim.Namespace+"/"+claim.Name), zap.String("uid", string(claim.UID)), zap.Error(err))
		}
		out[claim.UID] = result
	}
	return out, nil
}

func (d *Driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) (result kubeletplugin.PrepareResult, err error) {
	c, err := parse(claim, d.cfg.Domain, d.cfg.Node)
	if err != nil {
		return result, err
	}
	offer, _ := d.offers.Current()
	names, err := d.enter(ctx, &c, offer)
	if err != nil {
		return result, err
	}
	if err := d.ready(ctx, c); err != nil {
		return result, err
	}
	operation.Log(ctx, d.log).Info("claim prepared", zap.String("claim", c.Namespace+"/"+c.Name), zap.String("uid", string(c.UID)), zap.Any("shares", c.Shares), zap.String("enforcement", string(c.Enforcement)))
	for i, s := range c.Shares {
		device := kubeletplugin.Device{Requests: []string{c.Request}, PoolName: d.cfg.Node, DeviceName: s.Device, ShareID: s.ID}
		if i == 0 {
			device.CDIDeviceIDs = names // these CDI devices apply to all results
		}
		result.Devices = append(result.Devices, device)
	}
	return result, nil
}

// enter records claim c, sets the fields that its allocation lacks, and returns the names of its CDI devices. If
// c is already recorded with the same allocation, enter sets c to the record. It overwrites a record with another
// allocation. If the kubelet has canceled the call, enter returns an error and changes nothing, because a later
// call may contradict this one.
func (d *Driver) enter(ctx context.Context, c *Claim, offer grants.Offer) (names []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	previous, known := d.claims[c.UID]
	if known && previous.isSame(*c) {
		*c = previous
		return d.write(*c, offer.Inventory)
	}
	inv := offer.Inventory
	c.UnitMiB = inv.UnitMiB
	memory, _, err := c.grant(inv)
	if err != nil {
		return nil, err
	}
	if err := admit(*c, memory.Devices, d.claims); err != nil {
		return nil, err
	}
	if c.Enforcement = inv.LevelFor(len(memory.Devices)); inv.MPS {
		c.MPS = mps.Protocol
	}
	for i := range c.Shares {
		at := slices.IndexFunc(memory.Devices, func(g gpu.Device) bool { return resourceslices.DeviceName(g.UUID) == c.Shares[i].Device })
		c.Shares[i].UUID = memory.Devices[at].UUID
		if c.Shares[i].Shares > 0 {
			c.Shares[i].MiB = memory.Devices[at].MiB(gpu.Units(c.Shares[i].Shares), 0)
		}
	}
	d.claims[c.UID] = *c
	if err := d.save(); err != nil {
		if delete(d.claims, c.UID); known {
			d.claims[c.UID] = previous
		}
		return nil, fmt.Errorf("write the checkpoint: %w", err)
	}
	return d.write(*c, inv)
}

// save writes the checkpoint and signals the change.
func (d *Driver) save() error {
	if err := writeClaims(d.disk, d.claims); err != nil {
		return err
	}
	close(d.changed)
	d.changed = make(chan struct{})
	return nil
}

// write writes the CDI file of a claim, and returns the names of its CDI devices.
func (d *Driver) write(c Claim, inv gpu.Inventory) ([]string, error) {
	file, names, err := spec(d.cfg.Containers, d.cfg.Domain, c, inv)
	if err != nil {
		return nil, err
	}
	if err := d.disk.WriteSpec(c.UID, file); err != nil {
		return nil, fmt.Errorf("write the CDI file: %w", err)
	}
	return names, nil
}

// ready returns an error if the containers of a claim must not start now.
func (d *Driver) ready(ctx context.Context, c Claim) error {
	if err := mps.CheckProtocol(c.MPS); err != nil {
		return err
	}
	return d.cfg.Ready(ctx, c.Enforcement, nil)
}

// RetiredClients returns, by GPU, the claims that version 0.2 prepared for an MPS protocol that gpumem no
// longer runs.
func (d *Driver) RetiredClients(gpu.Inventory, map[string]string) map[gpu.UUID][]string {
	out := make(map[gpu.UUID][]string)
	for _, c := range d.Claims() {
		if mps.CheckProtocol(c.MPS) == nil {
			continue
		}
		name := c.Namespace + "/" + c.Name
		for _, s := range c.Shares { // a claim may have several shares of one GPU
			if !slices.Contains(out[s.UUID], name) {
				out[s.UUID] = append(out[s.UUID], name)
			}
		}
	}
	return out
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	ctx = operation.Begin(ctx)
	out := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		err := d.removeClaim(ctx, claim.UID)
		if err != nil {
			operation.Log(ctx, d.log).Warn("claim is not given back", zap.Stringer("claim", claim), zap.Error(err))
		}
		out[claim.UID] = err
	}
	return out, nil
}

// removeClaim removes the record and the CDI file of a claim. If the kubelet has canceled the call, removeClaim
// returns an error and changes nothing, because a later call may contradict this one.
func (d *Driver) removeClaim(ctx context.Context, uid types.UID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := d.disk.RemoveSpec(uid); err != nil {
		return fmt.Errorf("remove the CDI file: %w", err)
	}
	previous, ok := d.claims[uid]
	if !ok {
		return nil
	}
	delete(d.claims, uid)
	if err := d.save(); err != nil {
		d.claims[uid] = previous
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	operation.Log(ctx, d.log).Info("claim given back", zap.String("claim", previous.Namespace+"/"+previous.Name), zap.String("uid", string(uid)))
	return nil
}

// Claims returns the prepared claims, sorted by namespace and name.
func (d *Driver) Claims() []Claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Claim, 0, len(d.claims))
	for _, c := range d.claims {
		out = append(out, c)
	}
	slices.SortFunc(out, compare)
	return out
}

// Prepared returns the number of prepared claims, and a channel that is closed when they change.
func (d *Driver) Prepared() (int, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.claims), d.changed
}
