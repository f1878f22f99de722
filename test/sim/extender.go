package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/binder"
	"github.com/gpumem/gpumem/pkg/scheduler/controller"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
	"github.com/gpumem/gpumem/pkg/scheduler/extender"
)

// What cmd/gpumem-extender sets.
const (
	assumeLimit    = 30 * time.Second
	reviewInterval = 5 * time.Second
)

// extenderProc is one process of gpumem-extender: its handlers, its cache and
// its controller's event handlers are the product's. The watches are modelled.
type extenderProc struct {
	*process
	w      *World
	ext    *extender.Extender
	routes http.Handler
	asked  http.Handler // what changes nothing: Filter, which may wait, looks again when it is let to
	asker  *extender.Extender
	books  *cache.Cache
	pods   *informer[*v1.Pod] // what the cache has been told of
	nodes  *informer[*v1.Node]
	stored struct { // what the watches have, of which the cache may still be told
		pods  *informer[*v1.Pod]
		nodes *informer[*v1.Node]
	}
	plugged *plugged // nil: it is an extender

	sent     map[string]*v1.Binding // the last binding sent, by UID
	sentAt   map[string]time.Duration
	read     map[string]*v1.Pod       // bound, as a read beside the watch has shown it, by UID
	refused  map[string]bool          // UIDs of which each binding was refused for certain
	unknown  map[string]bool          // UIDs of which some binding's outcome was unknown
	over     map[string]bool          // UIDs of read that a later read has shown to be gone
	reserved map[string]bool          // UIDs that have been assumed ever since a binding was sent
	repeated map[string]bool          // UIDs whose last binding was a repetition
	calls    map[string]int           // Bind calls under way, by UID
	bindAt   time.Duration            // when Bind was called last
	turn     time.Duration            // since when it has been, without a silence
	turns    map[string]time.Duration // the same when the Bind calls under way began, by UID
	looked   bool                     // the question at hand has been looked at once
	again    []chan struct{}          // Filter, and Wake beside it, wait to look again until theirs is closed
	lookedIn int                      // the step in which it was let to
	open     map[*reply]func()        // questions under way, and what breaks each
	stale    time.Duration            // reads that failed in reviews hold assumptions up to here
	dirty    bool
}

func (w *World) newExtender(r *replica) *extenderProc {
	e := &extenderProc{
		process: w.newProcess(r.name), w: w, books: cache.New(),
		sent: make(map[string]*v1.Binding), sentAt: make(map[string]time.Duration), read: make(map[string]*v1.Pod),
		refused: make(map[string]bool), unknown: make(map[string]bool),
		over: make(map[string]bool), reserved: make(map[string]bool), repeated: make(map[string]bool), calls: make(map[string]int), dirty: true,
		open: make(map[*reply]func()), turns: make(map[string]time.Duration),
	}
	policies := ranking.Policies{GPU: placement.Policy(w.cfg.policy), Node: placement.Policy(w.cfg.nodePolicy)}
	e.ext = &extender.Extender{Alone: w.cfg.Alone, Decider: decider.Decider{Binder: &binder.Binder{
		Self: r.name, Log: zap.NewNop(), Names: w.names, Cache: e.books, Cluster: cluster{e}, Reads: flight{w, e.process, make(map[string]*call)},
		Policies: policies, Now: time.Now, Missing: e.missing,
	}}}
	e.routes = e.ext.Routes("simulation")
	e.asker = &extender.Extender{Neighbours: cluster{e}, Alone: w.cfg.Alone, NodesToFind: r.nodesToFind, Decider: decider.Decider{Binder: &binder.Binder{
		Self: r.name, Log: zap.NewNop(), Names: w.names, Cache: e.books, Cluster: cluster{e},
		Policies: policies, Now: time.Now, Missing: e.lookedAt,
	}}}
	e.asked = e.asker.Routes("simulation")
	books := &controller.Feeder{Log: zap.NewNop(), Names: w.names, Cache: e.books}
	if w.cfg.Mode == inProcess {
		e.plugIn(r, books)
	} else {
		e.nodes = w.api.watchNodes(e.process, r.name+" nodes", books.NodeHandler(), func(*v1.Node) bool { return true })
		e.pods = w.api.watchPods(e.process, r.name+" pods", books.PodHandler(), notTerminal)
		e.stored.nodes, e.stored.pods = e.nodes, e.pods
	}
	touched := func() {
		e.dirty = true
		w.busy = w.busy || len(e.open) > 0 // Filter may wait for this
	}
	e.nodes.after, e.pods.after = touched, touched
	e.stored.pods.bookmark()
	e.scheduleReview()
	e.scheduleWake()
	e.scheduleCheck(&controller.Comparer{Log: zap.NewNop(), Names: w.names, Cache: e.books, Stored: watched{e}.Stored, Compared: watched{e}.Compared})
	return e
}

