package sim

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	kubeevent "github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/nodeapi"
)

// plugin is one process of gpumem-device-plugin. Its RPCs and its reconciling
// are the product's; NVML, the watches and the connection to the kubelet are
// modelled.
type plugin struct {
	*process
	w    *World
	m    *machine
	real deviceplugin.Plugin

	servers [2]pluginapi.DevicePluginServer // by gpu.Resource

	pods    *informer[*v1.Pod]
	nodes   *informer[*v1.Node]
	known   *nodeapi.Pods
	news    <-chan struct{} // closed when known has changed
	changed chan struct{}   // closed soon after

	inventory  gpu.Inventory
	probed     time.Duration // when that was taken in
	newDevices chan struct{} // closed when the inventory changes

	cordonedSince map[string]time.Duration // when the plugin has heard of it, by UUID

	streams     [2]context.CancelFunc // by gpu.Resource: ends ListAndWatch; nil when not registered
	registering [2]bool
	toSend      [2]func() // by gpu.Resource: what ListAndWatch has sent in the event at hand
	passSoon    bool      // a pass of the reconciler is due
	passing     bool
	endPass     context.CancelFunc
	writing     bool // the inventory is being written
	starting    bool // newPlugin makes it, with the world's lock
}

func (w *World) newPlugin(m *machine) *plugin {
	p := &plugin{
		process: w.newProcess(m.name + " plugin"), w: w, m: m,
		changed: make(chan struct{}), newDevices: make(chan struct{}), inventory: m.inventory(),
		cordonedSince: make(map[string]time.Duration),
	}
	cfg := deviceplugin.DefaultConfig(m.name)
	cfg.Policy = placement.Policy(w.cfg.policy)
	cfg.PlaceUnassigned = !w.cfg.Refuse
	cfg.Cordoned, cfg.Record = p.cordoned, disk{p}
	if node := w.api.nodes[m.name]; node != nil {
		cfg.Published, _ = w.names.InventoryOf(node) // unreadable: empty
	}
	p.starting = true
	p.real = deviceplugin.New(cfg, prober{p}, nodePods{p}, podResources{p}, recorder{p}, recorder{p}, zap.NewNop())
	p.starting = false
	p.servers = [2]pluginapi.DevicePluginServer{gpu.Memory: p.real.Server, gpu.Cores: p.real.Server.Cores()}
	p.known = nodeapi.NewPods(apiClient{p: p}, w.names, m.name, zap.NewNop())
	p.known.SelectShares(m.shares)
	_, _, p.news = p.known.Pods()
	p.pods = w.api.watchPods(p.process, p.name+" pods", p.known.Handler(), func(pod *v1.Pod) bool {
		return pod.Spec.NodeName == m.name && notTerminal(pod)
	})
	p.pods.after = p.listen
	if w.cfg.Narrow {
		p.pods.lag = pick(w.rng, []time.Duration{30 * tick, 300 * tick, time.Second})
	}
	p.nodes = w.api.watchNodes(p.process, p.name+" node", toolscache.ResourceEventHandlerFuncs{}, func(n *v1.Node) bool { return n.Name == m.name })
	p.nodes.after = func() {
		p.heed()
		p.ensureInventory()
	}
	w.every(func() time.Duration { return time.Minute }, p.process, p.name+": a minute", p.reconcileSoon)
	return p
}

// cordoned is the state that nodeapi.Publisher reads of the node that the plugin watches.
func (p *plugin) cordoned() []gpu.UUID {
	defer p.w.lock()()
	if node := p.nodes.store[p.m.name]; node != nil {
		return p.w.names.CordonedGPUs(node)
	}
	return nil
}

// heed notes which GPUs are cordoned, by what the plugin has been told.
func (p *plugin) heed() {
	node := p.nodes.store[p.m.name]
	for _, d := range p.m.everHad {
		id := string(d)
		_, known := p.cordonedSince[id]
		switch is := node != nil && p.w.isCordoned(node, id); {
		case is && !known:
			p.cordonedSince[id] = p.w.now()
		case !is:
			delete(p.cordonedSince, id)
		}
	}
}

// list returns the pods that the plugin knows.
func (p *plugin) list() []allocation.Pod {
	pods, _, _ := p.known.Pods()
	return pods
}

