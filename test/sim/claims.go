package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/claims"
	"github.com/gpumem/gpumem/pkg/node/containers"
	"github.com/gpumem/gpumem/pkg/node/nodestate"
)

// claimsOf has one seed in three with nodes that hand out claims. What else there is in a run
// does not depend on it.
func claimsOf(seed uint64) bool { return rand.New(rand.NewPCG(seed, 13)).IntN(3) == 0 }

// claimants is all that there is of claims: their nodes, and the pods that have or want some. Pods
// with claims are none of the API server's others: they ask for no extended resource, and nothing of
// gpumem watches them.
type claimants struct {
	nodes  []*claimNode
	pods   []*claimPod // those whose object is there
	serial int
	open   bool // people make more
}

// claim is a ResourceClaim, of some memory on each of so many GPUs.
type claim struct {
	uid  types.UID
	need amount
	gpus int
	node *claimNode // where it is allocated; nil: nowhere
	on   []string   // names of the devices
	pods []*claimPod
}

type claimPod struct {
	name, uid string
	of        *claim
	node      *claimNode // that it is bound to
	since     time.Duration
	deleted   bool // it is to end
	gone      bool // its object is gone
}

// claimNode is a node that hands out claims: what survives the restarts of its processes.
type claimNode struct {
	*machine // its GPUs and its name: it has neither that kubelet nor that plugin

	disk      *claimDisk
	published []resourceapi.Device // what the API server has of its slices
	infos     map[types.UID]*claimInfo
	running   map[string]*claimPod // whose container the runtime has, by UID

	driver *claimDriver
	worker *claimKubelet
}

func (w *World) addClaimNodes() {
	for i := range 2 {
		m := &machine{w: w, name: fmt.Sprintf("c%d", i+1), byPrefix: make(map[string]string), resized: make(map[gpu.UUID]bool)}
		n := &claimNode{machine: m, disk: newClaimDisk(), infos: make(map[types.UID]*claimInfo), running: make(map[string]*claimPod)}
		for range 2 {
			m.addGPU()
		}
		m.join()
		if w.rng.IntN(2) == 0 { // it had the extended resource a moment ago, and its status says so
			_ = w.api.changeNode(n.name, func(o *v1.Node) { o.Status.Allocatable = w.quantities(amount{units: 20, cores: 200}, false) })
		}
		w.claims.nodes = append(w.claims.nodes, n)
		n.startWorker()
		n.startDriver()
	}
	w.claims.open = true
}

// byClaimsOnly reports whether a node hands out claims: pods have nothing else there.
func (w *World) byClaimsOnly(node string) bool {
	return slices.ContainsFunc(w.claims.nodes, func(n *claimNode) bool { return n.name == node })
}

// claimChaos has people and faults act on claims, until people make no more.
func (w *World) claimChaos() {
	w.after(w.between(50*tick, 800*tick), nil, "-", func() {
		switch {
		case !w.claims.open:
			return
		case w.quiet || w.rng.IntN(100) < 60:
			w.claimantActs()
		default:
			w.claimFault(pick(w.rng, w.claims.nodes))
		}
		w.claimChaos()
	})
}

func (w *World) claimantActs() {
	c := &w.claims
	if len(c.pods) > 0 && (len(c.pods) > 10 || w.rng.IntN(3) == 0) {
		p := pick(w.rng, c.pods)
		force := !w.quiet && w.rng.IntN(4) == 0
		w.logf("user deletes %s, by force: %t", p.name, force)
		if p.deleted = true; force || p.node == nil {
			w.removed(p)
		}
		if p.node != nil {
			p.node.hears(p)
		}
		return
	}
	c.serial++
	p := &claimPod{name: fmt.Sprintf("claimant-%d", c.serial), uid: fmt.Sprintf("claimant-uid-%d", c.serial), since: w.now()}
	if len(c.pods) > 0 && w.rng.IntN(6) == 0 {
		p.of = pick(w.rng, c.pods).of
	} else {
		p.of = &claim{uid: types.UID(fmt.Sprintf("claim-%d", c.serial)), need: amount{units: pick(w.rng, []int{1, 2, 3, 4, 8}), cores: w.someCores(10 * w.rng.IntN(7))}, gpus: 1 + w.rng.IntN(5)/4}
	}
	p.of.pods = append(p.of.pods, p)
	c.pods = append(c.pods, p)
	w.logf("create %s with claim %s: %v of %d GPUs", p.name, p.of.uid, p.of.need, p.of.gpus)
	w.allocateSoon()
}