// missing is what controller.Missing says of real informers. It is called with
// and without the world's lock, and reads what only events write.
func (e *extenderProc) missing() string {
	if e.nodes == nil || e.pods == nil || !e.nodes.synced || !e.pods.synced {
		return "lists"
	}
	return ""
}

func (e *extenderProc) scheduleReview() {
	e.w.after(reviewInterval, e.process, e.name+": review", func() {
		if len(e.assumed(0)) == 0 && len(e.books.AssumedBefore(time.Now())) == 0 {
			e.scheduleReview()
			return
		}
		e.w.spawn(func() {
			e.w.free(func() { e.ext.ReviewAssumed(context.Background(), assumeLimit) })
			goesOn := func(s *spec) bool { return e.plugged != nil && e.plugged.reserved[s.uid] }
			if old := slices.DeleteFunc(e.assumed(assumeLimit+reviewInterval), goesOn); len(old) > 0 && e.w.now()-e.stale > assumeLimit {
				e.w.violate("I6", "%s has reviewed its assumptions, and still assumes %v, older than %s", e.name, specNames(old), assumeLimit)
			}
			e.dirty = true
			e.scheduleReview()
		})
	})
}

// scheduleWake has kube-scheduler woken for pods that fit by now, as often as the
// command does.
func (e *extenderProc) scheduleWake() {
	e.w.after(time.Second, e.process, e.name+": looks who waits", func() {
		e.w.spawn(func() {
			e.w.free(func() {
				if e.plugged != nil {
					e.plugged.decider.Wake(context.Background(), e.plugged)
				} else {
					e.asker.Wake(context.Background(), cluster{e})
				}
			})
			e.scheduleWake()
		})
	})
}

// scheduleCheck runs the extender's self-check, more often than it does.
func (e *extenderProc) scheduleCheck(comparer *controller.Comparer) {
	interval := checkInterval
	if e.w.quiet {
		interval *= 6
	}
	e.w.after(interval, e.process, e.name+": self-check", func() {
		e.w.spawn(func() {
			e.w.free(func() { comparer.Compare() })
			e.scheduleCheck(comparer)
		})
	})
}

// checkInterval is long enough to leave the steps of a run to its faults. At
// rest there is less to be found.
const checkInterval = 5 * time.Second

// watched is what the self-check compares the cache with.
type watched struct{ e *extenderProc }

func (a watched) Stored() (pods []*v1.Pod, nodes []*v1.Node, complete bool) {
	defer a.e.w.lock()()
	for _, pod := range a.e.stored.pods.store {
		pods = append(pods, pod)
	}
	for _, node := range a.e.stored.nodes.store {
		nodes = append(nodes, node)
	}
	return pods, nodes, a.e.missing() == ""
}

// Compared is told of what the self-check found wrong: no event is lost between
// a watch and the books, so nothing is.
func (a watched) Compared(wrong map[string]int) {
	defer a.e.w.lock()()
	if len(wrong) > 0 {
		a.e.w.violate("I3", "the self-check of %s has found fault with what is right: %v", a.e.name, wrong)
	}
}

