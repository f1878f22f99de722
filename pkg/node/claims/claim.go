package claims

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

const mib = 1 << 20

// Claim is a prepared ResourceClaim with its parts of the node's GPUs, as stored in the checkpoint.
type Claim struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Request   string    `json:"request"`       // name of the request, or REQUEST/SUBREQUEST
	Pod       *Pod      `json:"pod,omitempty"` // first pod that the claim was reserved for; nil if none
	Shares    []Share   `json:"shares"`

	// Settings of the node when the claim was prepared. They apply to the claim's containers even if the node's
	// settings have changed since.
	UnitMiB     int64           `json:"unitMiB"`
	Enforcement gpu.Enforcement `json:"enforcement"`
	MPS         int             `json:"mps,omitempty"` // protocol of the MPS daemon: 3 for a claim that version 0.2 prepared; 0 without a daemon
}

// Pod is a pod in the namespace of its claim.
type Pod struct {
	UID  types.UID `json:"uid"`
	Name string    `json:"name"`
}

// Share is one result of an allocation: a part of a device, in MiB or in shares (tenths of a GPU).
type Share struct {
	Device string     `json:"device"`         // name in the pool
	UUID   gpu.UUID   `json:"uuid,omitempty"` // of the device; the driver adds it, because the allocation lacks it
	ID     *types.UID `json:"id,omitempty"`
	MiB    int64      `json:"mib"`              // memory; for an allocation in shares, the driver adds it
	Shares int64      `json:"shares,omitempty"` // number of shares; 0 for an allocation in MiB
	Cores  int64      `json:"cores,omitempty"`  // per cent; 0 if not limited
}

// parse converts a claim's allocation of a node's GPUs. It returns an error for allocations that no container
// could get, and for features that this driver does not offer.
func parse(claim *resourceapi.ResourceClaim, driver, node string) (Claim, error) {
	c := Claim{UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name}
	if claim.Status.Allocation == nil {
		return c, errors.New("it is not allocated")
	}
	for _, by := range claim.Status.ReservedFor {
		if by.APIGroup == "" && by.Resource == "pods" && c.Pod == nil {
			c.Pod = &Pod{UID: by.UID, Name: by.Name}
		}
	}
	for _, config := range claim.Status.Allocation.Devices.Config {
		if config.Opaque != nil && config.Opaque.Driver == driver {
			return c, fmt.Errorf("it has parameters for %s, which takes none", driver)
		}
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driver {
			continue
		}
		share, err := parseShare(result, node)
		if err != nil {
			return c, err
		}
		if err := c.add(result.Request, share); err != nil {
			return c, err
		}
	}
	if len(c.Shares) == 0 {
		return c, fmt.Errorf("it was allocated nothing of %s", driver)
	}
	return c, nil
}

// add adds a request's allocation on one device.
func (c *Claim) add(request string, s Share) error {
	switch {
	case len(c.Shares) > 0 && request != c.Request:
		return fmt.Errorf("it asks for GPUs by several requests, %s and %s: write a claim for each container, and count for several GPUs", c.Request, request)
	case len(c.Shares) > 0 && (s.Shares > 0) != c.InShares():
		return errors.New("it was allocated shares of one GPU and memory of another")
	}
	c.Request, c.Shares = request, append(c.Shares, s)
	return nil
}

func parseShare(result resourceapi.DeviceRequestAllocationResult, node string) (Share, error) {
	s := Share{Device: result.Device, ID: result.ShareID}
	memory, ok := result.ConsumedCapacity[resourceslices.CapacityMemory]
	shares, inShares := result.ConsumedCapacity[resourceslices.CapacityShares]
	cores := result.ConsumedCapacity[resourceslices.CapacityCores]
	switch {
	case result.Pool != node:
		return s, fmt.Errorf("it was allocated GPUs of node %s, and this is %s", result.Pool, node)
	case result.AdminAccess != nil && *result.AdminAccess:
		return s, errors.New("it asks for admin access, which is not offered")
	case inShares && (ok || !cores.IsZero() || shares.Value() <= 0 || shares.Value() > gpu.SharesPerDevice):
		return s, fmt.Errorf("it was allocated %s of the %d shares of a GPU", shares.String(), gpu.SharesPerDevice)
	case inShares:
		s.Shares = shares.Value()
		return s, nil
	case !ok:
		return s, errors.New("it was allocated no amount of memory: is DRAConsumableCapacity on at the API server and kube-scheduler?")
	case memory.Value() <= 0 || memory.Value()%mib != 0:
		return s, fmt.Errorf("it was allocated %s of memory, which is not whole MiB", memory.String())
	case cores.Value() < 0 || cores.Value() > gpu.CoresPerDevice:
		return s, fmt.Errorf("it was allocated %s of the %d per cent of cores", cores.String(), gpu.CoresPerDevice)
	}
	s.MiB, s.Cores = memory.Value()/mib, cores.Value()
	return s, nil
}

// isSame reports whether two claims have the same allocation.
func (c Claim) isSame(o Claim) bool {
	return c.UID == o.UID && c.Request == o.Request && slices.EqualFunc(c.Shares, o.Shares, func(a, b Share) bool {
		return a.Device == b.Device && a.amount() == b.amount() && a.Shares == b.Shares && a.Cores == b.Cores && (a.ID == nil) == (b.ID == nil) && (a.ID == nil || *a.ID == *b.ID)
	})
}