// removed has the object of a pod gone. A claim without pods is allocated no more, whatever the
// node has heard.
func (w *World) removed(p *claimPod) {
	if p.gone {
		return
	}
	p.gone = true
	is := func(o *claimPod) bool { return o == p }
	w.claims.pods = slices.DeleteFunc(w.claims.pods, is)
	if p.of.pods = slices.DeleteFunc(p.of.pods, is); len(p.of.pods) == 0 {
		p.of.node = nil
		w.allocateSoon()
	}
}

func (w *World) claimFault(n *claimNode) {
	again := func(what string, start func()) {
		w.after(w.between(200*tick, 5*time.Second), nil, n.name+": "+what, start)
	}
	switch w.rng.IntN(7) {
	case 0:
		n.killDriver("crashes")
	case 1:
		n.disk.left, n.disk.after = w.rng.IntN(4), w.rng.IntN(2) == 0
		w.logf("  fault: %s: the driver ends in %d writes, after: %t", n.name, n.disk.left, n.disk.after)
	case 2:
		n.killWorker()
		again("kubelet starts", n.startWorker)
	case 3:
		n.killDriver("its machine reboots")
		n.killWorker()
		clear(n.running)
		clear(n.disk.specs) // the folder is in memory
		if w.rng.IntN(3) == 0 {
			w.logf("  %s: the kubelet's folder is lost", n.name)
			n.disk.checkpoint = nil
			clear(n.infos)
		}
		again("kubelet starts", n.startWorker)
	case 4:
		d := pick(w.rng, n.hardware).UUID
		health := func(healthy bool) {
			n.setHealth(d, healthy)
			n.driver.reprobe()
		}
		health(false)
		w.after(w.between(time.Second, 20*time.Second), nil, "GPU recovers", func() { health(true) })
	case 5:
		if d := &n.hardware[w.rng.IntN(len(n.hardware))]; d.Allocatable > 4 {
			d.Allocatable -= 2
			n.resized[d.UUID] = true
			n.driver.reprobe()
		}
	case 6:
		w.cordon(n.machine)
	}
}

// calmClaims turns the faults off.
func (w *World) calmClaims() {
	if len(w.claims.nodes) == 0 {
		return
	}
	for _, n := range w.claims.nodes {
		for i := range n.hardware {
			n.hardware[i].Status = gpu.Status{}
		}
		n.disk.left = -1
		n.startDriver()
		n.driver.reprobe()
		// A kubelet that has given back a claim without an answer takes it for prepared, and starts no
		// other pod of it. It ends with the kubelet.
		n.killWorker()
		n.startWorker()
	}
	w.after(settleTime+bustleTime, nil, "no more claims are made", func() { w.claims.open = false })
}

// allocateSoon has kube-scheduler look at claims, as its own plugin does: the first devices that fit,
// in the order in which they are published.
func (w *World) allocateSoon() {
	w.after(w.between(2*tick, 500*tick), nil, "kube-scheduler: claims", func() {
		for _, p := range slices.Clone(w.claims.pods) {
			if p.node != nil || p.deleted {
				continue
			}
			if p.of.node == nil {
				w.allocateClaim(p.of)
			}
			if p.node = p.of.node; p.node != nil {
				w.logf("  %s to %s, %v", p.name, p.node.name, p.of.on)
				p.node.hears(p)
			}
		}
	})
}

func (w *World) allocateClaim(c *claim) {
	for _, n := range w.claims.nodes {
		taken := make(map[string]amount)
		for _, p := range w.claims.pods {
			for _, name := range p.of.on {
				if p.of.node == n && p.of.pods[0] == p { // each claim once
					taken[name] = taken[name].plus(p.of.need)
				}
			}
		}
		var on []string
		for _, d := range n.published {
			memory, cores := d.Capacity["memory"].Value, d.Capacity["cores"].Value
			left := amount{units: int(memory.Value() >> 30), cores: int(cores.Value())}.minus(taken[d.Name])
			if len(on) < c.gpus && len(d.Taints) == 0 && left.covers(c.need) {
				on = append(on, d.Name)
			}
		}
		if len(on) == c.gpus {
			c.node, c.on = n, on
			return
		}
	}
}

