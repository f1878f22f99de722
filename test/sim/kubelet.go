package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// grant is what the kubelet records of one container and one resource: the
// checkpoint keeps it, the plugin's reply included.
//
// Where the list of allocated IDs has been made anew while the kubelet waited
// for Allocate, the IDs in question are not in it, and others may be given them
// (kubernetes/kubernetes#137534). The plugin sees by PodResources that they are
// held, unless by a plain init container: then nobody but the checkpoint knows.
type grant struct {
	ids    []string
	env    map[string]string
	hidden bool
}

// sandbox is one pod in the container runtime, which outlives the kubelet.
type sandbox struct {
	running map[string]bool
	done    map[string]bool // init containers that have run
}

// kubelet is a model of one process of the kubelet: its pod manager, its device
// manager (pkg/kubelet/cm/devicemanager/manager.go) and its pod workers.
type kubelet struct {
	*process
	w *World
	m *machine

	pods     *informer[*v1.Pod]
	managed  map[string]*managed // the pod manager, by UID
	inbox    []func()            // what the sync loop has still to do, in a coroutine
	looping  bool
	ready    bool // all sources have been seen
	batching bool // more is waited for

	stocks  [2]stock         // by gpu.Resource
	advised []allocation.Pod // what the plugin knew when it last stated a preference
	asked   time.Duration    // when it was asked for that
	first   bool             // what was given last is the first that its pod was given
}

// stock is what the device manager knows of one resource.
type stock struct {
	healthy   sets.Set[string]
	unhealthy sets.Set[string]
	allocated sets.Set[string]
	reuse     map[string]sets.Set[string] // by UID
	endpoint  *plugin
}

// part is a container's part of one resource.
type part struct {
	container string
	of        gpu.Resource
}

// managed is one pod as the pod manager and its worker know it.
type managed struct {
	pod        *v1.Pod
	spec       *spec
	rejected   bool
	admitted   bool
	stopping   bool
	working    bool // its worker is at work
	again      bool // and has more to do
	terminated bool
	phase      v1.PodPhase // to be written
	writing    bool
	blind      bool // the plugin was asked before it could know the pod
}

func (m *managed) active() bool { return !m.rejected && !m.terminated }

func (w *World) newKubelet(m *machine) *kubelet {
	k := &kubelet{
		process: w.newProcess(m.name + " kubelet"), w: w, m: m,
		managed: make(map[string]*managed),
	}
	for r := range k.stocks {
		k.stocks[r] = stock{healthy: sets.New[string](), unhealthy: sets.New[string](), reuse: make(map[string]sets.Set[string])}
	}
	k.recount()
	k.pods = w.api.watchPods(k.process, k.name+" pods", toolscache.ResourceEventHandlerFuncs{}, func(p *v1.Pod) bool { return p.Spec.NodeName == m.name })
	k.pods.after = k.changed
	if w.cfg.Namesakes { // it still has the one when the other is known to all
		k.pods.lag = pick(w.rng, []time.Duration{30 * tick, 300 * tick, time.Second})
	}
	return k
}

// plugin is the one that is registered for memory, or nil.
func (k *kubelet) plugin() *plugin { return k.stocks[gpu.Memory].endpoint }

// recorded returns all IDs of a resource in the checkpoint.
func (k *kubelet) recorded(r gpu.Resource) sets.Set[string] {
	out := sets.New[string]()
	for _, parts := range k.m.checkpoint {
		for p, g := range parts {
			if p.of == r {
				out.Insert(g.ids...)
			}
		}
	}
	return out
}

// recount makes the lists of allocated IDs again from the checkpoint.
func (k *kubelet) recount() {
	for _, r := range k.w.resources {
		k.stocks[r].allocated = k.recorded(r)
	}
}