// assumed returns the pods that are assumed, and for which nothing has been sent
// for so long.
func (e *extenderProc) assumed(age time.Duration) (out []*spec) {
	for _, s := range e.w.order {
		if _, assumed, ok := e.books.PodNode(s.uid); ok && assumed && e.w.now()-e.sentAt[s.uid] >= age {
			out = append(out, s)
		}
	}
	return out
}

// lookedAt is missing for questions. Filter looks again as soon as the cache has
// changed, in the midst of an event, once or more often as it happens: it is held
// here until that is over.
func (e *extenderProc) lookedAt() string {
	e.w.mu.Lock()
	var again chan struct{}
	if e.looked && e.lookedIn != e.w.steps {
		again = make(chan struct{})
		e.again = append(e.again, again)
	}
	e.looked = true
	e.w.mu.Unlock()
	if again != nil {
		select {
		case <-again:
		case <-e.dead:
		}
	}
	return e.missing()
}

// lookAgain lets a Filter that waits for news look at it, in an event of its own.
func (w *World) lookAgain() {
	for _, r := range w.replicas {
		if again := r.ext.again; len(again) > 0 {
			r.ext.again = nil
			w.after(1*tick, r.ext.process, r.ext.name+": looks again", func() {
				w.busy = true
				r.ext.lookedIn = w.steps
				for _, c := range again {
					close(c)
				}
			})
		}
	}
}

// filter, prioritize and preempt are one HTTP request each. They must change
// nothing (I7). The error is that there is no answer.
func (e *extenderProc) filter(s *scheduler, pod *v1.Pod, names []string) (*extenderv1.ExtenderFilterResult, error) {
	return question[extenderv1.ExtenderFilterResult](e, s, "/filter", &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names})
}

func (e *extenderProc) prioritize(s *scheduler, pod *v1.Pod, names []string) (*extenderv1.HostPriorityList, error) {
	e.books.Reprice() // which the command does beside the verbs
	return question[extenderv1.HostPriorityList](e, s, "/prioritize", &extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names})
}

func (e *extenderProc) preempt(s *scheduler, pod *v1.Pod, victims map[string]*extenderv1.MetaVictims) (*extenderv1.ExtenderPreemptionResult, error) {
	return question[extenderv1.ExtenderPreemptionResult](e, s, "/preempt", &extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToMetaVictims: victims})
}

// question asks in a coroutine of a scheduler, which waits for so long as
// kube-scheduler does. The world's lock is held before and after.
func question[Out any](e *extenderProc, s *scheduler, path string, in any) (*Out, error) {
	w := e.w
	if !e.live || w.chance(60) {
		return nil, errLost
	}
	r := newReply()
	var out *Out
	ctx, cancel := context.WithTimeout(context.Background(), extenderTimeout)
	defer cancel()
	e.open[r] = func() { w.send(r) }
	w.after(1*tick, e.process, s.name+" asks "+path, func() {
		w.spawn(func() {
			e.looked = false
			e.books.Expire(time.Now()) // the time ends nominations, not the question
			before, step := e.views(), w.steps
			answer, status := post[Out](w, e.asked, path, in)
			if status != http.StatusOK {
				w.violate("I9", "%s answers %s with status %d", e.name, path, status)
			}
			if step == w.steps && !reflect.DeepEqual(before, e.views()) {
				w.violate("I7", "%s of %s has changed the cache", path, e.name)
			}
			if e.live {
				w.after(1*tick, s.process, e.name+" answers "+path, func() { out = answer; w.send(r) })
			}
		})
	})
	err := w.wait(ctx, s.process, r) // ends here if the scheduler does, without the lock
	delete(e.open, r)
	switch {
	case err != nil:
		return nil, err
	case out == nil:
		return nil, errLost
	}
	return out, nil
}