// listen wakes RPCs that wait for news of pods if there is any, and has
// the reconciler look.
func (p *plugin) listen() {
	select {
	case <-p.news:
		_, _, p.news = p.known.Pods()
	default:
		return
	}
	p.w.busy = true
	close(p.changed)
	p.changed = make(chan struct{})
	p.reconcileSoon()
}

// reprobe takes in what the GPUs are now.
func (p *plugin) reprobe() {
	p.inventory, p.probed = p.m.inventory(), p.w.now()
	p.w.busy = true
	close(p.newDevices)
	p.newDevices = make(chan struct{})
	p.w.after(1*tick, p.process, p.name+": looks at its node", p.ensureInventory)
	p.reconcileSoon()
}

// reconcileSoon has a pass made after the debounce, and then again until it
// finds nothing to do.
func (p *plugin) reconcileSoon() {
	if p.passSoon {
		return
	}
	p.passSoon = true
	p.w.after(100*tick, p.process, p.name+": reconcile", p.pass)
}

// pass runs the loop of the reconciler for one pass: it is cancelled when the pass
// is over and it waits for the next. Which of its channels wakes it would
// otherwise be for select to choose, at random.
func (p *plugin) pass() {
	p.passSoon = false
	if p.passing {
		p.reconcileSoon()
		return
	}
	p.passing = true
	w := p.w
	ctx, cancel := context.WithCancel(context.Background())
	p.endPass = cancel
	pass := &passWatch{p: p, cancel: cancel}
	w.spawn(func() {
		w.free(func() { _ = p.real.Reconciler.Run(context.WithValue(ctx, passKey{}, pass)) }) // nil, always
	})
}

// passKey carries, in the context of a pass, what is to be told of its calls.
type passKey struct{}

type passWatch struct {
	p       *plugin
	cancel  func()
	calls   int // adapters that are at work for the pass
	planned bool
}

// enter and leave bracket each call that a pass makes. When none is under way
// at the end of an event, the pass is over: it makes one call after another
// without waiting for anything else.
func enter(ctx context.Context) func() {
	pass, ok := ctx.Value(passKey{}).(*passWatch)
	if !ok {
		return func() {}
	}
	pass.calls++
	return func() {
		pass.calls--
		pass.endIfOver()
	}
}

// endIfOver looks after the event at hand whether the pass has made another
// call.
func (s *passWatch) endIfOver() {
	if s.planned {
		return
	}
	s.planned = true
	p := s.p
	p.w.after(1*tick, p.process, p.name+": reconciled?", func() {
		s.planned = false
		if s.calls == 0 {
			p.w.busy = true
			s.cancel()
			p.passing = false
			p.ensureInventory()
		}
	})
}

// disk has the record of grants, which outlives the plugin.
type disk struct{ p *plugin }

func (a disk) Read() ([]byte, error) {
	if !a.p.starting {
		defer a.p.w.lock()()
	}
	return a.p.m.record, nil
}

func (a disk) Write(data []byte) error {
	defer a.p.w.lock()()
	if !a.p.live {
		return errors.New("the process has ended")
	}
	a.p.m.record = data
	return nil
}

func (a disk) SetAside() (string, error) {
	defer a.p.w.lock()()
	a.p.w.violate("record", "%s cannot read its record: %s", a.p.name, a.p.m.record)
	return "", nil
}

type prober struct{ p *plugin }

func (a prober) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	defer a.p.w.lock()()
	return a.p.inventory, "", a.p.newDevices
}

// nodePods is nodeapi.Pods, whose writes go to the model of the API server, and
// whose news wakes those who wait for it in an event of its own.
type nodePods struct{ p *plugin }

func (a nodePods) Pods() ([]allocation.Pod, bool, <-chan struct{}) {
	pods, _, _ := a.p.known.Pods()
	defer a.p.w.lock()()
	return pods, a.p.pods.synced, a.p.changed
}

func (a nodePods) Correct(ctx context.Context, ref placement.PodRef, to placement.Assignment, inv gpu.Inventory) error {
	return a.do(ctx, ": knows of its own write", func() {
		a.p.unlocked("Correct")
		a.p.w.logf("  %s: corrects %s to %v", a.p.name, ref.Name, to.Devices())
	}, func() error { return a.p.known.Correct(ctx, ref, to, inv) }, a.p.retrySoon)
}