// changed takes in what the watch has brought: at once, or a while later with
// what comes until then. The pods of one batch are admitted by their age, in
// another order than they were bound.
func (k *kubelet) changed() {
	switch {
	case k.batching:
	case k.w.chance(k.w.cfg.batches):
		k.batching = true
		k.w.after(k.w.between(20*tick, 500*tick), k.process, k.name+": pods in a batch", func() {
			k.batching = false
			k.set()
		})
	default:
		k.set()
	}
}

// set compares the pods of the API with those that are managed, as PodConfig
// does, and gives the sync loop what there is to do: removals first.
func (k *kubelet) set() {
	there := make(map[string]bool)
	var added []*v1.Pod
	for _, pod := range sorted(k.pods.store) {
		uid := string(pod.UID)
		there[uid] = true
		if known, ok := k.managed[uid]; ok {
			known.pod = pod
			if pod.DeletionTimestamp != nil {
				k.post(func() { k.stop(known) })
			}
			continue
		}
		added = append(added, pod)
	}
	for _, uid := range slices.Sorted(maps.Keys(k.managed)) {
		if !there[uid] {
			gone := k.managed[uid]
			k.post(func() {
				k.w.logf("%s: removes %s", k.name, gone.spec.name)
				if k.managed[uid] == gone {
					delete(k.managed, uid)
				}
				k.stop(gone)
			})
		}
	}
	slices.SortStableFunc(added, func(a, b *v1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, pod := range added {
		uid := string(pod.UID)
		k.post(func() {
			if k.managed[uid] == nil {
				k.admit(pod)
			}
		})
	}
	k.post(func() { k.ready = true })
}

// post gives the sync loop something to do. It does one thing after another,
// each of which may block; they run with the world's lock held.
func (k *kubelet) post(f func()) {
	k.inbox = append(k.inbox, f)
	if k.looping {
		return
	}
	k.looping = true
	k.w.after(1*tick, k.process, k.name+": loop", func() {
		k.w.spawn(func() {
			for len(k.inbox) > 0 {
				next := k.inbox[0]
				k.inbox = k.inbox[1:]
				next()
			}
			k.looping = false
		})
	})
}

// admit is HandlePodAdditions for one pod: it is managed first, and then
// admitted or rejected for good.
func (k *kubelet) admit(pod *v1.Pod) {
	w, uid := k.w, string(pod.UID)
	m := &managed{pod: pod, spec: w.pods[uid]}
	k.managed[uid] = m
	if terminal(pod) {
		m.terminated = true
		return
	}
	if pod.DeletionTimestamp != nil && k.m.sandboxes[uid] == nil {
		// It is admitted all the same, and its worker starts nothing.
		m.stopping = true
	}
	w.logf("%s: admits %s", k.name, m.spec.name)
	err := k.allocatePod(m)
	if err == nil {
		err = k.predicates(m)
	}
	if err != nil {
		w.logf("%s: rejects %s: %v", k.name, m.spec.name, err)
		m.rejected = true
		delete(k.m.sandboxes, uid)
		k.writeStatus(m, v1.PodFailed)
		return
	}
	m.admitted = true
	k.writeStatus(m, v1.PodRunning)
	if m.stopping {
		m.stopping = false
		k.stop(m)
		return
	}
	w.after(1*tick, k.process, k.name+": worker of "+m.spec.name, func() {
		w.spawn(func() { k.again(m) })
	})
}

func (k *kubelet) allocatePod(m *managed) error {
	for _, apps := range []bool{false, true} {
		for _, c := range m.spec.containers {
			if (c.kind == app) == apps {
				if err := k.allocate(m, c); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// predicates is the check of the node's sum after the allocation.
func (k *kubelet) predicates(m *managed) error {
	sum := m.spec.need
	for uid, other := range k.managed {
		if uid != m.spec.uid && other.active() {
			sum = sum.plus(other.spec.need)
		}
	}
	for _, r := range k.w.resources {
		allocatable := len(k.stocks[r].healthy)
		if len(k.m.checkpoint[m.spec.uid]) > 0 {
			allocatable = max(allocatable, len(k.stocks[r].allocated))
		}
		if sum.of(r) > allocatable && m.spec.need.of(r) > 0 {
			return fmt.Errorf("node is out of %s: %d of %d", r, sum.of(r), allocatable)
		}
	}
	return nil
}

// allocate is ManagerImpl.Allocate: it goes through a container's resources in
// whatever order a map has them.
func (k *kubelet) allocate(m *managed, c container) error {
	uid := m.spec.uid
	for _, r := range k.w.resources {
		reuse := k.stocks[r].reuse
		maps.DeleteFunc(reuse, func(other string, _ sets.Set[string]) bool { return other != uid })
		if reuse[uid] == nil {
			reuse[uid] = sets.New[string]()
		}
	}
	k.freeInactive()
	for _, r := range k.w.inAnyOrder() {
		if c.amount.of(r) == 0 {
			continue
		}
		ids, err := k.devicesToAllocate(m, c, r)
		if err != nil {
			return err
		}
		if len(ids) > 0 {
			if err := k.callAllocate(m, c, r, ids); err != nil {
				return err
			}
		}
	}
	for _, r := range k.w.resources {
		k.passOn(uid, c, r)
	}
	return nil
}

// passOn lets the containers that follow have the IDs of an init container.
func (k *kubelet) passOn(uid string, c container, r gpu.Resource) {
	g, reuse := k.m.checkpoint[uid][part{c.name, r}], k.stocks[r].reuse[uid]
	if g == nil {
		return
	}
	if c.kind == initial {
		reuse.Insert(g.ids...)
	} else {
		reuse.Delete(g.ids...)
	}
}

// freeInactive is UpdateAllocatedDevices.
func (k *kubelet) freeInactive() {
	if !k.ready {
		return
	}
	freed := false
	for uid := range k.m.checkpoint {
		if m := k.managed[uid]; m == nil || !m.active() {
			delete(k.m.checkpoint, uid)
			freed = true
		}
	}
	if freed {
		k.recount()
	}
}

// devicesToAllocate follows the function of that name.
func (k *kubelet) devicesToAllocate(m *managed, c container, r gpu.Resource) ([]string, error) {
	uid, size, stock := m.spec.uid, c.amount.of(r), &k.stocks[r]
	held := k.m.checkpoint[uid][part{c.name, r}]
	if !k.ready && k.m.sandboxes[uid] != nil && k.m.sandboxes[uid].running[c.name] {
		return nil, nil
	}
	if !k.m.registered[r] {
		return nil, fmt.Errorf("cannot allocate unregistered device")
	}
	if len(stock.healthy) == 0 {
		return nil, fmt.Errorf("no healthy devices present")
	}
	if held != nil {
		if !stock.healthy.HasAll(held.ids...) {
			return nil, fmt.Errorf("previously allocated devices are no longer healthy")
		}
		return nil, nil
	}
	var got []string
	take := func(from []string) bool {
		for _, id := range from {
			if len(got) == size {
				break
			}
			if !slices.Contains(got, id) {
				got = append(got, id)
				stock.allocated.Insert(id)
			}
		}
		return len(got) == size
	}
	if take(k.shuffled(stock.reuse[uid])) {
		return got, nil
	}
	free := stock.healthy.Difference(stock.allocated)
	if len(free) < size-len(got) {
		return nil, fmt.Errorf("requested number of devices unavailable: %d of %d", size-len(got), len(free))
	}
	available := append(slices.Clone(got), sets.List(free)...)
	w := k.w
	w.rng.Shuffle(len(available), func(i, j int) { available[i], available[j] = available[j], available[i] })
	var preferred []string
	k.asked = w.now()
	err := k.call("GetPreferredAllocation", r, func(ctx context.Context, p *plugin) error {
		out, err := p.servers[r].GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: available, MustIncludeDeviceIDs: slices.Clone(got), AllocationSize: int32(size),
		}}})
		if err == nil && len(out.GetContainerResponses()) > 0 {
			preferred = out.GetContainerResponses()[0].GetDeviceIDs()
		}
		k.advised = ctx.Value(rpcKey{}).(*rpc).knew
		return err
	})
	if err != nil {
		return nil, err
	}
	if !k.m.registered[r] {
		return nil, fmt.Errorf("the resource is gone")
	}
	if take(k.shuffled(free.Intersection(sets.New(preferred...)))) || take(k.shuffled(free)) {
		return got, nil
	}
	return nil, fmt.Errorf("unexpectedly allocated less resources than required")
}

// shuffled returns a set in an order of its own, as a range over a map does.
func (k *kubelet) shuffled(set sets.Set[string]) []string {
	out := sets.List(set)
	k.w.rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func (k *kubelet) callAllocate(m *managed, c container, r gpu.Resource, ids []string) error {
	uid := m.spec.uid
	var resp *pluginapi.AllocateResponse
	err := k.call("Allocate", r, func(ctx context.Context, p *plugin) (err error) {
		resp, err = p.servers[r].Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
		return err
	})
	if err != nil {
		k.recount()
		return err
	}
	if n := len(resp.GetContainerResponses()); n != 1 {
		k.w.violate("I4", "Allocate of one container is answered for %d", n)
		return fmt.Errorf("bad answer")
	}
	if k.m.checkpoint[uid] == nil {
		k.m.checkpoint[uid] = make(map[part]*grant)
	}
	sorted := slices.Sorted(slices.Values(ids))
	k.first, m.spec.begun = !m.spec.begun, true
	k.m.checkpoint[uid][part{c.name, r}] = &grant{ids: sorted, env: resp.ContainerResponses[0].GetEnvs(), hidden: c.kind == initial && !k.stocks[r].allocated.Has(ids[0])}
	k.w.logf("%s: gives %s/%s %v", k.name, m.spec.name, c.name, sorted)
	k.checkGrant(m, c, r)
	return nil
}

// call makes one RPC to the plugin that is registered for a resource. It blocks
// the kubelet's coroutine, with the world's lock held before and after.
func (k *kubelet) call(name string, of gpu.Resource, do func(context.Context, *plugin) error) error {
	w, p := k.w, k.stocks[of].endpoint
	if p == nil || !p.live {
		return fmt.Errorf("rpc %s: the plugin is not there", name)
	}
	r := newReply()
	var err error
	ctx, cancel := context.WithCancel(context.Background())
	mine := &rpc{kubelet: k, plugin: p, fail: func() { err = errLost; w.send(r) }, cancel: cancel}
	ctx = context.WithValue(ctx, rpcKey{}, mine)
	k.m.rpcs = append(k.m.rpcs, mine)
	w.after(1*tick, p.process, name+" on "+k.m.name, func() {
		w.spawn(func() {
			var e error
			w.free(func() { e = do(ctx, p) })
			if k.live && p.live {
				w.after(1*tick, k.process, "answer to "+name+" on "+k.m.name, func() { err = e; w.send(r) })
			}
		})
	})
	_ = w.wait(context.Background(), k.process, r) // cannot fail: there is no deadline
	k.m.rpcs = slices.DeleteFunc(k.m.rpcs, func(o *rpc) bool { return o == mine })
	cancel()
	return err
}

// rpc is a call under way.
type rpc struct {
	kubelet *kubelet
	plugin  *plugin
	fail    func()
	cancel  func()
	knew    []allocation.Pod // the pods that the plugin answers by
}

// rpcKey carries an rpc in the context of what it calls.
type rpcKey struct{}

// list is PodResources' List.
func (k *kubelet) list() ([]allocation.Allocated, map[string]bool) {
	k.freeInactive()
	var held []allocation.Allocated
	known := make(map[string]bool)
	for _, m := range sorted(k.managed) {
		uid := m.spec.uid
		if !m.active() {
			continue
		}
		known[m.spec.namespace+"/"+m.spec.name] = true
		for _, c := range m.spec.containers {
			h := allocation.Allocated{Namespace: m.spec.namespace, Name: m.spec.name, Container: c.name}
			for _, r := range k.w.resources {
				if g := k.m.checkpoint[uid][part{c.name, r}]; g != nil {
					for _, id := range g.ids {
						h.Slots = append(h.Slots, gpu.SlotID(id))
					}
				}
			}
			if c.kind != initial && len(h.Slots) > 0 {
				held = append(held, h)
			}
		}
	}
	k.w.rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	return held, known
}

// holdsNamesake reports whether another pod of that name has not ended here.
func (k *kubelet) holdsNamesake(s *spec) bool {
	for uid, m := range k.managed {
		if m.active() && m.spec.name == s.name && uid != s.uid {
			return true
		}
	}
	return false
}

// devices is what ListAndWatch brings.
func (k *kubelet) devices(r gpu.Resource, list []*pluginapi.Device) {
	stock := &k.stocks[r]
	stock.healthy, stock.unhealthy = sets.New[string](), sets.New[string]()
	for _, d := range list {
		if d.Health == pluginapi.Healthy {
			stock.healthy.Insert(d.ID)
		} else {
			stock.unhealthy.Insert(d.ID)
		}
	}
	k.publish()
}

// disconnected is what the kubelet does when a plugin's streams end.
func (k *kubelet) disconnected(p *plugin) {
	for _, r := range k.w.resources {
		if stock := &k.stocks[r]; stock.endpoint == p {
			stock.unhealthy, stock.healthy = stock.unhealthy.Union(stock.healthy), sets.New[string]()
			k.publish()
		}
	}
}

// publish writes the node's status, some time later.
func (k *kubelet) publish() {
	k.w.after(k.w.between(5*tick, 200*tick), k.process, k.name+": node status", func() {
		if k.w.api.down {
			k.publish()
			return
		}
		_ = k.w.api.changeNode(k.m.name, func(n *v1.Node) { // a node that is gone has no status
			var healthy, all amount
			for _, r := range k.w.resources {
				stock := &k.stocks[r]
				*healthy.at(r), *all.at(r) = len(stock.healthy), len(stock.healthy)+len(stock.unhealthy)
			}
			n.Status.Capacity, n.Status.Allocatable = k.w.quantities(all, k.m.shares), k.w.quantities(healthy, k.m.shares)
		})
	})
}

// work is a pod's worker: it starts the containers in their order.
func (k *kubelet) work(m *managed) {
	w, uid := k.w, m.spec.uid
	box := k.m.sandboxes[uid]
	if box == nil {
		box = &sandbox{running: make(map[string]bool), done: make(map[string]bool)}
		k.m.sandboxes[uid] = box
	}
	for _, c := range m.spec.containers { // init containers and sidecars come first
		if box.running[c.name] || box.done[c.name] {
			continue
		}
		for !k.start(m, c) {
			w.sleep(k.process, k.name+": back-off of "+m.spec.name, w.between(time.Second, 10*time.Second))
			if !m.active() || m.stopping {
				return
			}
		}
		if !m.active() || m.stopping {
			return
		}
		box.running[c.name] = true
		if c.kind == initial {
			w.sleep(k.process, k.name+": "+m.spec.name+"/"+c.name+" ends", w.between(20*tick, time.Second))
			if !m.active() || m.stopping {
				return
			}
			delete(box.running, c.name)
			box.done[c.name] = true
		}
	}
	w.logf("%s: %s runs", k.name, m.spec.name)
	if !w.quiet && w.rng.IntN(3) == 0 {
		w.after(w.between(300*tick, 10*time.Second), k.process, k.name+": "+m.spec.name+" completes", func() {
			if m.active() && !m.stopping && !w.quiet {
				k.finish(m, v1.PodSucceeded)
			}
		})
	}
}

// restartOne has a container of some pod end and start again: the kubelet takes
// the reply from its checkpoint.
func (k *kubelet) restartOne() {
	for _, m := range sorted(k.managed) {
		box := k.m.sandboxes[m.spec.uid]
		if !m.active() || m.stopping || box == nil || k.w.rng.IntN(2) == 0 {
			continue
		}
		for _, c := range m.spec.containers {
			if box.running[c.name] && c.kind != initial {
				k.w.logf("%s: %s/%s starts again", k.name, m.spec.name, c.name)
				delete(box.running, c.name)
				k.w.after(1*tick, k.process, k.name+": worker of "+m.spec.name, func() { k.w.spawn(func() { k.again(m) }) })
				return
			}
		}
	}
}

// again is the pod's worker once more, unless it is at work.
func (k *kubelet) again(m *managed) {
	m.again = true
	for m.again && m.active() && !m.stopping && !m.working {
		m.working, m.again = true, false
		k.work(m)
		m.working = false
	}
}

// start is what comes before the start of a container.
func (k *kubelet) start(m *managed, c container) bool {
	g := k.m.checkpoint[m.spec.uid][part{c.name, gpu.Memory}]
	switch {
	case c.amount == amount{}:
		return true // it has nothing of a GPU
	case g == nil || !m.active():
		return false
	}
	ids := k.shuffled(sets.New(g.ids...))
	err := k.call("PreStartContainer", gpu.Memory, func(ctx context.Context, p *plugin) error {
		_, err := p.servers[gpu.Memory].PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
		return err
	})
	if err != nil {
		k.w.logf("%s: %s/%s does not start: %v", k.name, m.spec.name, c.name, err)
	}
	return err == nil
}

// stop ends a pod's containers, in their own time, and then tells the API.
func (k *kubelet) stop(m *managed) {
	if m.stopping || m.terminated || m.rejected {
		if m.rejected || m.terminated {
			k.removeFromAPI(m)
		}
		return
	}
	m.stopping = true
	k.w.after(k.w.between(50*tick, 3*time.Second), k.process, k.name+": "+m.spec.name+" has stopped", func() {
		k.finish(m, v1.PodFailed)
	})
}

func (k *kubelet) finish(m *managed, phase v1.PodPhase) {
	m.terminated = true
	delete(k.m.sandboxes, m.spec.uid)
	k.writeStatus(m, phase)
}

// writeStatus writes a pod's status until it is written, and then deletes the
// object if that is what is wanted.
func (k *kubelet) writeStatus(m *managed, phase v1.PodPhase) {
	m.phase = phase
	if m.writing {
		return
	}
	m.writing = true
	k.w.after(k.w.between(2*tick, k.w.cfg.status), k.process, k.name+": status of "+m.spec.name, func() {
		m.writing = false
		if k.w.api.down {
			k.writeStatus(m, m.phase)
			return
		}
		_ = k.w.api.changePod(m.spec.name, podUID(m.spec.uid), func(p *v1.Pod) { // it may be gone
			if terminal(p) {
				return
			}
			p.Status.Phase = m.phase
			if p.Status.StartTime == nil && !m.rejected {
				now := k.w.api.wallClock()
				p.Status.StartTime = &now
			}
		})
		k.removeFromAPI(m)
	})
}

// removeFromAPI deletes the object of a pod that has ended and is to be deleted.
func (k *kubelet) removeFromAPI(m *managed) {
	if m.active() {
		return
	}
	k.w.after(k.w.between(2*tick, 100*tick), k.process, k.name+": deletes "+m.spec.name, func() {
		pod := k.w.api.pods[m.spec.name]
		switch {
		case pod == nil || string(pod.UID) != m.spec.uid || pod.DeletionTimestamp == nil:
		case k.w.api.down:
			k.removeFromAPI(m)
		default:
			k.w.api.setPod(m.spec.name, nil)
		}
	})
}

func podUID(uid string) types.UID { return types.UID(uid) }

// gpuOf returns the GPU that an ID of a pod is of, by the form of IDs that the
// design fixes: the first digits of the UUID.
func (m *machine) gpuOf(id string) string {
	prefix, _, _ := strings.Cut(id, "-")
	return m.byPrefix[prefix]
}
