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
	"github.com/gpumem/gpumem/pkg/node/inventory"
	"github.com/gpumem/gpumem/pkg/process/operation"
)

// Pods lists the pods that are bound to the node, reports whether the list is complete, and writes a pod's
// assignment.
type Pods interface {
	Pods() (pods []allocation.Pod, complete bool, changed <-chan struct{})
	Refresh(ctx context.Context) error // lists the pods from the API server
	HasUnwatched() bool                // the list contains a pod that only Refresh has listed
	Correct(ctx context.Context, pod placement.PodRef, a placement.Assignment, inv gpu.Inventory) error
}

// Kubelet returns the allocations of containers, and all pods that the kubelet lists, as namespace/name.
type Kubelet interface {
	List(ctx context.Context) (listed []allocation.Allocated, knownPods map[string]bool, err error)
}

// Config contains the node's placement rules and timeouts.
type Config struct {
	Node            string
	Policy          placement.Policy // for pods without a policy
	PlaceUnassigned bool             // place pods that no scheduler placed; otherwise reject them
	Published       gpu.Inventory    // from the node's annotation at the start of the process; empty if there was none

	// Cordoned returns the GPUs that accept no pods without a scheduler's placement. A nil function means no GPUs.
	// Cordoned GPUs stay healthy for the kubelet, which would otherwise not restart their containers.
	Cordoned func() []gpu.UUID

	KubeletWait time.Duration // timeout of the kubelet's answer
	WriteWait   time.Duration // timeout of one write of a pod's annotations
}

// State combines a node's pods, grants and allocations. It is safe for concurrent use.
type State struct {
	cfg     Config
	offers  *Offers
	pods    Pods
	kubelet Kubelet
	log     *zap.Logger
	*Table  // the grants
	account *inventory.Value[accounts]

	mu                sync.Mutex // guards the rest
	listed            []allocation.Allocated
	everListed        bool                            // the kubelet has answered at least once
	countAtPoll       int                             // number of grants at the last successful call of SnapshotOnce
	countAtPollBefore int                             // number of grants at the successful call of SnapshotOnce before that
	plans             map[string]placement.Assignment // by UID: see "plan" in the package documentation
}

// New returns a state with the grants of a table.
func New(cfg Config, offers *Offers, pods Pods, kubelet Kubelet, grants *Table, log *zap.Logger) *State {
	return &State{
		cfg: cfg, offers: offers, pods: pods, kubelet: kubelet, Table: grants, log: log,
		account: inventory.NewValue(accounts{cfg.Published.Allocated, len(cfg.Published.Devices) > 0}),
		plans:   make(map[string]placement.Assignment),
	}
}

// CheckLock blocks while a lock is held. A liveness check that times out in CheckLock has found a deadlock.
func (n *State) CheckLock() {
	n.Table.CheckLock()
	n.mu.Lock()
	defer n.mu.Unlock()
}

// kubeletPause is the pause before another call to a kubelet that did not answer. The kubelet limits the rate of these
// calls: after a burst, it answers one every 10 ms.
const kubeletPause = 20 * time.Millisecond

// Snapshot returns the state of the node from the kubelet's current list, and a channel that is closed when the
// pods change. If the kubelet does not answer, Snapshot also returns the error. The state then combines the
// kubelet's last list with later grants, and its field Listed is nil.
func (n *State) Snapshot(ctx context.Context) (allocation.State, <-chan struct{}, error) {
	limited, cancel := context.WithTimeout(ctx, n.cfg.KubeletWait)
	defer cancel()
	for {
		pods, _, changed := n.pods.Pods() // before the kubelet's list: see allocation.Reconcile
		grantCount := n.Count()
		listed, knownPods, err := n.kubelet.List(limited)
		if err == nil {
			return n.mergeListed(pods, listed, knownPods, grantCount), changed, nil
		}
		select {
		case <-limited.Done():
			operation.Log(ctx, n.log).Warn("cannot list PodResources: the recorded grants stay valid", zap.String("node", n.cfg.Node), zap.Error(err))
			return n.fromMemory(pods), changed, err
		case <-time.After(kubeletPause):
		}
	}
}

// SnapshotOnce is like Snapshot, but calls the kubelet only once, and returns an empty state with an error. The
// result `complete` reports whether the list of the node's pods is complete.
func (n *State) SnapshotOnce(ctx context.Context) (s allocation.State, complete bool, err error) {
	limited, cancel := context.WithTimeout(ctx, n.cfg.KubeletWait)
	defer cancel()
	pods, complete, _ := n.pods.Pods() // before the kubelet's list: see allocation.Reconcile
	grantCount := n.Count()
	listed, knownPods, err := n.kubelet.List(limited)
	if err != nil {
		return allocation.State{}, false, err
	}
	n.mu.Lock()
	n.countAtPollBefore, n.countAtPoll = n.countAtPoll, grantCount
	n.mu.Unlock()
	return n.mergeListed(pods, listed, knownPods, grantCount), complete, nil
}

