package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/scheduler/controller"
)

// namespaces are those of pods. Names are unique over all of them.
var namespaces = []string{"team", "others"}

// object is what the API server stores. Objects are never changed once stored.
type object interface {
	comparable
	metav1.Object
}

// apiServer is a model of the API server: objects with resource versions, the
// Binding subresource, and watches.
type apiServer struct {
	w        *World
	version  int64
	pods     map[string]*v1.Pod // by name
	nodes    map[string]*v1.Node
	podSubs  []*informer[*v1.Pod]
	nodeSubs []*informer[*v1.Node]
	skew     time.Duration // of its clock
	down     bool          // it refuses connections
	holder   string        // of kube-scheduler's Lease
	turns    int           // how often that was taken
	renewed  time.Duration // when it was, in runs of the plugin
}

func newAPIServer(w *World) *apiServer {
	return &apiServer{w: w, pods: make(map[string]*v1.Pod), nodes: make(map[string]*v1.Node)}
}

func (s *apiServer) bump() string {
	s.version++
	return strconv.FormatInt(s.version, 10)
}

// wallClock is the server's clock, which jumps. Timestamps have whole seconds.
func (s *apiServer) wallClock() metav1.Time {
	return metav1.NewTime(time.Now().Add(s.skew).Truncate(time.Second))
}

var (
	podResource  = schema.GroupResource{Resource: "pods"}
	nodeResource = schema.GroupResource{Resource: "nodes"}
)

// set stores an object and tells the watches. A nil one is a deletion.
func set[T object](s *apiServer, all map[string]T, subs []*informer[T], name string, now T) {
	var none T
	old := all[name]
	if version := s.bump(); now == none {
		delete(all, name)
	} else {
		now.SetResourceVersion(version)
		all[name] = now
	}
	for _, sub := range subs {
		sub.changed(old, now)
	}
}

func (s *apiServer) setPod(name string, pod *v1.Pod) { set(s, s.pods, s.podSubs, name, pod) }

func (s *apiServer) setNode(name string, node *v1.Node) { set(s, s.nodes, s.nodeSubs, name, node) }

// changePod stores a changed copy of a pod if it is there with that UID.
func (s *apiServer) changePod(name string, uid types.UID, change func(*v1.Pod)) error {
	pod, ok := s.pods[name]
	switch {
	case !ok:
		return apierrors.NewNotFound(podResource, name)
	case pod.UID != uid:
		return apierrors.NewConflict(podResource, name, fmt.Errorf("the UID is %s, not %s", pod.UID, uid))
	}
	out := *pod
	out.Annotations = maps.Clone(pod.Annotations)
	if out.Annotations == nil {
		out.Annotations = make(map[string]string)
	}
	change(&out)
	s.setPod(name, &out)
	return nil
}

func (s *apiServer) changeNode(name string, change func(*v1.Node)) error {
	node, ok := s.nodes[name]
	if !ok {
		return apierrors.NewNotFound(nodeResource, name)
	}
	out := *node
	out.Annotations = maps.Clone(node.Annotations)
	if out.Annotations == nil {
		out.Annotations = make(map[string]string)
	}
	change(&out)
	s.setNode(name, &out)
	return nil
}

// bind is the Binding subresource: node and annotations in one guarded write.
func (s *apiServer) bind(b *v1.Binding) error {
	pod, ok := s.pods[b.Name]
	if ok && pod.UID == b.UID {
		if pod.DeletionTimestamp != nil {
			return apierrors.NewConflict(podResource, b.Name, errors.New("the pod is being deleted, cannot be assigned to a host"))
		}
		if len(pod.Spec.SchedulingGates) > 0 {
			return apierrors.NewConflict(podResource, b.Name, errors.New("the pod has scheduling gates"))
		}
		if pod.Spec.NodeName != "" {
			return apierrors.NewConflict(podResource, b.Name, fmt.Errorf("the pod is already assigned to node %q", pod.Spec.NodeName))
		}
	}
	return s.changePod(b.Name, b.UID, func(p *v1.Pod) {
		s.w.pods[string(b.UID)].wasBound = true
		s.w.pods[string(b.UID)].boundAt = s.w.now()
		s.w.pods[string(b.UID)].lawful = b.Annotations[s.w.names.Assignment()]
		p.Spec.NodeName = b.Target.Name
		maps.Copy(p.Annotations, b.Annotations)
		p.Status.Conditions = append(slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled }),
			v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	})
}

// deletePod deletes as a user does: with grace the pod is marked and the kubelet
// deletes it at last, else it is gone at once.
func (s *apiServer) deletePod(name string, uid types.UID, grace bool) error {
	pod, ok := s.pods[name]
	switch {
	case !ok:
		return apierrors.NewNotFound(podResource, name)
	case pod.UID != uid:
		return apierrors.NewConflict(podResource, name, errors.New("another UID"))
	case grace && pod.Spec.NodeName != "" && pod.Status.Phase == v1.PodPending || grace && pod.Status.Phase == v1.PodRunning:
		if pod.DeletionTimestamp != nil {
			return nil
		}
		return s.changePod(name, uid, func(p *v1.Pod) {
			now := s.wallClock()
			p.DeletionTimestamp = &now
		})
	}
	s.setPod(name, nil)
	return nil
}

