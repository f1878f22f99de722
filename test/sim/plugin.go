package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/deviceplugin"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

// plugin is one process of gpumem-device-plugin. Its RPCs and its reconciling
// are the product's; NVML, the watches and the connection to the kubelet are
// modelled.
type plugin struct {
	*process
	w    *World
	m    *machine
	real *deviceplugin.Plugin

	pods    *informer[*v1.Pod]
	nodes   *informer[*v1.Node]
	known   map[string]allocation.Pod // by name, as nodepods.Pods keeps them
	version map[string]int64
	changed chan struct{} // closed when the pods change

	inventory  gpu.Inventory
	newDevices chan struct{} // closed when the inventory changes

	stream      context.CancelFunc // ends ListAndWatch; nil when not registered
	registering bool
	passSoon    bool // a pass of Reconcile is due
	passing     bool
	endPass     context.CancelFunc
	writing     bool // the inventory is being written
}

func (w *World) newPlugin(m *machine) *plugin {
	p := &plugin{
		process: w.newProcess(m.name + " plugin"), w: w, m: m,
		known: make(map[string]allocation.Pod), version: make(map[string]int64),
		changed: make(chan struct{}), newDevices: make(chan struct{}), inventory: m.inventory(),
	}
	cfg := deviceplugin.DefaultConfig(m.name)
	cfg.Policy = placement.Policy(w.cfg.policy)
	cfg.PlaceUnassigned = !w.cfg.Refuse
	p.real = deviceplugin.New(cfg, prober{p}, nodePods{p}, podResources{p}, recorder{p}, recorder{p}, zap.NewNop())
	p.pods = w.api.watchPods(p.process, p.name+" pods", toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.put(obj.(*v1.Pod)) },
		UpdateFunc: func(_, obj any) { p.put(obj.(*v1.Pod)) },
		DeleteFunc: p.remove,
	}, func(pod *v1.Pod) bool { return pod.Spec.NodeName == m.name && notTerminal(pod) })
	p.nodes = w.api.watchNodes(p.process, p.name+" node", toolscache.ResourceEventHandlerFuncs{}, func(n *v1.Node) bool { return n.Name == m.name })
	p.nodes.after = p.ensureInventory
	p.minutely()
	return p
}

// put, remove and note do what nodepods.Pods does with the events of its watch
// and with the answer to its own write.
func (p *plugin) put(pod *v1.Pod) {
	if api.Terminal(pod) || !p.w.names.Holds(pod) {
		p.forget(pod)
		return
	}
	p.note(pod)
	p.signal()
}

func (p *plugin) note(pod *v1.Pod) {
	version, _ := strconv.ParseInt(pod.ResourceVersion, 10, 64)
	if was, ok := p.known[pod.Name]; ok && was.Pod.UID == string(pod.UID) && p.version[pod.Name] > version {
		return
	}
	holding, _ := p.w.names.Holding(pod) // good beside an error
	p.known[pod.Name] = allocation.Pod{Holding: holding, Created: pod.CreationTimestamp.Time}
	p.version[pod.Name] = version
}

func (p *plugin) remove(obj any) {
	if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	p.forget(obj.(*v1.Pod))
}

func (p *plugin) forget(pod *v1.Pod) {
	if was, ok := p.known[pod.Name]; ok && was.Pod.UID == string(pod.UID) {
		delete(p.known, pod.Name)
		p.signal()
	}
}

// signal wakes an RPC that waits for news of pods, and has Reconcile look.
func (p *plugin) signal() {
	p.w.busy = true
	close(p.changed)
	p.changed = make(chan struct{})
	p.reconcileSoon()
}

// reprobe takes in what the GPUs are now.
func (p *plugin) reprobe() {
	p.inventory = p.m.inventory()
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

func (p *plugin) minutely() {
	p.w.after(time.Minute, p.process, p.name+": a minute", func() {
		p.reconcileSoon()
		p.minutely()
	})
}

// pass runs the loop of Reconcile for one pass: it is cancelled when the pass
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
		_ = p.real.Reconcile(withPass(ctx, pass)) // nil, always
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

func withPass(ctx context.Context, w *passWatch) context.Context {
	return context.WithValue(ctx, passKey{}, w)
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
		}
	})
}

type prober struct{ p *plugin }

func (a prober) Inventory() (gpu.Inventory, string, <-chan struct{}) {
	a.p.w.mu.Lock()
	defer a.p.w.mu.Unlock()
	return a.p.inventory, "", a.p.newDevices
}

type nodePods struct{ p *plugin }

func (a nodePods) Pods() ([]allocation.Pod, bool, <-chan struct{}) {
	a.p.w.mu.Lock()
	defer a.p.w.mu.Unlock()
	var out []allocation.Pod
	for _, name := range slices.Sorted(maps.Keys(a.p.known)) {
		out = append(out, a.p.known[name])
	}
	return out, a.p.pods.synced, a.p.changed
}