// amount returns the allocated shares, or MiB.
func (s Share) amount() int64 { return cmp.Or(s.Shares, s.MiB) }

// InShares reports whether the allocation is in shares.
func (c Claim) InShares() bool { return len(c.Shares) > 0 && c.Shares[0].Shares > 0 }

// shareMiB returns the size of one share of a device when the claim was prepared. It is 0 for a claim that was
// not prepared, and for an allocation in MiB.
func (c Claim) shareMiB(device string) int64 {
	for _, s := range c.Shares {
		if s.Device == device && s.Shares > 0 {
			return s.MiB / s.Shares
		}
	}
	return 0
}

// unit returns the number of shares or MiB in one unit of the inventory.
func (c Claim) unit() int64 {
	if c.InShares() {
		return 1
	}
	return c.UnitMiB
}

// format renders an allocated amount for messages.
func (c Claim) format(amount int64) string {
	if c.InShares() {
		return reasons.Amount(gpu.Units(amount), 0)
	}
	return reasons.Amount(gpu.Units(amount), 1)
}

// part is a claim's part of one device: an amount in shares or MiB, and cores in per cent.
type part struct{ amount, cores int64 }

// parts sums up the results of a claim's allocation by device. A claim may have several results on one device.
func (c Claim) parts() map[string]part {
	out := make(map[string]part)
	for _, s := range c.Shares {
		p := out[s.Device]
		out[s.Device] = part{amount: p.amount + s.amount(), cores: p.cores + s.Cores}
	}
	return out
}

// grant returns the memory and the cores of a container that uses the claim, on GPUs of the inventory. It returns
// an error if the inventory lacks one of the claim's GPUs, or if the claim's parts of its GPUs differ.
func (c Claim) grant(inv gpu.Inventory) (memory, cores allocation.Grant, err error) {
	parts := c.parts()
	var each part
	for _, d := range inv.Devices {
		p, ok := parts[resourceslices.DeviceName(d.UUID)]
		if !ok {
			continue
		}
		if len(memory.Devices) > 0 && p != each {
			return memory, cores, fmt.Errorf("it has %s and %d per cent of the cores on one GPU, but %s and %d per cent on a second GPU: GPUs of one request give equal parts", c.format(each.amount), each.cores, c.format(p.amount), p.cores)
		}
		if d.InShares() != c.InShares() {
			return memory, cores, fmt.Errorf("it has %s of GPU %d, which is not offered so any more", c.format(p.amount), d.Index)
		}
		each = p
		d.ShareMiB = cmp.Or(c.shareMiB(resourceslices.DeviceName(d.UUID)), d.ShareMiB)
		memory.Devices = append(memory.Devices, d)
	}
	switch {
	case len(memory.Devices) != len(parts):
		return memory, cores, fmt.Errorf("it has a GPU that is not on this node: %s", strings.Join(c.missing(inv), ", "))
	case c.unit() <= 0 || each.amount%c.unit() != 0:
		return memory, cores, fmt.Errorf("it has %d MiB of a GPU, which are no whole units of %d MiB", each.amount, c.UnitMiB)
	}
	cores = allocation.Grant{Resource: gpu.Cores, Devices: memory.Devices, SlotsPerDevice: int(each.cores)}
	memory.SlotsPerDevice = int(each.amount / c.unit())
	return memory, cores, nil
}

// missing returns the claim's devices that the inventory lacks.
func (c Claim) missing(inv gpu.Inventory) (names []string) {
	for name := range c.parts() {
		if !slices.ContainsFunc(inv.Devices, func(d gpu.Device) bool { return resourceslices.DeviceName(d.UUID) == name }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// admit returns an error if claim c cannot have its allocation of the devices: a GPU is unhealthy, or the other
// prepared claims leave too little of it.
func admit(c Claim, devices []gpu.Device, others map[types.UID]Claim) error {
	parts := c.parts()
	taken := make(map[string]part)
	for uid, o := range others {
		if uid == c.UID {
			continue
		}
		for name, p := range o.parts() {
			taken[name] = part{amount: taken[name].amount + p.amount, cores: taken[name].cores + p.cores}
		}
	}
	for _, d := range devices {
		name := resourceslices.DeviceName(d.UUID)
		want, has := parts[name], taken[name]
		offered := int64(d.Allocatable) * c.unit()
		switch {
		case !d.Advertised():
			return &gpu.OutOfUse{Device: d}
		case want.amount > offered-has.amount:
			return fmt.Errorf("GPU %d has %s, %d of them prepared for other claims: %d more are too much", d.Index, c.format(offered), has.amount, want.amount)
		case want.cores > gpu.CoresPerDevice-has.cores:
			return fmt.Errorf("GPU %d has %d per cent of its cores prepared for other claims: %d more are too much", d.Index, has.cores, want.cores)
		}
	}
	return nil
}

// compare orders claims in the checkpoint.
func compare(a, b Claim) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(string(a.UID), string(b.UID)))
}