// object is the claim as the API server has it.
func (c *claim) object(domain string) *resourceapi.ResourceClaim {
	out := new(resourceapi.ResourceClaim)
	out.UID, out.Namespace, out.Name = c.uid, "default", string(c.uid)
	out.Status.Allocation = &resourceapi.AllocationResult{}
	for _, name := range c.on {
		capacity := map[resourceapi.QualifiedName]resource.Quantity{
			"memory": *resource.NewQuantity(int64(c.need.units)<<30, resource.BinarySI), "cores": *resource.NewQuantity(int64(c.need.cores), resource.DecimalSI),
		}
		out.Status.Allocation.Devices.Results = append(out.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: domain, Pool: c.node.name, Device: name, ShareID: new("of-" + c.uid), ConsumedCapacity: capacity,
		})
	}
	for _, p := range c.pods {
		out.Status.ReservedFor = append(out.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p.name, UID: types.UID(p.uid)})
	}
	return out
}

// claimDisk is what the driver writes to. It can end the driver before one of its writes, or after.
type claimDisk struct {
	checkpoint []byte
	specs      map[types.UID][]byte
	left       int // so many writes until then; below 0: it does not
	after      bool
}

// ended is what the driver's goroutine panics with when the disk has ended it.
type ended struct{}

func newClaimDisk() *claimDisk { return &claimDisk{specs: make(map[types.UID][]byte), left: -1} }

func (d *claimDisk) write(do func()) {
	if d.left != 0 {
		d.left--
		do()
		return
	}
	if d.left = -1; d.after {
		do()
	}
	panic(ended{})
}

func (d *claimDisk) Read() ([]byte, error) { return d.checkpoint, nil }

func (d *claimDisk) Write(data []byte) error {
	d.write(func() { d.checkpoint = slices.Clone(data) })
	return nil
}

func (d *claimDisk) SetAside() (string, error) { return "", errors.New("the checkpoint is unusable") }

func (d *claimDisk) ReadSpec(uid types.UID) ([]byte, error) { return d.specs[uid], nil }

func (d *claimDisk) Specs() ([]types.UID, error) { return slices.Sorted(maps.Keys(d.specs)), nil }

func (d *claimDisk) WriteSpec(uid types.UID, data []byte) error {
	d.write(func() { d.specs[uid] = slices.Clone(data) })
	return nil
}

func (d *claimDisk) RemoveSpec(uid types.UID) error {
	d.write(func() { delete(d.specs, uid) })
	return nil
}

// claimDriver is one process of gpumem-device-plugin on such a node. What it answers and what it
// publishes are the product's; the library between it and the kubelet is modelled.
type claimDriver struct {
	*process
	n       *claimNode
	real    *claims.Driver
	offers  *nodestate.Offers
	nodes   *informer[*v1.Node]
	changed chan struct{} // of the inventory
	now     gpu.Inventory
	writing bool
}

func (n *claimNode) startDriver() {
	if n.driver != nil && n.driver.live {
		return
	}
	w := n.w
	d := &claimDriver{process: w.newProcess(n.name + " driver"), n: n, now: n.inventory(), changed: make(chan struct{})}
	n.driver = d
	d.offers = nodestate.NewOffers(d, !w.cfg.Cores)
	cfg := claims.Config{
		Domain: w.names.Domain(), Node: n.name, Cores: w.cfg.Cores, Containers: containers.DefaultConfig(),
		Ready: func(context.Context, gpu.Enforcement, []gpu.Device) error { return nil },
	}
	_ = d.do(func() (err error) { // ended by the disk, it is started again
		prepared, err := claims.Recover(context.Background(), n.disk, nil, cfg.Domain, n.name, 0, zap.NewNop())
		if err != nil {
			w.violate("I9", "%s does not start: %v", d.name, err)
		}
		d.real = claims.New(cfg, d.offers, n.disk, prepared, zap.NewNop())
		err = d.real.Restore()
		if err != nil {
			w.violate("I9", "%s does not start: %v", d.name, err)
		}
		return err
	})
	d.nodes = w.api.watchNodes(d.process, d.name+" node", toolscache.ResourceEventHandlerFuncs{}, func(o *v1.Node) bool { return o.Name == n.name })
	d.nodes.after = func() { d.publish(); d.ensureInventory() }
}

// Inventory implements inventory.Source.
func (d *claimDriver) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	return d.now, "", d.changed
}

// do runs the product, until the disk ends it.
func (d *claimDriver) do(f func() error) (err error) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case ended{}:
			d.n.killDriver("ends in a write")
			err = errLost
		default:
			panic(r)
		}
	}()
	return f()
}

