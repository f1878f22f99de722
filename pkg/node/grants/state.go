package grants

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/process/operation"
)

// Pods lists the pods that are bound to the node, reports whether these are all, and writes the GPUs of a pod.
type Pods interface {
	Pods() (pods []allocation.Pod, complete bool, changed <-chan struct{})
	Correct(ctx context.Context, pod placement.PodRef, a placement.Assignment, inv gpu.Inventory) error
}

// Kubelet tells what containers hold, and which pods it lists.
type Kubelet interface {
	List(ctx context.Context) (held []allocation.Allocated, known map[string]bool, err error)
}

// Config is by what rules pods are placed on the node, and how long the kubelet is waited for.
type Config struct {
	Node            string
	Policy          placement.Policy  // for pods that name none
	PlaceUnassigned bool              // place pods that no scheduler placed; otherwise refuse them
	Cordoned        func() []gpu.UUID // which GPUs get none of these; nil: all do
	KubeletWait     time.Duration     // for an answer of the kubelet
	WriteWait       time.Duration     // for one write of a pod's annotations
	Published       gpu.Inventory     // by the node's annotation at the start of the process; empty: none
}

// State is what a node knows of its pods. It is safe for concurrent use.
type State struct {
	cfg     Config
	offers  *Offers
	pods    Pods
	kubelet Kubelet
	grants  *Table
	log     *zap.Logger

	mu          sync.Mutex // guards the rest
	held        []allocation.Allocated
	heard       bool                            // the kubelet has listed what it has given
	asked       int                             // grants when Ask was called last
	askedBefore int                             // grants when Ask was called the time before
	plans       map[string]placement.Assignment // by UID, what was written of pods when the kubelet admitted them, or here since

	account      []gpu.PodAllocation // see Allocations
	accountKnown bool
	changed      chan struct{} // closed and replaced when the account changes
}

// New returns a state that has the grants of a table.
func New(cfg Config, offers *Offers, pods Pods, kubelet Kubelet, grants *Table, log *zap.Logger) *State {
	return &State{
		cfg: cfg, offers: offers, pods: pods, kubelet: kubelet, grants: grants, log: log,
		plans:   make(map[string]placement.Assignment),
		account: cfg.Published.Allocated, accountKnown: len(cfg.Published.Devices) > 0, changed: make(chan struct{}),
	}
}

// Alive returns unless the lock is never released.
func (n *State) Alive() {
	n.grants.Alive()
	n.mu.Lock()
	defer n.mu.Unlock()
}

// kubeletPause is how long to wait before the kubelet is asked again that did not
// answer: it answers a few questions at once, and then one each 10 ms.
const kubeletPause = 20 * time.Millisecond

// Look gathers the state of the node, asking the kubelet. The error is the
// kubelet's; the state then has what it said last and what it was given since,
// and does not say which pods it lists. The channel is closed when the pods have changed.
func (n *State) Look(ctx context.Context) (allocation.State, <-chan struct{}, error) {
	asking, cancel := context.WithTimeout(ctx, n.cfg.KubeletWait)
	defer cancel()
	for {
		pods, _, changed := n.pods.Pods() // before the kubelet is asked: see allocation.Reconcile
		before := n.grants.Count()
		held, known, err := n.kubelet.List(asking)
		if err == nil {
			return n.heardOf(pods, held, known, before), changed, nil
		}
		select {
		case <-asking.Done():
			operation.Log(ctx, n.log).Warn("cannot list PodResources: the recorded grants stay valid", zap.String("node", n.cfg.Node), zap.Error(err))
			return n.recall(pods), changed, err
		case <-time.After(kubeletPause):
		}
	}
}

// Ask is Look with one question to the kubelet, and no state if that fails. It reports whether all
// pods of the node are known.
func (n *State) Ask(ctx context.Context) (s allocation.State, complete bool, err error) {
	asking, cancel := context.WithTimeout(ctx, n.cfg.KubeletWait)
	defer cancel()
	pods, complete, _ := n.pods.Pods() // before the kubelet is asked: see allocation.Reconcile
	before := n.grants.Count()
	held, known, err := n.kubelet.List(asking)
	if err != nil {
		return allocation.State{}, false, err
	}
	n.mu.Lock()
	n.askedBefore, n.asked = n.asked, before
	n.mu.Unlock()
	return n.heardOf(pods, held, known, before), complete, nil
}

// Changed returns channels that are closed when the pods have changed, and what is offered.
func (n *State) Changed() (pods, offer <-chan struct{}) {
	_, _, pods = n.pods.Pods()
	_, offer = n.offers.Now()
	return pods, offer
}