// crash kills the process, and tells a moment later those who wait for answers.
func (e *extenderProc) crash() {
	e.kill()
	for _, lost := range e.open {
		e.w.after(1*tick, nil, e.name+": the connection breaks", lost)
	}
}

// post makes one request of the handlers, without the world's lock. A panic of theirs is a
// status of 500.
func post[Out any](w *World, routes http.Handler, path string, in any) (*Out, int) {
	body, err := json.Marshal(in)
	if err != nil {
		panic(err) // a type of the protocol
	}
	answer := httptest.NewRecorder()
	w.free(func() { routes.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))) })
	out := new(Out)
	if err := json.Unmarshal(answer.Body.Bytes(), out); err != nil {
		return out, http.StatusInternalServerError
	}
	return out, answer.Code
}

// views returns the nodes of the cache without expected pods: a question may change these alone.
func (e *extenderProc) views() []placement.Node {
	nodes := e.books.Nodes()
	for i := range nodes {
		nodes[i].Expected = nil
	}
	return nodes
}

// bind is the handler's call for one HTTP request, in a coroutine.
func (e *extenderProc) bind(pod *v1.Pod, node string, done func(problem string)) {
	w, uid := e.w, string(pod.UID)
	w.spawn(func() {
		if e.bindAt == 0 || w.now()-e.bindAt > binder.IdleThreshold {
			e.turn = w.now()
		}
		e.bindAt = w.now()
		if e.calls[uid] == 0 {
			e.turns[uid] = e.turn
		}
		e.calls[uid]++
		result, status := post[extenderv1.ExtenderBindingResult](w, e.routes, "/bind", &extenderv1.ExtenderBindingArgs{
			PodName: pod.Name, PodNamespace: pod.Namespace, PodUID: pod.UID, Node: node,
		})
		if status != http.StatusOK {
			w.violate("I9", "%s answers /bind with status %d", e.name, status)
		}
		e.calls[uid]--
		e.dirty = true
		w.logf("  %s: bind %s to %s: %q", e.name, pod.Name, node, result.Error)
		if result.Error != "" && e.refused[uid] && e.calls[uid] == 0 {
			if _, assumed, ok := e.books.PodNode(uid); ok && assumed {
				w.violate("I6", "%s: the binding of %s was refused for certain, and it is still assumed", e.name, pod.Name)
			}
		}
		done(result.Error)
	})
}

// cluster is the extender's hand at the API server: what controller.Controller is.
type cluster struct{ e *extenderProc }

func (c cluster) Pod(_, name string) *v1.Pod {
	defer c.e.w.lock()()
	return c.e.stored.pods.store[name]
}

func (c cluster) Node(name string) *v1.Node {
	defer c.e.w.lock()()
	return c.e.stored.nodes.store[name]
}

func (c cluster) Waiting() (out []*v1.Pod) {
	defer c.e.w.lock()()
	for _, pod := range sorted(c.e.stored.pods.store) {
		if pod.Spec.NodeName == "" && c.e.w.names.Holds(pod) {
			out = append(out, pod)
		}
	}
	return out
}

func (c cluster) PodsOn(node string) (out []*v1.Pod) {
	defer c.e.w.lock()()
	for _, pod := range sorted(c.e.stored.pods.store) {
		if pod.Spec.NodeName == node {
			out = append(out, pod)
		}
	}
	return out
}

func (c cluster) Budgets(string) []*policyv1.PodDisruptionBudget { return nil }