func (a nodePods) HasUnwatched() bool { return a.p.known.HasUnwatched() }

func (a nodePods) Refresh(ctx context.Context) error {
	return a.do(ctx, ": has read its pods", func() {}, func() error { return a.p.known.Refresh(ctx) }, func() {})
}

// do makes a call of the product, within a pass or not. The plugin hears what comes of it in an event.
func (a nodePods) do(ctx context.Context, then string, before func(), call func() error, failed func()) (err error) {
	p, w := a.p, a.p.w
	w.mu.Lock()
	leave := enter(ctx)
	before()
	w.free(func() { err = call() })
	if err == nil {
		w.after(1*tick, p.process, p.name+then, p.listen)
	} else if !errors.Is(err, context.Canceled) {
		failed()
	}
	leave()
	w.mu.Unlock()
	return err
}

// apiClient is as much of a client of the API server as nodeapi.Pods uses.
type apiClient struct {
	kubernetes.Interface
	corev1.CoreV1Interface
	corev1.PodInterface
	p *plugin
}

func (c apiClient) CoreV1() corev1.CoreV1Interface  { return c }
func (c apiClient) Pods(string) corev1.PodInterface { return c }
func (c apiClient) RESTClient() rest.Interface      { return nil }

// Patch is a merge patch of a pod's annotations, with its UID as a condition.
func (c apiClient) Patch(ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*v1.Pod, error) {
	p, w := c.p, c.p.w
	var patch struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	w.mu.Lock()
	p.unlocked("PATCH")
	w.logf("  %s: PATCH %s %s", p.name, name, patch.Metadata.Annotations[w.names.Index()])
	var pod *v1.Pod
	err := w.api.request(ctx, p.process, p.name+": PATCH "+name, true, func() error {
		before := w.api.pods[name]
		err := w.api.changePod(name, patch.Metadata.UID, func(o *v1.Pod) { maps.Copy(o.Annotations, patch.Metadata.Annotations) })
		pod = w.api.pods[name]
		if err == nil {
			if value, ok := patch.Metadata.Annotations[w.names.Assignment()]; ok {
				w.pods[string(pod.UID)].lawful = value
			}
			p.m.checkMove(before, pod)
		}
		return err
	})
	w.mu.Unlock()
	return pod, err
}

// List is of the pods of the plugin's node that have not ended.
func (c apiClient) List(ctx context.Context, _ metav1.ListOptions) (*v1.PodList, error) {
	p, w := c.p, c.p.w
	list := &v1.PodList{}
	w.mu.Lock()
	p.unlocked("LIST pods")
	err := w.api.request(ctx, p.process, p.name+": LIST pods", false, func() error {
		list.ResourceVersion = strconv.FormatInt(w.api.version, 10)
		for _, pod := range sorted(w.api.pods) {
			if pod.Spec.NodeName == p.m.name && notTerminal(pod) {
				list.Items = append(list.Items, *pod.DeepCopy())
			}
		}
		return nil
	})
	w.mu.Unlock()
	return list, err
}

// retrySoon stands for the loop's own wait after a failure.
func (p *plugin) retrySoon() {
	p.w.after(time.Second, p.process, p.name+": tries again", p.reconcileSoon)
}

type podResources struct{ p *plugin }

func (a podResources) List(ctx context.Context) (held []allocation.Allocated, known map[string]bool, err error) {
	p, w := a.p, a.p.w
	w.mu.Lock()
	leave := enter(ctx)
	p.unlocked("List")
	if call, ok := ctx.Value(rpcKey{}).(*rpc); ok {
		call.knew = p.list() // the plugin has just read them
	}
	r := newReply()
	w.after(1*tick, p.process, p.name+": PodResources", func() {
		k := p.m.kubelet
		if k == nil || !k.live || w.now() < p.m.deaf || w.chance(25) {
			err = errors.New("the kubelet does not answer") // or it has been asked too often
		} else {
			held, known = k.list()
		}
		w.send(r)
	})
	if e := w.wait(ctx, p.process, r); e != nil {
		held, known, err = nil, nil, e
	}
	if err != nil {
		p.retrySoon()
	}
	leave()
	w.mu.Unlock()
	return held, known, err
}