func (n *claimNode) killDriver(why string) {
	if !n.driver.live {
		return
	}
	n.w.logf("  %s: the driver %s", n.name, why)
	n.driver.kill()
	n.w.after(n.w.between(200*tick, 5*time.Second), nil, n.name+": driver starts", n.startDriver)
}

// reprobe takes in what the GPUs are now.
func (d *claimDriver) reprobe() {
	if !d.live {
		return
	}
	d.now = d.n.inventory()
	close(d.changed)
	d.changed = make(chan struct{})
	d.publish()
	d.ensureInventory()
}

// publish writes the slices, some time later.
func (d *claimDriver) publish() {
	w := d.n.w
	w.after(w.between(1*tick, 500*tick), d.process, d.name+": publishes", func() {
		node := d.nodes.store[d.n.name]
		if node == nil {
			return // it is told of it later
		}
		if w.api.down {
			d.publish()
			return
		}
		offer, _ := d.offers.Now()
		inv := api.Cordon(offer.Inventory, w.names.CordonedGPUs(node))
		d.n.published = claims.Resources(inv, w.names.Domain(), d.n.name, w.cfg.Cores).Pools[d.n.name].Slices[0].Devices
		w.allocateSoon()
	})
}

// ensureInventory writes the node's annotation, as nodepods.Node does.
func (d *claimDriver) ensureInventory() {
	w, node := d.n.w, d.nodes.store[d.n.name]
	if node == nil || d.writing || !d.live {
		return
	}
	inv, _ := d.offers.Inventory()
	for i := range inv.Devices {
		inv.Devices[i].Status.ByClaims = true
	}
	given, _, _ := d.real.Allocations()
	value, err := api.EncodeInventory(api.WithAllocated(inv, given))
	if err != nil {
		w.violate("I9", "the inventory cannot be written: %v", err)
	}
	if err != nil || node.Annotations[w.names.Inventory()] == value {
		return
	}
	d.writing = true
	w.spawn(func() {
		_ = w.api.request(context.Background(), d.process, d.name+": PATCH node", true, func() error { // tried again below, whatever became of it
			return w.api.changeNode(d.n.name, func(n *v1.Node) { n.Annotations[w.names.Inventory()] = value })
		})
		w.after(time.Second, d.process, d.name+": looks at its node", func() {
			d.writing = false
			d.ensureInventory()
		})
	})
}

// claimInfo is what the kubelet's checkpoint has of a claim: it may be prepared, for these pods.
type claimInfo struct {
	of   *claim
	pods map[string]*claimPod // by UID
}

// claimKubelet is a model of one process of the kubelet, as far as it has to do with claims
// (pkg/kubelet/cm/dra/manager.go).
type claimKubelet struct {
	*process
	n        *claimNode
	pods     map[string]*claimPod // that it has heard of, by UID
	prepared map[types.UID]bool   // the driver has said so to this process
	busy     map[string]bool      // pods whose worker is at work
	calling  map[types.UID]bool   // claims of which the driver was asked
}

func (n *claimNode) startWorker() {
	if n.worker != nil && n.worker.live {
		return
	}
	k := &claimKubelet{process: n.w.newProcess(n.name + " kubelet"), n: n, pods: make(map[string]*claimPod), prepared: make(map[types.UID]bool), busy: make(map[string]bool), calling: make(map[types.UID]bool)}
	n.worker = k
	for _, p := range n.w.claims.pods {
		if p.node == n {
			n.hears(p)
		}
	}
	for _, info := range sorted(n.infos) {
		for _, p := range sorted(info.pods) {
			n.hears(p) // of one that is gone, too: what it has is to be given back
		}
	}
}

func (n *claimNode) killWorker() {
	if n.worker.live {
		n.worker.kill()
	}
}

// hears has the kubelet look at a pod, some time later.
func (n *claimNode) hears(p *claimPod) { n.worker.soon(p, n.w.between(10*tick, 500*tick)) }

func (k *claimKubelet) soon(p *claimPod, d time.Duration) {
	k.n.w.after(d, k.process, k.name+": "+p.name, func() {
		if k.pods[p.uid] = p; !k.busy[p.uid] {
			k.work(p)
		}
	})
}