func (c cluster) ReadPod(ctx context.Context, _, name string) (*v1.Pod, error) {
	e, w := c.e, c.e.w
	w.mu.Lock()
	c.unlocked("ReadPod")
	var pod *v1.Pod
	err := w.api.request(ctx, e.process, e.name+": GET "+name, false, func() error {
		pod = w.api.pods[name]
		return nil
	})
	if err != nil {
		e.stale = w.now()
		pod = nil
	} else if pod != nil && pod.Spec.NodeName != "" && !terminal(pod) {
		e.hasRead(pod)
	}
	if err == nil {
		for uid := range e.read {
			if s := w.pods[uid]; s.name == name && (pod == nil || string(pod.UID) != uid || terminal(pod)) {
				e.over[uid] = true
			}
		}
	}
	if err == nil && pod == nil || pod != nil && pod.Spec.NodeName != "" {
		for uid := range e.refused {
			if w.pods[uid].name == name {
				delete(e.refused, uid) // the read decides
			}
		}
	}
	e.dirty = true
	w.mu.Unlock()
	return pod, err
}

// hasRead has a pod count as a read has shown it, unless the watch has told more.
func (e *extenderProc) hasRead(pod *v1.Pod) {
	uid := string(pod.UID)
	_, assumed, known := e.books.PodNode(uid)
	if !known || assumed || e.read[uid] != nil {
		e.read[uid] = pod
	}
}

func (c cluster) ReadPodsOn(ctx context.Context, node string) (on []*v1.Pod, err error) {
	e, w := c.e, c.e.w
	w.mu.Lock()
	c.unlocked("ReadPodsOn")
	err = w.api.request(ctx, e.process, e.name+": LIST pods of "+node, false, func() error {
		for _, pod := range sorted(w.api.pods) {
			if pod.Spec.NodeName == node && !terminal(pod) {
				on = append(on, pod)
			}
		}
		return nil
	})
	if err != nil {
		on = nil
	}
	for _, pod := range on {
		e.hasRead(pod)
	}
	e.dirty = true
	w.mu.Unlock()
	return on, err
}

func (c cluster) Bind(ctx context.Context, b *v1.Binding) error {
	ctx, cancel := context.WithTimeout(ctx, controller.BindDeadline)
	defer cancel()
	e, w, uid := c.e, c.e.w, string(b.UID)
	w.mu.Lock()
	c.unlocked("Bind")
	e.decided(b)
	w.noteSent(uid, sending{by: e.process, node: b.Target.Name, gpus: w.gpusOf(w.asSent(w.pods[uid], b.Annotations[w.names.Assignment()]), b.Annotations[w.names.Assignment()])})
	w.logf("  %s: POST binding of %s to %s %s", e.name, b.Name, b.Target.Name, b.Annotations[w.names.Index()])
	err := w.api.request(ctx, e.process, "POST binding "+b.Name, true, func() error {
		err := w.api.bind(b)
		if err == nil {
			e.checkAlone(b.Name)
		}
		if err == nil && e.live {
			if node, _, ok := e.books.PodNode(uid); !ok || node != b.Target.Name {
				w.violate("I2", "%s: a binding of %s to %s has landed, and its memory is no longer reserved", e.name, b.Name, b.Target.Name)
			}
		}
		return err
	})
	switch {
	case err == nil:
		e.unknown[uid] = true // or is known to have landed
		delete(e.refused, uid)
	case c.Refused(err):
		e.refused[uid] = !e.unknown[uid]
		for i := range w.sent[uid] {
			if w.sent[uid][i].by == e.process {
				w.sent[uid][i].refused = e.refused[uid]
			}
		}
	default:
		e.unknown[uid] = true
		delete(e.refused, uid)
	}
	w.mu.Unlock()
	return err
}

// decided notes that a place was chosen for a pod, which is about to be sent or sent again.
func (e *extenderProc) decided(b *v1.Binding) {
	uid := string(b.UID)
	before := e.sent[uid]
	_, assumed, ok := e.books.PodNode(uid)
	e.repeated[uid] = ok && assumed && before != nil && before.Target.Name == b.Target.Name && e.reserved[uid]
	e.sent[uid], e.sentAt[uid] = b, e.w.now()
	e.reserved[uid] = true
	delete(e.refused, uid)
	e.dirty = true
	e.checkDecision(uid, b.Target.Name, b.Annotations[e.w.names.Assignment()])
}

