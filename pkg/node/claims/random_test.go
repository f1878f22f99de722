package claims

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// Calls and answers are lost, repeated and late, each process is killed between any two writes, the machine
// reboots, and GPUs fail and shrink. Prepared claims never exceed a GPU, and a container runs only with its
// prepared claim. After the faults, the node has exactly the claims of its pods.
func TestClaimsUnderRandomFaults(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		tr := newTrial(t, seed)
		for range 150 {
			tr.step()
			tr.check()
		}
		tr.rest()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

var errCall = errors.New("the kubelet has no answer")

// trial is a node under random faults: scheduler, kubelet, driver and GPUs.
type trial struct {
	*rig
	t      *testing.T
	rng    *rand.Rand
	inv    gpu.Inventory
	claims []*trialClaim // claims that the kubelet has not unprepared
	late   []func()      // calls that arrive after the kubelet has canceled them
	shrunk map[gpu.UUID]bool
	serial int
}

// trialClaim is a claim with the one pod that uses it.
type trialClaim struct {
	object     *resourceapi.ResourceClaim
	gib, cores int64
	on         []gpu.UUID
	asked      bool // the kubelet has recorded that the claim may be prepared
	running    bool
	deleted    bool // the pod is gone: the kubelet unprepares the claim
	forgotten  bool // the scheduler allocates its memory again
}

func newTrial(t *testing.T, seed uint64) *trial {
	tr := &trial{t: t, rng: rand.New(rand.NewPCG(seed, 1)), inv: plugintest.TwoGPUs(), shrunk: make(map[gpu.UUID]bool)}
	tr.start(newMemory())
	return tr
}

// start starts a driver on a disk. The driver may be killed while it restores its files.
func (tr *trial) start(disk *memory) {
	for {
		disk.again()
		if tr.rng.IntN(10) == 0 {
			disk.left, disk.after = tr.rng.IntN(2), tr.rng.IntN(2) == 0
		}
		tr.rig = newRig(tr.t, tr.inv, disk)
		err := tr.Restore()
		if !disk.dead {
			if err != nil {
				tr.t.Errorf("the driver does not start: %v", err)
			}
			return
		}
	}
}

func (tr *trial) step() {
	switch n := tr.rng.IntN(40); {
	case n < 8:
		tr.allocate()
	case n < 13 && len(tr.claims) > 0:
		c := tr.claims[tr.rng.IntN(len(tr.claims))]
		c.deleted, c.forgotten = true, c.forgotten || tr.rng.IntN(3) == 0
	case n < 32 && len(tr.claims) > 0:
		tr.work(tr.claims[tr.rng.IntN(len(tr.claims))], tr.call)
	case n == 32:
		tr.disk.left, tr.disk.after = tr.rng.IntN(3), tr.rng.IntN(2) == 0
	case n == 33:
		tr.start(tr.disk)
	case n == 34:
		tr.reboot()
	case n == 35:
		d := &tr.inv.Devices[tr.rng.IntN(len(tr.inv.Devices))]
		d.Status.Unhealthy = !d.Status.Unhealthy
		tr.reprobe()
	case n == 36 && tr.rng.IntN(10) == 0:
		d := &tr.inv.Devices[tr.rng.IntN(len(tr.inv.Devices))]
		d.Allocatable -= 2
		tr.shrunk[d.UUID] = true
		tr.reprobe()
	case n == 37:
		tr.ready = nil
		if tr.rng.IntN(2) == 0 {
			tr.ready = errors.New("the level does not hold now")
		}
	case n > 37 && len(tr.late) > 0:
		i := tr.rng.IntN(len(tr.late))
		arrive := tr.late[i]
		tr.late = slices.Delete(tr.late, i, i+1)
		arrive()
	}
}

// reprobe passes the current GPUs to the driver.
func (tr *trial) reprobe() {
	tr.inv.Devices = slices.Clone(tr.inv.Devices)
	tr.source.Set(func(inv *gpu.Inventory) { inv.Devices = tr.inv.Devices })
}

// allocate creates a claim if the scheduler finds room for it.
func (tr *trial) allocate() {
	tr.serial++
	c := &trialClaim{gib: 1 + tr.rng.Int64N(4), cores: 10 * tr.rng.Int64N(6)}
	for _, d := range tr.inv.Devices {
		gib, cores := int64(d.Allocatable)-c.gib, gpu.CoresPerDevice-c.cores
		for _, o := range tr.claims {
			if !o.forgotten && slices.Contains(o.on, d.UUID) {
				gib, cores = gib-o.gib, cores-o.cores
			}
		}
		if gib >= 0 && cores >= 0 && (len(c.on) == 0 || tr.rng.IntN(3) == 0) {
			c.on = append(c.on, d.UUID)
		}
	}
	if len(c.on) == 0 {
		return
	}
	var results []resourceapi.DeviceRequestAllocationResult
	for _, id := range c.on {
		results = append(results, result(resourceslices.DeviceName(id), c.gib, c.cores))
	}
	c.object = allocated(strconv.Itoa(tr.serial), results...)
	c.object.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: c.object.Name, UID: "pod-" + c.object.UID}}
	tr.claims = append(tr.claims, c)
}