// work does what is next for a pod.
func (k *claimKubelet) work(p *claimPod) {
	w := k.n.w
	again := func(d time.Duration) {
		k.busy[p.uid] = true
		w.after(d, k.process, k.name+": "+p.name+" goes on", func() {
			k.busy[p.uid] = false
			k.work(p)
		})
	}
	switch retry := w.between(500*tick, 5*time.Second); {
	case k.calling[p.of.uid]:
		again(100 * tick)
	case (p.deleted || p.gone) && k.n.running[p.uid] != nil:
		k.busy[p.uid] = true
		w.after(w.between(50*tick, 2*time.Second), k.process, k.name+": "+p.name+" has stopped", func() {
			delete(k.n.running, p.uid)
			k.busy[p.uid] = false
			k.work(p)
		})
	case p.deleted || p.gone:
		k.release(p, func() { again(retry) })
	case k.n.running[p.uid] != nil:
	case k.prepared[p.of.uid]:
		k.refer(p)
		if !k.starts(p) {
			again(retry)
		}
	case w.api.down:
		again(retry)
	default:
		k.refer(p)
		object := p.of.object(w.names.Domain())
		k.call("prepare", p.of, func(ctx context.Context, d *claims.Driver) error {
			out, err := d.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{object})
			return errors.Join(err, out[p.of.uid].Err)
		}, func(err error) {
			if err != nil {
				w.logf("  %s: %s is not prepared: %v", k.name, p.of.uid, err)
				again(retry)
				return
			}
			k.prepared[p.of.uid] = true
			k.work(p)
		})
	}
}

// refer writes down that a pod may have a claim.
func (k *claimKubelet) refer(p *claimPod) {
	if k.n.infos[p.of.uid] == nil {
		k.n.infos[p.of.uid] = &claimInfo{of: p.of, pods: make(map[string]*claimPod)}
	}
	k.n.infos[p.of.uid].pods[p.uid] = p
}

// release gives a claim back when no other pod has it.
func (k *claimKubelet) release(p *claimPod, again func()) {
	w, info := k.n.w, k.n.infos[p.of.uid]
	done := func() {
		delete(k.pods, p.uid)
		w.removed(p)
	}
	switch {
	case info == nil || info.pods[p.uid] == nil:
		done()
	case len(info.pods) > 1:
		delete(info.pods, p.uid)
		done()
	default:
		k.call("unprepare", p.of, func(ctx context.Context, d *claims.Driver) error {
			out, err := d.UnprepareResourceClaims(ctx, []kubeletplugin.NamespacedObject{{UID: p.of.uid}})
			return errors.Join(err, out[p.of.uid])
		}, func(err error) {
			if err != nil {
				again()
				return
			}
			delete(k.n.infos, p.of.uid)
			delete(k.prepared, p.of.uid)
			done()
		})
	}
}

// call asks the driver. The question or its answer may be lost, it may come twice, and it may be
// worked off when the kubelet has given it up.
func (k *claimKubelet) call(name string, c *claim, do func(context.Context, *claims.Driver) error, done func(error)) {
	w, n := k.n.w, k.n
	ctx, cancel := context.WithCancel(context.Background())
	k.calling[c.uid] = true
	answer := func(err error) {
		if !k.calling[c.uid] || ctx.Err() != nil {
			return
		}
		cancel()
		delete(k.calling, c.uid)
		done(err)
	}
	there, back, patience := w.between(1*tick, 20*tick), w.between(1*tick, 20*tick), w.between(time.Second, 10*time.Second)
	arrive := func(d time.Duration, lost bool) {
		driver := n.driver
		w.after(d, driver.process, name+" "+string(c.uid)+" on "+n.name, func() {
			if !k.live {
				cancel() // its end of the connection is closed
			}
			err := driver.do(func() error { return do(ctx, driver.real) })
			driver.ensureInventory()
			if !lost {
				w.after(back, k.process, "answer to "+name+" "+string(c.uid), func() { answer(err) })
			}
		})
	}
	switch fate := w.rng.IntN(12); {
	case w.quiet || fate > 3:
		arrive(there, false)
	case fate == 0: // lost
	case fate == 1: // its answer is lost
		arrive(there, true)
	case fate == 2: // twice
		arrive(there, true)
		arrive(there+back, false)
	case fate == 3: // the driver was stopped, and goes on later
		arrive(patience+w.between(1*tick, 20*time.Second), true)
	}
	w.after(patience, k.process, name+" "+string(c.uid)+" is given up", func() { answer(errLost) })
}