func (a nodePods) Correct(ctx context.Context, ref placement.PodRef, to placement.Assignment, inv gpu.Inventory) error {
	p, w := a.p, a.p.w
	annotations, err := w.names.AssignmentAnnotations(to, placement.NewNode(p.m.name, inv, nil))
	if err != nil {
		return err
	}
	w.mu.Lock()
	leave := enter(ctx)
	p.unlocked("Correct")
	w.logf("  %s: PATCH %s to %v", p.name, ref.Name, to.Devices())
	if knownSameName && p.m.kubelet.holdsNamesake(ref) {
		w.excuse(p.m, "the plugin takes a pod for the one before it of that name")
	}
	var pod *v1.Pod
	err = w.api.request(ctx, p.process, p.name+": PATCH "+ref.Name, true, func() error {
		err := w.api.changePod(ref.Name, podUID(ref.UID), func(o *v1.Pod) { maps.Copy(o.Annotations, annotations) })
		pod = w.api.pods[ref.Name]
		return err
	})
	if err == nil {
		if pod != nil && string(pod.UID) == ref.UID {
			p.note(pod)
			w.after(1*tick, p.process, p.name+": knows of its own write", p.signal)
		}
	} else if !errors.Is(err, context.Canceled) {
		p.retrySoon()
	}
	leave()
	w.mu.Unlock()
	return err
}

// retrySoon stands for the loop's own wait after a failure.
func (p *plugin) retrySoon() {
	p.w.after(time.Second, p.process, p.name+": tries again", p.reconcileSoon)
}

type podResources struct{ p *plugin }

func (a podResources) List(ctx context.Context) (held []allocation.Held, known map[string]bool, err error) {
	p, w := a.p, a.p.w
	w.mu.Lock()
	leave := enter(ctx)
	p.unlocked("List")
	r := newReply()
	w.after(1*tick, p.process, p.name+": PodResources", func() {
		k := p.m.kubelet
		if k == nil || !k.live {
			err = errors.New("the kubelet does not answer")
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
	if locked(p.real) {
		p.w.violate("I8", "%s is called while the plugin is locked", call)
	}
}

type recorder struct{ p *plugin }

func (a recorder) Pod(ref placement.PodRef, _ bool, reason, note string) {
	a.p.w.mu.Lock()
	defer a.p.w.mu.Unlock()
	a.p.unlocked("an event")
	a.p.w.logf("  %s: event %s of %s: %s", a.p.name, reason, ref.Name, note)
}

func (a recorder) Node(bool, string, string) {}

func (a recorder) Drifted(int) {}

func (a recorder) Corrected(string) {}

// registerSoon brings the plugin to the kubelet.
func (p *plugin) registerSoon() {
	if p.registering {
		return
	}
	p.registering = true
	p.w.after(p.w.between(20*tick, 2*time.Second), p.process, p.name+": registers", func() {
		p.registering = false
		k := p.m.kubelet
		if k == nil || !k.live {
			return // its start calls again
		}
		p.endStream()
		k.endpoint = p
		p.m.registered = true
		ctx, cancel := context.WithCancel(context.Background())
		p.stream = cancel
		p.w.spawn(func() {
			_ = p.real.ListAndWatch(&pluginapi.Empty{}, &listStream{ctx: ctx, p: p, k: k}) // its only errors are the stream's
		})
	})
}

func (p *plugin) endStream() {
	if p.stream != nil {
		p.w.busy = true
		p.stream()
		p.stream = nil
	}
}

// listStream is the kubelet's end of ListAndWatch.
type listStream struct {
	grpc.ServerStream
	ctx  context.Context
	p    *plugin
	k    *kubelet
	last time.Duration
}

func (s *listStream) Context() context.Context { return s.ctx }

func (s *listStream) Send(list *pluginapi.ListAndWatchResponse) error {
	w := s.p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.ctx.Err() != nil || !s.k.live {
		return errLost
	}
	s.last = max(s.last, (w.now()+w.between(1*tick, 50*tick))/tick)
	w.at(s.last, s.k.process, s.k.name+": devices", func() {
		if s.k.endpoint == s.p && s.p.live {
			s.k.devices(list.Devices)
		}
	})
	return nil
}

// ensureInventory writes the node's annotation when it is not what it should
// be, as nodepods.Node does.
func (p *plugin) ensureInventory() {
	w := p.w
	node := p.nodes.store[p.m.name]
	if node == nil || p.writing {
		return
	}
	inv := p.inventory
	value, err := api.EncodeInventory(inv)
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
		w.mu.Lock()
		_ = w.api.request(ctx, p.process, p.name+": PATCH node", true, func() error { // tried again below, whatever became of it
			return w.api.changeNode(p.m.name, func(n *v1.Node) { n.Annotations[w.names.Inventory()] = value })
		})
		w.after(time.Second, p.process, p.name+": looks at its node", func() {
			p.writing = false
			p.ensureInventory()
		})
		w.mu.Unlock()
	})
}