// work makes the kubelet's next step for a claim.
func (tr *trial) work(c *trialClaim, call func(func(context.Context, *Driver) error) error) {
	uid := c.object.UID
	switch {
	case !c.deleted:
		c.asked = true
		err := call(func(ctx context.Context, d *Driver) error {
			out, err := d.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{c.object})
			return errors.Join(err, out[uid].Err)
		})
		if err == nil && !c.running {
			tr.run(c)
		}
	case c.asked:
		c.running = false
		err := call(func(ctx context.Context, d *Driver) error {
			out, err := d.UnprepareResourceClaims(ctx, []kubeletplugin.NamespacedObject{{UID: uid}})
			return errors.Join(err, out[uid])
		})
		if err != nil {
			return
		}
		fallthrough
	default:
		tr.claims = slices.DeleteFunc(tr.claims, func(o *trialClaim) bool { return o == c })
	}
}

// run starts a container with the environment of the claim's CDI file.
func (tr *trial) run(c *trialClaim) {
	env := tr.disk.env(tr.t, c.object.UID)
	var want []string
	for _, id := range c.on {
		want = append(want, string(id))
	}
	if sees := slices.Sorted(strings.SplitSeq(env["NVIDIA_VISIBLE_DEVICES"], ",")); !slices.Equal(sees, want) || env["GPUMEM_LIMIT_MIB"] != strconv.FormatInt(c.gib<<10, 10) {
		tr.t.Errorf("claim %s: the container sees %v with a limit of %s MiB, want %v and %d GiB", c.object.UID, sees, env["GPUMEM_LIMIT_MIB"], want, c.gib)
	}
	c.running = true
}

// call calls the driver over a connection with faults, and restarts a killed driver.
func (tr *trial) call(do func(context.Context, *Driver) error) error {
	once := func() error {
		err := do(tr.t.Context(), tr.Driver)
		if tr.disk.dead {
			tr.start(tr.disk)
			return errKilled
		}
		return err
	}
	switch tr.rng.IntN(12) {
	case 0: // the call is lost
		return errCall
	case 1: // the answer is lost
		_ = once()
		return errCall
	case 2: // the call is repeated
		_ = once()
		return once()
	case 3: // the call arrives after the kubelet has canceled it
		tr.late = append(tr.late, func() {
			ctx, cancel := context.WithCancel(tr.t.Context())
			cancel()
			checkpoint, specs := slices.Clone(tr.disk.checkpoint), maps.Clone(tr.disk.specs)
			if err := do(ctx, tr.Driver); err == nil || !reflect.DeepEqual(checkpoint, tr.disk.checkpoint) || !reflect.DeepEqual(specs, tr.disk.specs) {
				tr.t.Errorf("a call that was given up returns %v, or has changed the disk", err)
			}
		})
		return errCall
	default:
		return once()
	}
}

// reboot ends all containers, and removes the CDI files, because their directory is in memory. If the disk is
// lost, the kubelet's directory is empty too.
func (tr *trial) reboot() {
	clear(tr.disk.specs)
	lost := tr.rng.IntN(3) == 0
	if lost {
		tr.disk.checkpoint = nil
	}
	for _, c := range tr.claims {
		c.running, c.asked = false, c.asked && !lost
	}
	tr.start(tr.disk)
}

