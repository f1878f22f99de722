package nodestate

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/allocation"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Pods tells which pods are bound to the node, whether these are all, and when
// that changes.
type Pods interface {
	Pods() (pods []allocation.Pod, complete bool, changed <-chan struct{})
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
	Levels          string            // file in which levels that were handed out are written down; empty: none
}

// State is what a node knows of its pods. It is safe for concurrent use.
type State struct {
	cfg     Config
	offers  *Offers
	pods    Pods
	kubelet Kubelet
	log     *zap.Logger
	levels  *levels

	mu      sync.Mutex // guards the rest
	held    []allocation.Allocated
	heard   bool                            // the kubelet has listed what it has given
	given   []grant                         // the kubelet may not have listed it yet
	grants  int                             // so far
	plans   map[string]placement.Assignment // by UID, what was written of pods when the kubelet admitted them, or here since
	account account
}

// grant is what a container was given.
type grant struct {
	allocation.Attributed
	number int // of the grants so far
}

// New returns a state in which nothing is known yet.
func New(cfg Config, offers *Offers, pods Pods, kubelet Kubelet, log *zap.Logger) *State {
	return &State{
		cfg: cfg, offers: offers, pods: pods, kubelet: kubelet, log: log, levels: readLevels(cfg.Levels, log),
		plans: make(map[string]placement.Assignment), account: account{changed: make(chan struct{})},
	}
}

// Alive returns unless the lock is never released.
func (n *State) Alive() {
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
		before := n.granted()
		held, known, err := n.kubelet.List(asking)
		if err == nil {
			return n.heardOf(pods, held, known, before), changed, nil
		}
		select {
		case <-asking.Done():
			n.log.Warn("the kubelet does not tell what it has given", zap.String("node", n.cfg.Node), zap.Error(err))
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
	before := n.granted()
	held, known, err := n.kubelet.List(asking)
	if err != nil {
		return allocation.State{}, false, err
	}
	return n.heardOf(pods, held, known, before), complete, nil
}

// granted returns how many grants there were so far.
func (n *State) granted() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.grants
}

// Changed returns channels that are closed when the pods have changed, and what is offered.
func (n *State) Changed() (pods, offer <-chan struct{}) {
	_, _, pods = n.pods.Pods()
	_, offer = n.offers.Now()
	return pods, offer
}

// heardOf is the state of the node with what its pods hold, which is remembered for when the kubelet
// does not tell. Before is how many grants there were when the kubelet was asked: where it lists the
// slots of one of these as another pod's, they were never for the pod that they seemed to be for.
func (n *State) heardOf(pods []allocation.Pod, held []allocation.Allocated, known map[string]bool, before int) allocation.State {
	s := n.rules()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held, n.heard = held, true
	n.given = slices.DeleteFunc(n.given, func(g grant) bool { return g.number <= before && g.OfAnother(held) })
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
		if !listedIn(told, g) {
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
	n.forgetTold(pods)
	s.Pods, s.Allocated = n.planned(pods), n.held
	for _, g := range n.given {
		s.Attributed = append(s.Attributed, g.Attributed)
	}
	return s.WithUnlisted()
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

// Keep drops what was planned for pods other than these, by UID.
func (n *State) Keep(here map[string]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.plans, func(uid string, _ placement.Assignment) bool { return !here[uid] })
}

// Remember keeps what a container is given until the kubelet has listed it. It gives a slot to one
// container of a resource: where it gives one again that seemed to be for this very container, that
// was for one of a pod that is gone.
func (n *State) Remember(given allocation.Attributed) {
	if len(given.Slots) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.grants++
	n.given = append(slices.DeleteFunc(n.given, func(g grant) bool {
		return g.Pod == given.Pod && g.Container.Name == given.Container.Name && slices.ContainsFunc(g.Slots, func(id gpu.SlotID) bool { return slices.Contains(given.Slots, id) })
	}), grant{given, n.grants})
}

// ForgetGiven forgets all that: a kubelet that has restarted may have lost it.
func (n *State) ForgetGiven() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.given = nil
}

// forgetTold drops what was given to pods that are gone, and of pods that are
// settled what the kubelet has listed as theirs. Before that, an answer
// may be older than the one before it. Of some it lists nothing. The caller holds mu.
func (n *State) forgetTold(pods []allocation.Pod) {
	n.given = slices.DeleteFunc(n.given, func(g grant) bool {
		i := slices.IndexFunc(pods, func(pod allocation.Pod) bool { return pod.Pod == g.Pod })
		return i < 0 || pods[i].Admitted && !pods[i].Unlisted() && listedIn(n.held, g.Attributed)
	})
}