func (p *plugin) unlocked(call string) {
	if locked(p.real.State) || locked(p.real.Reconciler) || locked(p.real.Offers) || locked(p.known) {
		p.w.violate("I8", "%s is called while the plugin is locked", call)
	}
}

type recorder struct{ p *plugin }

func (a recorder) Pod(ref placement.PodRef, e kubeevent.OnPod, note string) {
	defer a.p.w.lock()()
	a.p.unlocked("an event")
	a.p.w.logf("  %s: event %s of %s: %s", a.p.name, e.Row().Reason, ref.Name, note)
}

func (a recorder) Node(kubeevent.OnNode, string) {}

func (a recorder) Drifted(int) {}

func (a recorder) Corrected(string) {}

// registerSoon brings the plugin to the kubelet, with each resource on its own.
func (p *plugin) registerSoon() {
	for _, r := range p.w.resources {
		p.registerSoonFor(r)
	}
}

func (p *plugin) registerSoonFor(r gpu.Resource) {
	if p.registering[r] {
		return
	}
	p.registering[r] = true
	p.w.after(p.w.between(20*tick, 2*time.Second), p.process, p.name+": registers", func() {
		p.registering[r] = false
		k := p.m.kubelet
		if k == nil || !k.live {
			return // its start calls again
		}
		p.endStream(r)
		k.stocks[r].endpoint = p
		p.m.registered[r] = true
		ctx, cancel := context.WithCancel(context.Background())
		p.streams[r] = cancel
		p.w.spawn(func() {
			p.w.free(func() {
				if err := p.real.State.Load(); err != nil {
					panic(err) // its disk has no errors
				}
				_ = p.servers[r].ListAndWatch(&pluginapi.Empty{}, &listStream{ctx: ctx, p: p, k: k, r: r}) // its only errors are the stream's
			})
		})
	})
}

func (p *plugin) endStream(r gpu.Resource) {
	if p.streams[r] != nil {
		p.w.busy = true
		p.streams[r]()
		p.streams[r] = nil
	}
}

func (p *plugin) endStreams() {
	for _, r := range p.w.resources {
		p.endStream(r)
	}
}

// listStream is the kubelet's end of ListAndWatch.
type listStream struct {
	grpc.ServerStream
	ctx  context.Context
	p    *plugin
	k    *kubelet
	r    gpu.Resource
	last time.Duration
}

func (s *listStream) Context() context.Context { return s.ctx }

func (s *listStream) Send(list *pluginapi.ListAndWatchResponse) error {
	w := s.p.w
	defer w.lock()()
	if s.ctx.Err() != nil || !s.k.live {
		return errLost
	}
	s.p.toSend[s.r] = func() {
		s.last = max(s.last, (w.now()+w.between(1*tick, 50*tick))/tick)
		w.at(s.last, s.k.process, s.k.name+": devices", func() {
			if s.k.stocks[s.r].endpoint == s.p && s.p.live {
				s.k.devices(s.r, list.Devices)
			}
		})
	}
	return nil
}

// sendDevices puts on its way what ListAndWatch has sent: of both resources at
// once, as it happens, when the GPUs have changed.
func (w *World) sendDevices() {
	for _, m := range w.machines {
		if m.plugin == nil {
			continue
		}
		for r, send := range m.plugin.toSend {
			if send != nil {
				send()
				m.plugin.toSend[r] = nil
			}
		}
	}
}

// ensureInventory writes the node's annotation when it is not what it should
// be, as nodeapi.Publisher does.
func (p *plugin) ensureInventory() {
	w := p.w
	node := p.nodes.store[p.m.name]
	if node == nil || p.writing {
		return
	}
	given, known, _ := p.real.State.Allocations()
	if !known {
		return
	}
	value, err := api.EncodeInventory(api.WithAllocated(p.inventory, given))
	if err != nil {
		w.violate("I9", "the inventory cannot be written: %v", err)
		return
	}
	if node.Annotations[w.names.Inventory()] == value {
		return
	}
	p.writing = true
	w.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = w.api.request(ctx, p.process, p.name+": PATCH node", true, func() error { // tried again below, whatever became of it
			return w.api.changeNode(p.m.name, func(n *v1.Node) { n.Annotations[w.names.Inventory()] = value })
		})
		w.after(time.Second, p.process, p.name+": looks at its node", func() {
			p.writing = false
			p.ensureInventory()
		})
	})
}