// mergeListed returns the state from an answer of the kubelet, and stores the answer for fromMemory. The number
// `grantCount` is the number of grants before the call to the kubelet.
func (n *State) mergeListed(pods []allocation.Pod, listed []allocation.Allocated, knownPods map[string]bool, grantCount int) allocation.State {
	s := n.emptyState()
	s.Pods, s.Allocated = pods, listed
	n.Adopt(s, grantCount)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listed, n.everListed = listed, true
	s = n.addPods(s, pods)
	s.Listed = knownPods
	return s
}

// fromMemory returns the state from the kubelet's last list and later grants.
func (n *State) fromMemory(pods []allocation.Pod) allocation.State {
	s := n.emptyState()
	n.mu.Lock()
	defer n.mu.Unlock()
	s = n.addPods(s, pods)
	s.NeverListed = !n.everListed
	fromKubelet := s.Allocated
	s.Allocated = slices.Clone(fromKubelet)
	for _, g := range s.Attributed {
		if !g.Earlier && !listedIn(fromKubelet, g) {
			s.Allocated = append(s.Allocated, g.Allocated())
		}
	}
	return s
}

// listedIn reports whether the kubelet's list contains slots of a grant. It returns true for a plain
// init container, which the kubelet never lists.
func listedIn(listed []allocation.Allocated, g allocation.Attributed) bool {
	return g.Container.Kind == placement.Init || slices.ContainsFunc(listed, func(h allocation.Allocated) bool {
		return h.BelongsTo(g.Pod) && h.Container == g.Container.Name && slices.Contains(h.Slots, g.Slots[0])
	})
}

// emptyState returns a state with inventory and policy, but without pods.
func (n *State) emptyState() allocation.State {
	o, _ := n.offers.Current()
	s := allocation.State{Inventory: o.Inventory, Slots: o.Slots, Policy: n.cfg.Policy, PlaceUnassigned: n.cfg.PlaceUnassigned}
	if n.cfg.Cordoned != nil {
		s.Inventory = api.Cordon(s.Inventory, n.cfg.Cordoned())
	}
	return s
}

// addPods adds the pods and their grants to a state. The caller must hold mu.
func (n *State) addPods(s allocation.State, pods []allocation.Pod) allocation.State {
	s.Pods, s.Allocated, s.Attributed = n.planned(pods), n.listed, n.unlisted(pods)
	return s.WithUnlisted()
}

// unlisted returns the grants to use in addition to the kubelet's list. For a pod that is not admitted yet, it returns
// all grants, because the kubelet's answers may have arrived out of order. It also returns all grants of a pod that
// requests memory only in plain init containers, which the kubelet never lists. For other admitted pods, it returns
// the grants of app containers and sidecars that the list lacks. The caller must hold mu.
func (n *State) unlisted(pods []allocation.Pod) (out []allocation.Attributed) {
	grants, recent := n.Table.Grants()
	for _, g := range grants {
		a := g.Attributed()
		i := slices.IndexFunc(pods, func(pod allocation.Pod) bool { return pod.Pod == a.Pod })
		if i < 0 || g.Container == "" || pods[i].Admitted && !pods[i].Unlisted() && listedIn(n.listed, a) {
			continue
		}
		a.Earlier = !recent(g)
		out = append(out, a)
	}
	return out
}

// planned returns the pods with their plans. Until the admission, the plan is the pod's annotation. Afterwards,
// planned uses the recorded plan, because the owner may have changed the annotation. If none is recorded, because
// the pod was admitted before the process started, planned records the current annotation. The caller must hold mu.
func (n *State) planned(pods []allocation.Pod) []allocation.Pod {
	pods = slices.Clone(pods)
	for i, pod := range pods {
		plan, recorded := n.plans[pod.Pod.UID]
		if !recorded || !pod.Admitted {
			plan = pod.Assignment
			n.plans[pod.Pod.UID] = plan
		}
		pods[i].Plan = &plan
	}
	return pods
}

// recordPlan records an assignment that this node has written to a pod.
func (n *State) recordPlan(ref placement.PodRef, a placement.Assignment) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.plans[ref.UID] = a
}

// Prune drops the plans of all pods whose UIDs are not in `present`. If `complete` is true, `present` contains
// all pods of the node, and Prune also drops the grants of other pods that were recorded before the last
// successful call of SnapshotOnce. The caller must read the pods after that call. Grants whose slots the
// kubelet lists stay.
func (n *State) Prune(present map[string]bool, complete bool) {
	defer n.Retry() // without the lock
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.plans, func(uid string, _ placement.Assignment) bool { return !present[uid] })
	if !complete {
		return
	}
	n.Table.Prune(n.countAtPoll, func(g Grant, listed bool) bool {
		// Without a UID, only listed slots prove that a grant is in use. The kubelet stores the answer to
		// Allocate on disk before it lists the container. So a grant without a UID stays until two calls of
		// SnapshotOnce have followed it.
		return present[g.UID] || listed || g.UID == "" && g.number > n.countAtPollBefore
	})
}