// heardOf is the state of the node by an answer of the kubelet, which counts while the kubelet does not
// answer. Before is how many grants there were when the kubelet was asked.
func (n *State) heardOf(pods []allocation.Pod, held []allocation.Allocated, known map[string]bool, before int) allocation.State {
	s := n.rules()
	s.Pods, s.Allocated = pods, held
	n.grants.Adopt(s, before)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held, n.heard = held, true
	s = n.fill(s, pods)
	s.Listed = known
	return s
}

// recall is the state of the node by what the kubelet listed last, and by what it
// was given since.
func (n *State) recall(pods []allocation.Pod) allocation.State {
	s := n.rules()
	n.mu.Lock()
	defer n.mu.Unlock()
	s = n.fill(s, pods)
	s.NeverListed = !n.heard
	told := s.Allocated
	s.Allocated = slices.Clone(told)
	for _, g := range s.Attributed {
		if !g.Earlier && !listedIn(told, g) {
			s.Allocated = append(s.Allocated, g.Allocated())
		}
	}
	return s
}

// listedIn reports whether the kubelet lists the slots of a grant, or never will: it lists no
// plain init containers.
func listedIn(held []allocation.Allocated, g allocation.Attributed) bool {
	return g.Container.Kind == placement.Init || slices.ContainsFunc(held, func(h allocation.Allocated) bool {
		return h.Of(g.Pod) && h.Container == g.Container.Name && slices.Contains(h.Slots, g.Slots[0])
	})
}

// rules is a state of no pods.
func (n *State) rules() allocation.State {
	o, _ := n.offers.Now()
	s := allocation.State{Inventory: o.Inventory, Slots: o.Slots, Policy: n.cfg.Policy, PlaceUnassigned: n.cfg.PlaceUnassigned}
	if n.cfg.Cordoned != nil {
		s.Inventory = api.Cordon(s.Inventory, n.cfg.Cordoned())
	}
	return s
}

// fill adds to a state what is known of pods. The caller holds mu.
func (n *State) fill(s allocation.State, pods []allocation.Pod) allocation.State {
	s.Pods, s.Allocated, s.Attributed = n.planned(pods), n.held, n.unlisted(pods)
	return s.WithUnlisted()
}

// unlisted returns the grants of these pods that the kubelet may not list. Of an admitted pod it lists all containers
// but plain init containers. Before the admission, an answer may be older than the previous one.
// The caller holds mu.
func (n *State) unlisted(pods []allocation.Pod) (out []allocation.Attributed) {
	grants, recent := n.grants.Grants()
	for _, g := range grants {
		a := g.Attributed()
		i := slices.IndexFunc(pods, func(pod allocation.Pod) bool { return pod.Pod == a.Pod })
		if i < 0 || g.Container == "" || pods[i].Admitted && !pods[i].Unlisted() && listedIn(n.held, a) {
			continue
		}
		a.Earlier = !recent(g)
		out = append(out, a)
	}
	return out
}

// planned adds to pods what was planned for them. What is written of a pod that the kubelet has
// admitted may have been changed by its owner since. The caller holds mu.
func (n *State) planned(pods []allocation.Pod) []allocation.Pod {
	pods = slices.Clone(pods)
	for i, pod := range pods {
		plan, known := n.plans[pod.Pod.UID]
		if !known || !pod.Admitted {
			plan = pod.Assignment
			n.plans[pod.Pod.UID] = plan
		}
		pods[i].Plan = &plan
	}
	return pods
}

// Wrote records what this node has written of a pod.
func (n *State) Wrote(ref placement.PodRef, a placement.Assignment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.plans[ref.UID] = a
}

// Keep drops the plans of pods other than these, by UID. Where these are all, it drops the grants of others too that were made
// before Ask was called last. The caller reads the pods after that.
func (n *State) Keep(here map[string]bool, all bool) {
	defer n.grants.Retry() // without the lock
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.plans, func(uid string, _ placement.Assignment) bool { return !here[uid] })
	if !all {
		return
	}
	listed := make(map[gpu.SlotID]bool)
	for _, h := range n.held {
		for _, id := range h.Slots {
			listed[id] = true
		}
	}
	n.grants.Keep(n.asked, func(g Grant) bool {
		// The kubelet stores the answer to Allocate on disk before it lists the container, and nothing else
		// shows the pod of a grant without a UID.
		return here[g.UID] || listed[g.Slots[0]] || g.UID == "" && g.number > n.askedBefore
	})
}