func (c cluster) Refused(err error) bool {
	return (*controller.Controller)(nil).Refused(fmt.Errorf("wrapped: %w", err))
}

// Leader reads who holds kube-scheduler's Lease.
func (c cluster) Leader(ctx context.Context) (holder string, err error) {
	err = c.read(ctx, "GET lease", func() { holder = c.e.w.api.holder })
	return holder, err
}

// Revision reads how far the API server is.
func (c cluster) Revision(ctx context.Context) (revision string, err error) {
	err = c.read(ctx, "LIST with limit=1", func() { revision = strconv.FormatInt(c.e.w.api.version, 10) })
	return revision, err
}

func (c cluster) read(ctx context.Context, name string, take func()) error {
	e, w := c.e, c.e.w
	w.mu.Lock()
	c.unlocked(name)
	err := w.api.request(ctx, e.process, e.name+": "+name, false, func() error {
		take()
		return nil
	})
	w.mu.Unlock() // it is not locked where the process has died
	return err
}

// Shown reports whether the watch of pods has told of all up to a revision.
func (c cluster) Shown(revision string) bool {
	defer c.e.w.lock()()
	n, err := strconv.ParseInt(revision, 10, 64)
	return err == nil && c.e.pods.told >= n
}

// Wake changes an annotation of a waiting pod through its status: kube-scheduler
// tries it again then, first on the node that it is nominated to.
func (c cluster) Wake(ctx context.Context, ref placement.PodRef, nominate *string) error {
	e, w := c.e, c.e.w
	w.mu.Lock()
	c.unlocked("Wake")
	w.counts.Woken++
	err := w.api.request(ctx, e.process, e.name+": PATCH status of "+ref.Name, true, func() error {
		return w.api.changePod(ref.Name, podUID(ref.UID), func(p *v1.Pod) {
			at := strconv.FormatInt(w.api.version, 10)
			if nominate != nil {
				p.Status.NominatedNodeName = *nominate
				at = api.RoomMade(at, *nominate)
			}
			p.Annotations[w.names.RoomMadeAt()] = at
		})
	})
	w.mu.Unlock() // it is not locked where the process has died
	return err
}

// unlocked checks I8 by looking at the cache's lock.
func (c cluster) unlocked(call string) {
	if locked(c.e.books) {
		c.e.w.violate("I8", "%s is called while the cache is locked", call)
	}
}

// locked reports whether the field mu of a struct of the product is locked, and stays
// so: the world's lock is held here, so whoever else has the other, and calls nobody,
// is done with it soon.
func locked(of any) bool {
	const soon = 1_000_000 // turns of others
	field := reflect.ValueOf(of).Elem().FieldByName("mu")
	mu := (*sync.Mutex)(unsafe.Pointer(field.UnsafeAddr()))
	for range soon {
		if mu.TryLock() {
			mu.Unlock()
			return false
		}
		runtime.Gosched()
	}
	return true
}

// flight is a singleflight.Group of which one coroutine goes on at a time: who waited goes on
// after the one before it, and in the order in which they came.
type flight struct {
	w     *World
	p     *process
	calls map[string]*call
}

type call struct {
	result any
	err    error
	wait   []*reply
}

func (f flight) Do(key string, do func() (any, error)) (any, error, bool) { //nolint:revive // as singleflight.Group has it
	w := f.w
	w.mu.Lock()
	if c := f.calls[key]; c != nil {
		r := newReply()
		c.wait = append(c.wait, r)
		_ = w.wait(context.Background(), f.p, r) // ends here if the process does, without the lock
		w.mu.Unlock()
		return c.result, c.err, true
	}
	c := new(call)
	f.calls[key] = c
	w.mu.Unlock()
	c.result, c.err = do()
	defer w.lock()()
	delete(f.calls, key)
	for i, r := range c.wait {
		w.after(time.Duration(i+1)*tick, f.p, "waited for: "+key, func() { w.send(r) })
	}
	return c.result, c.err, len(c.wait) > 0
}