type trialShare struct {
	Device string `json:"device"`
	MiB    int64  `json:"mib"`
	Cores  int64  `json:"cores"`
}

// prepared reads the checkpoint without the product's types.
func (tr *trial) prepared() map[types.UID][]trialShare {
	var file struct {
		Claims []struct {
			UID    types.UID    `json:"uid"`
			Shares []trialShare `json:"shares"`
		} `json:"claims"`
	}
	if tr.disk.checkpoint != nil {
		if err := json.Unmarshal(tr.disk.checkpoint, &file); err != nil {
			tr.t.Fatalf("checkpoint: %v: %s", err, tr.disk.checkpoint)
		}
	}
	out := make(map[types.UID][]trialShare)
	for _, c := range file.Claims {
		out[c.UID] = c.Shares
	}
	return out
}

// check compares the checkpoint with the GPUs and the running containers.
func (tr *trial) check() {
	prepared := tr.prepared()
	sum := make(map[string]trialShare)
	for _, shares := range prepared {
		for _, s := range shares {
			sum[s.Device] = trialShare{MiB: sum[s.Device].MiB + s.MiB, Cores: sum[s.Device].Cores + s.Cores}
		}
	}
	for _, d := range tr.inv.Devices {
		if of := sum[resourceslices.DeviceName(d.UUID)]; of.MiB > int64(d.Allocatable)<<10 && !tr.shrunk[d.UUID] || of.Cores > gpu.CoresPerDevice {
			tr.t.Errorf("claims of %d MiB and %d per cent of the cores are prepared on %s, which has %d GiB", of.MiB, of.Cores, d.UUID, d.Allocatable)
		}
	}
	for _, c := range tr.claims {
		var want []trialShare
		for _, id := range c.on {
			want = append(want, trialShare{resourceslices.DeviceName(id), c.gib << 10, c.cores})
		}
		if got := prepared[c.object.UID]; c.running && !slices.Equal(got, want) {
			tr.t.Errorf("a container runs with claim %s, of which %v is prepared, want %v", c.object.UID, got, want)
		}
	}
}

// rest stops the faults, lets the kubelet finish, and compares the complete state of the node's claims.
func (tr *trial) rest() {
	for i := range tr.inv.Devices {
		tr.inv.Devices[i].Status = gpu.Status{}
	}
	tr.disk.again()
	tr.rig = newRig(tr.t, tr.inv, tr.disk)
	if err := tr.Restore(); err != nil {
		tr.t.Errorf("the driver does not start: %v", err)
	}
	direct := func(do func(context.Context, *Driver) error) error { return do(tr.t.Context(), tr.Driver) }
	slices.SortStableFunc(tr.claims, func(a, b *trialClaim) int {
		return strings.Compare(strconv.FormatBool(b.deleted), strconv.FormatBool(a.deleted))
	})
	for _, c := range slices.Clone(tr.claims) {
		tr.work(c, direct)
	}
	tr.check()
	var want []types.UID
	sum, told := make(map[gpu.UUID]gpu.Share), make(map[gpu.UUID]gpu.Share)
	for _, c := range tr.claims {
		switch {
		case c.running:
			want = append(want, c.object.UID)
			for _, id := range c.on {
				sum[id] = gpu.Share{Units: sum[id].Units + gpu.Units(c.gib), Cores: sum[id].Cores + int(c.cores)}
			}
		case len(tr.shrunk) == 0:
			tr.t.Errorf("the container of claim %s does not run, of %d GiB on %v", c.object.UID, c.gib, c.on)
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(tr.prepared())); !slices.Equal(got, want) {
		tr.t.Errorf("prepared: %v, want %v", got, want)
	}
	if got := slices.Sorted(maps.Keys(tr.disk.specs)); !slices.Equal(got, want) {
		tr.t.Errorf("CDI files of %v, want %v", got, want)
	}
	given, _, _ := tr.Allocations()
	for _, g := range given {
		for _, s := range g.Shares {
			told[s.Device] = gpu.Share{Units: told[s.Device].Units + s.Units, Cores: told[s.Device].Cores + s.Cores}
		}
	}
	if !maps.Equal(told, sum) {
		tr.t.Errorf("the node publishes %v, and its pods have %v", told, sum)
	}
}