// errLost is what a client sees when its connection breaks.
var errLost = errors.New("the connection was lost")

// request is one call of a coroutine of a process. It reaches the server after
// a while, takes effect there at once, and its answer comes after another
// while; each of these can fail. What is on its way stays so when the process
// dies.
func (s *apiServer) request(ctx context.Context, p *process, name string, write bool, apply func() error) error {
	w := s.w
	r := newReply()
	var err error
	answer := func(d time.Duration, e error) {
		w.after(d, p, "answer to "+name, func() { err = e; w.send(r) })
	}
	arrive := func(d time.Duration, done func(error)) {
		w.after(d, nil, name, func() {
			if s.down {
				done(errLost)
				return
			}
			e := apply()
			if e != nil {
				w.logf("  refused: %v", e)
			}
			done(e)
		})
	}
	there, back := w.between(1*tick, 8*tick), w.between(1*tick, 8*tick)
	ignore := func(error) {}
	switch fate := w.rng.IntN(w.cfg.callFaults); {
	case s.down:
		answer(there, fmt.Errorf("dial: %w", syscall.ECONNREFUSED))
	case w.quiet || fate >= 7:
		arrive(there, func(e error) { answer(back, e) })
	case fate == 0: // slow, on the way there or back
		slow := w.between(10*tick, time.Second)
		if w.chance(2) {
			there = slow
		} else {
			back = slow
		}
		arrive(there, func(e error) { answer(back, e) })
	case fate == 1: // it never arrives
		answer(w.between(1*tick, 2*time.Second), errLost)
	case fate == 2: // it arrives, and the answer is lost
		arrive(there, ignore)
		answer(there+w.between(1*tick, time.Second), errLost)
	case fate == 3: // the sender is told of nothing before the server has acted
		arrive(w.between(100*tick, controller.BindDeadline-100*tick), ignore)
		answer(there, errLost)
	case fate == 4: // no answer at all
		arrive(there, ignore)
		answer(45*time.Second, errLost) // when client-go's pings fail
	case fate == 5 && !write: // what is read is old when it comes
		arrive(there, func(e error) { answer(w.between(100*tick, 3*time.Second), e) })
	case fate == 5: // refused for reasons of its own
		answer(there+back, apierrors.NewConflict(podResource, name, errors.New("try again")))
	default: // the server fails
		answer(there+back, apierrors.NewInternalError(errors.New("etcd has no leader")))
	}
	if e := w.wait(ctx, p, r); e != nil {
		return e
	}
	return err
}

// informer is one client's watch of one kind: a stream of events with a delay,
// which can break and is then listed again, and the client's store behind it.
type informer[T object] struct {
	w       *World
	p       *process
	name    string
	handler toolscache.ResourceEventHandler
	matches func(T) bool                // the selector
	all     map[string]T                // the server's objects
	after   func()                      // what the client does when something came
	store   map[string]T                // what the client knows, by name
	lag     time.Duration               // longest delay of an event
	last    time.Duration               // the tick in which the latest event on its way is due
	told    int64                       // the version of the API's objects up to which the client has been told
	open    bool                        // events are sent
	synced  bool                        // the first list has been handled
	gone    map[types.UID]string        // UIDs whose end the client has been told of
	goneAt  map[types.UID]time.Duration // and when

	listeners []*informer[T] // of one watch: each hears of it by a queue of its own
}

// listen has another handler hear, sooner or later, of what the watch has stored. What it has
// been told of is in a store of its own.
func listen[T object](i *informer[T], subs *[]*informer[T], name string, handler toolscache.ResourceEventHandler) *informer[T] {
	l := newInformer(i.w, i.p, name, handler, i.all, i.matches)
	l.lag = pick(i.w.rng, []time.Duration{1 * tick, 3 * tick, 100 * tick})
	i.listeners = append(i.listeners, l)
	*subs = append(*subs, l)
	return l
}

func newInformer[T object](w *World, p *process, name string, handler toolscache.ResourceEventHandler, all map[string]T, matches func(T) bool) *informer[T] {
	return &informer[T]{
		w: w, p: p, name: name, handler: handler, all: all, matches: matches,
		store: make(map[string]T), lag: pick(w.rng, []time.Duration{10 * tick, 30 * tick, 300 * tick}), gone: make(map[types.UID]string), goneAt: make(map[types.UID]time.Duration),
	}
}

func (s *apiServer) watchPods(p *process, name string, handler toolscache.ResourceEventHandler, matches func(*v1.Pod) bool) *informer[*v1.Pod] {
	return watch(&s.podSubs, newInformer(s.w, p, name, handler, s.pods, matches))
}

func (s *apiServer) watchNodes(p *process, name string, handler toolscache.ResourceEventHandler, matches func(*v1.Node) bool) *informer[*v1.Node] {
	return watch(&s.nodeSubs, newInformer(s.w, p, name, handler, s.nodes, matches))
}

func watch[T object](subs *[]*informer[T], i *informer[T]) *informer[T] {
	*subs = append(slices.DeleteFunc(*subs, func(o *informer[T]) bool { return !o.p.live }), i)
	i.relist()
	return i
}

// process is whose watch it is.
func (i *informer[T]) process() *process { return i.p }

// slowness is how late its events come.
func (i *informer[T]) slowness() *time.Duration { return &i.lag }

// stream is a watch of whatever.
type stream interface {
	process() *process
	slowness() *time.Duration
	disconnect()
}

// streams are all watches, those of pods first.
func (s *apiServer) streams() (out []stream) {
	for _, i := range s.podSubs {
		out = append(out, i)
	}
	for _, i := range s.nodeSubs {
		out = append(out, i)
	}
	return out
}

// someStream draws a watch to which something happens: of pods, mostly.
func (w *World) someStream() stream {
	if w.rng.IntN(3) == 0 {
		if nodes := likely(w, w.api.nodeSubs, (*informer[*v1.Node]).process); len(nodes) > 0 {
			return pick(w.rng, nodes)
		}
	}
	if pods := likely(w, w.api.podSubs, (*informer[*v1.Pod]).process); len(pods) > 0 {
		return pick(w.rng, pods)
	}
	return pick(w.rng, w.api.streams()) // no process lives
}

// bookmark has the server tell now and then how far the client has been told, as it
// does about once in a minute.
func (i *informer[T]) bookmark() {
	i.w.every(func() time.Duration { return i.w.between(time.Second, time.Minute) }, i.p, i.name+": a bookmark is due", func() {
		if i.open {
			i.deliver("bookmark", func(*informer[T]) {})
		}
	})
}

// deliver puts an event of the stream on its way: behind those before it.
func (i *informer[T]) deliver(what string, fire func(*informer[T])) {
	i.pass(what, i.w.api.version, fire)
}

func (i *informer[T]) pass(what string, version int64, fire func(*informer[T])) {
	i.last = max(i.last, (i.w.now()+i.w.between(1*tick, max(tick, i.lag)))/tick)
	i.w.at(i.last, i.p, i.name+": "+what, func() {
		fire(i)
		i.told = version
		for _, l := range i.listeners {
			l.pass(what, version, fire)
		}
		if i.after != nil {
			i.after()
		}
	})
}

// changed tells the stream of a change at the server. The zero object is none.
func (i *informer[T]) changed(old, now T) {
	var none T
	if !i.open || !i.p.live {
		return
	}
	was, is := old != none && i.matches(old), now != none && i.matches(now)
	sameUID := was && is && old.GetUID() == now.GetUID()
	switch {
	case was && (!is || !sameUID):
		i.deliver("deleted "+old.GetName(), func(i *informer[T]) { i.drop(old.GetName(), old) })
		if is {
			i.deliver("added "+now.GetName(), func(i *informer[T]) { i.put(now) })
		}
	case is:
		what := "added " + now.GetName()
		if was {
			what = "modified " + now.GetName()
		}
		i.deliver(what, func(i *informer[T]) { i.put(now) })
		if i.w.chance(20) {
			i.deliver("again "+now.GetName(), func(i *informer[T]) {
				if i.store[now.GetName()] == now {
					i.put(now)
				}
			})
		}
	}
}

func (i *informer[T]) put(now T) {
	var none T
	old := i.store[now.GetName()]
	i.store[now.GetName()] = now
	if old == none {
		i.handler.OnAdd(now, false)
		return
	}
	if old.GetUID() != now.GetUID() {
		i.ended(old)
	}
	i.handler.OnUpdate(old, now)
}

// ended records that the client is told of an object's end.
func (i *informer[T]) ended(last T) {
	i.gone[last.GetUID()], i.goneAt[last.GetUID()] = last.GetName(), i.w.now()
}

func (i *informer[T]) drop(name string, last any) {
	var none T
	old := i.store[name]
	if old == none {
		return // client-go swallows it as well
	}
	i.ended(old)
	delete(i.store, name)
	i.handler.OnDelete(last)
}

// disconnect breaks the stream. What is on its way still comes; what happens
// until the client lists again does not.
func (i *informer[T]) disconnect() {
	if i.open && i.p.live {
		i.open = false
		i.w.after(i.w.between(10*tick, 8*time.Second), i.p, i.name+": lists again", i.relist)
	}
}

// relist reads all objects and replaces the client's store by them, as
// client-go does: first what is there, then what is not any more.
func (i *informer[T]) relist() {
	if i.w.api.down {
		i.w.after(time.Second, i.p, i.name+": lists again", i.relist)
		return
	}
	i.open = true
	objects := slices.DeleteFunc(sorted(i.all), func(o T) bool { return !i.matches(o) })
	i.deliver("list", func(i *informer[T]) {
		there := make(map[string]bool, len(objects))
		for _, o := range objects {
			there[o.GetName()] = true
			i.put(o)
		}
		for _, o := range sorted(i.store) {
			if !there[o.GetName()] {
				i.drop(o.GetName(), toolscache.DeletedFinalStateUnknown{Key: o.GetNamespace() + "/" + o.GetName(), Obj: o})
			}
		}
		i.synced = true
	})
}
