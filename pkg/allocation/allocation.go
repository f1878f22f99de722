package allocation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

// Pod is one pod bound to this node, as the API server has it.
type Pod struct {
	placement.Holding
	Created time.Time

	// What gpushare wrote, or would have written, where gpumem stands in for it.
	Indexes  []int // of the GPUs that gpushare's scheduler chose
	Unmarked bool  // it is written that the kubelet has not admitted the pod
}

// Held is what the kubelet has given to one container.
type Held struct {
	Namespace, Name string // of the pod
	Container       string
	Slots           []gpu.SlotID // of memory and of cores
}

// Has reports whether slots of the resource are among them.
func (h Held) Has(r gpu.Resource) bool {
	return slices.ContainsFunc(h.Slots, func(id gpu.SlotID) bool { return id.Resource() == r })
}

// State is what is known on a node at one moment.
type State struct {
	Inventory gpu.Inventory
	Slots     *gpu.Slots // of Inventory
	Pods      []Pod      // bound to this node and not terminal
	Held      []Held     // of the shared resources

	// Known are the pods that the kubelet lists, as namespace/name, with
	// something held or without; nil when it cannot be asked. It lists a pod
	// from the moment before it admits it.
	Known map[string]bool

	// Given is what was given to pods that are still here, as Admit returned it.
	// The kubelet may not have told of it yet.
	Given []Given

	// Blind says that the kubelet has not told yet, to whoever asks here, what it
	// has given: any pod may have got something already.
	Blind bool

	Cordoned        []gpu.UUID       // take no pods that no scheduler placed
	Policy          placement.Policy // for pods that name none
	PlaceUnassigned bool             // place pods that no scheduler placed; otherwise refuse them
}

// ErrNoPod says that no pod is known that waits for such an amount: the API
// server's news of it may still be on its way.
var ErrNoPod = errors.New("no pod that waits on this node asks for this amount")

// Grant is what a container gets of one resource.
type Grant struct {
	Resource gpu.Resource
	Devices  []gpu.Device // by index
	Each     int          // slots of each device
	Slots    []gpu.SlotID // in the kubelet's order
}

// size is how many slots the kubelet gives in all.
func (g Grant) size() int { return g.Each * len(g.Devices) }

// Given is a grant, and the container for which the kubelet is likeliest to have
// asked.
type Given struct {
	Pod       placement.PodRef
	Container placement.Container
	Slots     []gpu.SlotID
}

func (g Given) held() Held {
	return Held{Namespace: g.Pod.Namespace, Name: g.Pod.Name, Container: g.Container.Name, Slots: g.Slots}
}

// Told reports whether the kubelet lists the slots, or never will: it lists no
// plain init containers.
func (g Given) Told(held []Held) bool {
	return g.Container.Kind == placement.Init || slices.ContainsFunc(held, func(h Held) bool {
		return h.Namespace == g.Pod.Namespace && h.Name == g.Pod.Name && h.Container == g.Container.Name && slices.Contains(h.Slots, g.Slots[0])
	})
}

// Recall adds to what the kubelet told last what was given since.
func (s State) Recall() State {
	held := slices.Clone(s.Held)
	for _, g := range s.Given {
		if !g.Told(s.Held) {
			held = append(held, g.held())
		}
	}
	s.Held = held
	return s
}

// Amount returns how many slots of a resource a container asks for.
func Amount(r gpu.Resource, c placement.Container) int {
	if r == gpu.Cores {
		return c.Cores
	}
	return int(c.Units)
}

// Prefer returns which of the available slots of a resource the kubelet should
// give to a container that wants size of them, those in must among them. The
// error is ErrNoPod when it cannot be told yet for which pod the kubelet asks.
func Prefer(s State, r gpu.Resource, available, must []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	if size <= 0 || len(must) > size {
		return nil, fmt.Errorf("the kubelet asks for %d slots, %d of which it names", size, len(must))
	}
	s.Pods = s.withUnseen(s.planned())
	free := s.usable(r, s.notHeld(available), must)
	if len(must) > 0 {
		return s.extend(r, free, must, size)
	}
	waiting := s.waitingFor(r, size)
	if s.Known == nil {
		if err := s.ambiguous(r, waiting, size); err != nil {
			return nil, err
		}
	}
	for _, p := range waiting {
		if ids, ok := take(free, nil, p.Assignment.Devices(), size); ok {
			return ids, nil
		}
		if s.begun(p) || unseen(p) && !p.Assignment.None() {
			return nil, s.refusal(r, waiting, size) // it cannot go to other GPUs than it has
		}
	}
	for _, p := range waiting {
		if !s.PlaceUnassigned {
			break
		}
		if ids, ok := s.place(r, free, p, size); ok {
			return ids, nil
		}
	}
	return nil, s.refusal(r, waiting, size)
}

// ambiguous returns an error when the kubelet, which does not tell for which pod
// it asks, may be asking for pods that cannot stand in for one another and are to
// have different GPUs. Those that wait are such by chance only: the scheduler side
// lets none wait together. If the kubelet has never told anything, any pod that
// waits may have begun.
func (s State) ambiguous(r gpu.Resource, waiting []Pod, size int) error {
	if len(waiting) > 0 && s.begun(waiting[0]) {
		return nil
	}
	for i, p := range waiting {
		for _, o := range waiting[:i] {
			if !o.Request.Interchangeable(p.Request) && !o.together(p) {
				return mayBeFor(o, p)
			}
		}
	}
	if !s.Blind {
		return nil
	}
	asks := func(c placement.Container) bool { return Amount(r, c) == size }
	for _, p := range s.Pods {
		if p.Settled || p.Request.Empty() || !slices.ContainsFunc(p.Request.Containers[1:], asks) {
			continue
		}
		for _, o := range s.Pods {
			if !o.Settled && slices.ContainsFunc(o.Request.Containers, asks) && !o.together(p) {
				return mayBeFor(p, o)
			}
		}
	}
	return nil
}

// together reports whether two pods are to have the same GPUs.
func (p Pod) together(o Pod) bool {
	return !p.Assignment.None() && p.Assignment.SameDevices(o.Assignment) || p.Pod == o.Pod
}

func mayBeFor(p, o Pod) error {
	return fmt.Errorf("the kubelet does not tell for which pod it asks, and it may be pod %s or pod %s", p.Pod, o.Pod)
}

// withUnseen returns the pods with the GPUs of those that nobody has placed and
// whose init containers have been given something that does not show.
func (s State) withUnseen(pods []Pod) []Pod {
	for i, p := range pods {
		if !unseen(p) || !p.Assignment.None() {
			continue
		}
		at := slices.IndexFunc(s.Given, func(g Given) bool {
			return g.Pod == p.Pod && g.Container.Kind == placement.Init && !s.another(g)
		})
		if at < 0 {
			continue
		}
		if grant, err := Resolve(s, s.Given[at].Slots[0].Resource(), s.Given[at].Slots); err == nil {
			pods[i].Assignment = grant.assignment().WithShares(p.Request)
		}
	}
	return pods
}

// another reports whether the kubelet says that what was given is another pod's.
func (s State) another(g Given) bool {
	return slices.ContainsFunc(s.Held, func(h Held) bool {
		return slices.Contains(h.Slots, g.Slots[0]) && (h.Namespace != g.Pod.Namespace || h.Name != g.Pod.Name)
	})
}

// unseen reports whether a pod that asks for both resources has a plain init
// container. What that has got of the one does not show when the kubelet asks
// for the other, so both answers must follow from what is written alone.
func unseen(p Pod) bool {
	return p.Request.Cores() > 0 && slices.ContainsFunc(p.Request.Containers, func(c placement.Container) bool {
		return c.Kind == placement.Init
	})
}

func (s State) format(r gpu.Resource, size int) string {
	if r == gpu.Cores {
		return fmt.Sprintf("%d%% of cores", size)
	}
	return gpu.Format(gpu.Units(size), s.Inventory.UnitMiB)
}

// refusal says why none of the pods that could be meant gets its slots.
func (s State) refusal(r gpu.Resource, waiting []Pod, size int) error {
	amount := s.format(r, size)
	if len(waiting) == 0 {
		return fmt.Errorf("%w: %s", ErrNoPod, amount)
	}
	p := waiting[0]
	if p.Assignment.None() && !s.PlaceUnassigned {
		return fmt.Errorf("pod %s was not placed by gpumem's scheduler, and this node refuses such pods: set schedulerName, and leave nodeName empty", p.Pod)
	}
	if verdict := placement.Fit(p.Request, s.without(p)); !verdict.Fits() {
		return fmt.Errorf("pod %s %s", p.Pod, verdict)
	}
	return fmt.Errorf("pod %s wants %s of GPU %v, of which the kubelet has not as much left", p.Pod, amount, p.Assignment.Devices())
}

// written returns what is written of a pod: by gpumem, or else by gpushare,
// which names GPUs by index.
func (s State) written(p Pod) placement.Assignment {
	if p.Assignment.None() {
		return s.byIndex(p)
	}
	return p.Assignment
}

// byIndex returns what gpushare wrote of a pod, or nothing if that is not on
// this node.
func (s State) byIndex(p Pod) placement.Assignment {
	if len(p.Indexes) != p.Request.GPUs() {
		return placement.Assignment{}
	}
	var a placement.Assignment
	for _, d := range s.Inventory.Devices {
		if slices.Contains(p.Indexes, d.Index) {
			a.Shares = append(a.Shares, placement.Share{Device: d.UUID})
		}
	}
	if len(a.Shares) != len(p.Indexes) {
		return placement.Assignment{}
	}
	return a.WithShares(p.Request)
}

// planned returns the pods with the GPUs where they are or are to be. It is
// what is written of them, but for pods that the kubelet took for one another:
// one that has slots is where those are, and one that waits has what such a pod
// has left to it.
func (s State) planned() []Pod {
	pods := slices.Clone(s.Pods)
	waits := make([]bool, len(pods))
	for i := range pods {
		pods[i].Assignment = s.written(pods[i])
		pods[i].Assignment.Leaving = nil
	}
	recorded := slices.Clone(pods)
	own := s.heldByPod()
	for i, p := range recorded {
		alone := s
		alone.Held = own[p.name()]
		actual, ok := Actual(alone, p)
		if waits[i] = !ok; ok {
			pods[i].Assignment = actual
		}
	}
	done := make([]bool, len(pods))
	for i := range pods {
		if done[i] {
			continue
		}
		// The pods that can stand in for this one share what is written of them all.
		var alike []int
		var written []placement.Assignment
		for k := i; k < len(pods); k++ {
			if pods[k].Request.Interchangeable(pods[i].Request) {
				alike, done[k] = append(alike, k), true
				if a := recorded[k].Assignment; !a.None() {
					written = append(written, a)
				}
			}
		}
		claim := func(k int) bool {
			at := slices.IndexFunc(written, pods[k].Assignment.SameDevices)
			if at >= 0 {
				written = slices.Delete(written, at, at+1)
			}
			return at >= 0
		}
		for _, k := range alike {
			if !waits[k] {
				claim(k)
			}
		}
		var displaced []int
		for _, k := range alike {
			if waits[k] && !pods[k].Assignment.None() && !claim(k) {
				displaced = append(displaced, k)
			}
		}
		for n, k := range displaced[:min(len(displaced), len(written))] {
			pods[k].Assignment = placement.Assignment{Shares: written[n].Shares}
		}
	}
	return pods
}

// notHeld returns the slots that no container holds. The kubelet can offer
// others: see Decisions.
func (s State) notHeld(available []gpu.SlotID) []gpu.SlotID {
	held := make(map[gpu.SlotID]bool)
	for _, h := range s.Held {
		for _, id := range h.Slots {
			held[id] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(available), func(id gpu.SlotID) bool { return held[id] })
}

// bySlot sorts available slots by device. Those that no device has are not to
// be had.
func (s State) bySlot(available []gpu.SlotID) map[gpu.UUID][]gpu.SlotID {
	sorted := slices.Clone(available)
	s.Slots.Sort(sorted)
	out := make(map[gpu.UUID][]gpu.SlotID)
	for _, id := range slices.Compact(sorted) {
		if d, err := s.Slots.Device(id); err == nil {
			out[d.UUID] = append(out[d.UUID], id)
		}
	}
	return out
}

// usable is bySlot without the slots whose memory pods of gpushare use. The
// kubelet counts those pods by IDs that are none of ours, and so takes as many of
// ours for free as there are. What is in must stays.
func (s State) usable(r gpu.Resource, available, must []gpu.SlotID) map[gpu.UUID][]gpu.SlotID {
	free := s.bySlot(available)
	if r == gpu.Cores {
		return free // gpushare has none
	}
	var holdings []placement.Holding
	for _, h := range s.Held {
		if h.byGPUShare() && !slices.ContainsFunc(s.Pods, h.of) {
			holdings = append(holdings, s.orphan(h))
		}
	}
	own := s.heldByPod()
	for _, p := range s.Pods {
		if slices.ContainsFunc(own[p.name()], Held.byGPUShare) {
			holdings = append(holdings, p.Holding)
		}
	}
	node := placement.NewNode("", s.Inventory, holdings)
	for _, d := range node.Devices {
		used := d.Requested
		for _, h := range node.Unattributed {
			used += h.Request.Units()
		}
		for i := len(free[d.UUID]) - 1; i >= 0 && used > 0; i-- {
			if !slices.Contains(must, free[d.UUID][i]) {
				free[d.UUID] = slices.Delete(free[d.UUID], i, i+1)
				used--
			}
		}
	}
	return free
}

// extend adds slots to those that a pod's init containers have left it, from
// the same GPUs.
func (s State) extend(r gpu.Resource, free map[gpu.UUID][]gpu.SlotID, must []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	var devices []gpu.UUID
	for _, id := range must {
		d, err := s.Slots.Device(id)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(devices, d.UUID) {
			devices = append(devices, d.UUID)
		}
	}
	ids, ok := take(free, must, devices, size)
	if !ok {
		return nil, fmt.Errorf("the pod's init containers are on %v, which has no %s free for the container that follows",
			devices, s.format(r, size))
	}
	return ids, nil
}

// take returns size slots in equal parts of the devices, those in must among
// them.
func take(free map[gpu.UUID][]gpu.SlotID, must []gpu.SlotID, devices []gpu.UUID, size int) ([]gpu.SlotID, bool) {
	if len(devices) == 0 || size%len(devices) != 0 {
		return nil, false
	}
	share := size / len(devices)
	var out []gpu.SlotID
	for _, device := range devices {
		var wanted, others []gpu.SlotID
		for _, id := range free[device] {
			if slices.Contains(must, id) {
				wanted = append(wanted, id)
			} else {
				others = append(others, id)
			}
		}
		if len(wanted) > share || len(wanted)+len(others) < share {
			return nil, false
		}
		out = append(out, wanted...)
		out = append(out, others[:share-len(wanted)]...)
	}
	for _, id := range must {
		if !slices.Contains(out, id) {
			return nil, false
		}
	}
	return out, true
}

// place finds GPUs for a pod that has none, or whose own were taken by another.
func (s State) place(r gpu.Resource, free map[gpu.UUID][]gpu.SlotID, p Pod, size int) ([]gpu.SlotID, bool) {
	node := s.without(p)
	units, cores := p.Request.Share()
	share := Amount(r, placement.Container{Units: units, Cores: cores})
	for i, d := range node.Devices {
		if len(free[d.UUID]) < share && !unseen(p) {
			node.Devices[i].Healthy = false // the kubelet has not freed enough of it yet
		}
	}
	chosen, verdict := placement.Choose(s.Policy, p.Request, node)
	if !verdict.Fits() {
		return nil, false
	}
	return take(free, nil, chosen.Devices(), size)
}

// without returns the node as it would be without one pod. What the kubelet
// gave to a pod counts, and what is planned for those that got nothing yet; so
// does what it still holds of pods that the API server no longer knows.
func (s State) without(p Pod) placement.Node {
	var holdings []placement.Holding
	for _, other := range s.planned() {
		if other.Pod.UID == p.Pod.UID || other.Assignment.None() && !s.begun(other) {
			continue // a pod that is as unplaced as this one comes after it
		}
		holdings = append(holdings, other.Holding)
	}
	for _, h := range s.Held {
		if !slices.ContainsFunc(s.Pods, h.of) {
			holdings = append(holdings, s.orphan(h))
		}
	}
	node := placement.NewNode("", s.Inventory, holdings)
	for i, d := range node.Devices {
		if slices.Contains(s.Cordoned, d.UUID) {
			node.Devices[i].Healthy, node.Devices[i].Unhealthy = false, "cordoned"
		}
	}
	return node
}

// orphan is what the kubelet holds of a pod that is not known. Where gpushare's
// slots are is not known either, so they count everywhere.
func (s State) orphan(h Held) placement.Holding {
	out := placement.Holding{Pod: placement.PodRef{Namespace: h.Namespace, Name: h.Name}, Settled: true}
	if h.byGPUShare() {
		out.Request.Containers = []placement.Container{{Kind: placement.App, Units: gpu.Units(len(h.Slots))}}
	}
	held := s.bySlot(h.Slots)
	for _, d := range s.Inventory.Devices {
		if len(held[d.UUID]) == 0 {
			continue
		}
		share := placement.Share{Device: d.UUID}
		for _, id := range held[d.UUID] {
			if id.Resource() == gpu.Cores {
				share.Cores++
			} else {
				share.Units++
			}
		}
		out.Assignment.Shares = append(out.Assignment.Shares, share)
	}
	return out
}

// waitingFor returns the pods for which the kubelet may be asking, the
// likeliest first: one whose other containers have been served already, then
// the oldest. Pods that the kubelet does not list yet are left out when there
// is one that it does, and those that it has admitted when there is one that
// it has not: if all are, it has lost its records and admits them again.
func (s State) waitingFor(r gpu.Resource, size int) []Pod {
	var pods []Pod
	for _, p := range s.Pods {
		if rest := s.unserved(r, p); len(rest) > 0 && Amount(r, rest[0]) == size {
			pods = append(pods, p)
		}
	}
	pods = preferring(pods, func(p Pod) bool { return s.Known[p.Pod.String()] })
	pods = preferring(pods, func(p Pod) bool { return !p.Settled })
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(compareTrueFirst(s.begun(a), s.begun(b)), compareAge(a, b))
	})
	return pods
}

func compareAge(a, b Pod) int {
	return cmp.Or(
		a.Created.Compare(b.Created),
		strings.Compare(a.Pod.String(), b.Pod.String()),
		strings.Compare(a.Pod.UID, b.Pod.UID),
	)
}

// preferring keeps the pods that pass, or all if none does.
func preferring(pods []Pod, passes func(Pod) bool) []Pod {
	var kept []Pod
	for _, p := range pods {
		if passes(p) {
			kept = append(kept, p)
		}
	}
	if len(kept) == 0 {
		return pods
	}
	return kept
}

func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// unserved returns the containers of a pod that ask for a resource and that the
// kubelet has still to serve with it: none of those before the last that holds
// anything, nor that if it holds some. A plain init container is among them until
// the next has been served, for it never shows what it holds.
func (s State) unserved(r gpu.Resource, p Pod) []placement.Container {
	var rest []placement.Container
	for _, c := range p.Request.Containers {
		served := false
		for _, h := range s.Held {
			if h.of(p) && h.Container == c.Name {
				rest, served = nil, served || h.Has(r)
			}
		}
		if !served && Amount(r, c) > 0 {
			rest = append(rest, c)
		}
	}
	return rest
}

// podName is how the kubelet names a pod.
type podName struct{ namespace, name string }

func (p Pod) name() podName { return podName{p.Pod.Namespace, p.Pod.Name} }

// heldByPod sorts what containers hold by pod, where each of very many pods is
// looked at.
func (s State) heldByPod() map[podName][]Held {
	out := make(map[podName][]Held)
	for _, h := range s.Held {
		of := podName{h.Namespace, h.Name}
		out[of] = append(out[of], h)
	}
	return out
}

// fromGPUShare reports whether the kubelet has slots of gpushare for the pod.
func (s State) fromGPUShare(p Pod) bool {
	return slices.ContainsFunc(s.Held, func(h Held) bool { return h.of(p) && h.byGPUShare() })
}

// begun reports whether the kubelet has served a container of the pod already.
func (s State) begun(p Pod) bool {
	return slices.ContainsFunc(s.Held, func(h Held) bool { return h.of(p) })
}

// byGPUShare reports whether gpushare's device plugin gave the slots.
func (h Held) byGPUShare() bool {
	return slices.ContainsFunc(h.Slots, gpu.SlotID.GPUShare)
}

func (h Held) of(p Pod) bool { return h.Namespace == p.Pod.Namespace && h.Name == p.Pod.Name }

// Resolve reads the slots of a resource that the kubelet gives to a container.
// It fails for a slot that is unknown, of the other resource or twice there,
// for a GPU that is not healthy, and when several GPUs have unequal parts.
func Resolve(s State, r gpu.Resource, ids []gpu.SlotID) (Grant, error) {
	if len(ids) == 0 {
		return Grant{}, errors.New("no slots are named")
	}
	parts := make(map[gpu.UUID]int)
	seen := make(map[gpu.SlotID]bool, len(ids))
	g := Grant{Resource: r, Slots: ids}
	for _, id := range ids {
		d, err := s.Slots.Device(id)
		switch {
		case err != nil:
			return Grant{}, err
		case id.Resource() != r:
			return Grant{}, fmt.Errorf("slot %q is of the other resource", id)
		case seen[id]:
			return Grant{}, fmt.Errorf("slot %q is named twice", id)
		case !d.Healthy:
			return Grant{}, fmt.Errorf("GPU %d (%s) is not healthy: %s", d.Index, d.UUID, cmp.Or(d.Unhealthy, "no reason given"))
		}
		seen[id] = true
		if parts[d.UUID] == 0 {
			g.Devices = append(g.Devices, d)
		}
		parts[d.UUID]++
	}
	slices.SortFunc(g.Devices, func(a, b gpu.Device) int { return cmp.Compare(a.Index, b.Index) })
	g.Each = parts[g.Devices[0].UUID]
	for _, d := range g.Devices {
		if parts[d.UUID] != g.Each {
			return Grant{}, fmt.Errorf("the slots are of several GPUs in unequal parts (%s), and no pod may have that", list(g.Devices, parts))
		}
	}
	return g, nil
}

func list(devices []gpu.Device, parts map[gpu.UUID]int) string {
	out := make([]string, 0, len(devices))
	for _, d := range devices {
		out = append(out, fmt.Sprintf("GPU%d %d", d.Index, parts[d.UUID]))
	}
	return strings.Join(out, ", ")
}

// Admit checks a grant, before the kubelet has recorded it, against the pods
// that wait for it: some pod must want that amount over as many GPUs, and on
// those where it is already, and no other may have been given the slots, or else
// the container must not start. ErrNoPod means that no pod asks for this amount.
//
// It returns for which container the kubelet is likeliest to have asked.
func Admit(s State, g Grant) (Given, error) {
	for _, h := range s.Held {
		if i := slices.IndexFunc(g.Slots, func(id gpu.SlotID) bool { return slices.Contains(h.Slots, id) }); i >= 0 {
			return Given{}, fmt.Errorf("slot %s is held by container %s of pod %s/%s", g.Slots[i], h.Container, h.Namespace, h.Name)
		}
	}
	asking := s.asking(g)
	if len(asking) == 0 {
		return Given{}, fmt.Errorf("%w: %s", ErrNoPod, s.format(g.Resource, g.size()))
	}
	var first error
	for _, p := range asking {
		err := s.admit(p, g)
		if err == nil {
			return s.given(p, g), nil
		}
		if first == nil {
			first = err
		}
	}
	return Given{}, first
}

// given says to which container of a pod a grant goes: the first that may lack it
// and was not given anything before.
func (s State) given(p Pod, g Grant) Given {
	out := Given{Pod: p.Pod, Slots: g.Slots}
	for _, c := range s.unserved(g.Resource, p) {
		if Amount(g.Resource, c) != g.size() {
			continue
		}
		out.Container = c
		before := func(o Given) bool {
			return o.Pod == p.Pod && o.Container.Name == c.Name && o.Slots[0].Resource() == g.Resource
		}
		if !slices.ContainsFunc(s.Given, before) {
			break
		}
	}
	return out
}

func (s State) admit(p Pod, g Grant) error {
	if p.Request.GPUs() != len(g.Devices) {
		return fmt.Errorf("pod %s is to have %d GPUs, and the kubelet took slots of %d", p.Pod, p.Request.GPUs(), len(g.Devices))
	}
	if s.written(p).None() && !s.PlaceUnassigned {
		return s.refusal(g.Resource, []Pod{p}, g.size())
	}
	if !s.Inventory.Enforcement.AtLeast(p.Request.Enforcement) {
		return fmt.Errorf("pod %s %s", p.Pod, placement.Verdict{
			Reason: placement.WeakerEnforcement, Request: p.Request, Node: placement.NewNode("", s.Inventory, nil),
		})
	}
	given := g.assignment()
	if actual, ok := Actual(s, p); ok && !actual.SameDevices(given) {
		return fmt.Errorf("pod %s is on GPU %v, and the kubelet took slots of %v", p.Pod, actual.Devices(), given.Devices())
	}
	return nil
}

// assignment is the devices of the grant, without amounts.
func (g Grant) assignment() placement.Assignment {
	var a placement.Assignment
	for _, d := range g.Devices {
		a.Shares = append(a.Shares, placement.Share{Device: d.UUID})
	}
	return a
}

// asking returns the pods that the container of a grant could be of, the
// likeliest first: those that the kubelet lists, if there is one, and unlike
// waitingFor also one whose init containers have been served without a trace.
func (s State) asking(g Grant) []Pod {
	var out []Pod
	for _, p := range s.Pods {
		if slices.ContainsFunc(s.unserved(g.Resource, p), func(c placement.Container) bool { return Amount(g.Resource, c) == g.size() }) {
			out = append(out, p)
		}
	}
	given := g.assignment()
	planned := func(p Pod) bool { return s.written(p).SameDevices(given) }
	slices.SortFunc(out, func(a, b Pod) int {
		return cmp.Or(
			compareTrueFirst(s.begun(a), s.begun(b)),
			compareTrueFirst(planned(a), planned(b)),
			compareAge(a, b),
		)
	})
	return preferring(out, func(p Pod) bool { return s.Known[p.Pod.String()] })
}

// Correction is what should be written of a pod.
type Correction struct {
	Pod    Pod
	Actual placement.Assignment
}

// Moves reports whether the correction names other GPUs than what is written.
func (c Correction) Moves() bool { return !c.Actual.SameDevices(c.Pod.Assignment) }

// Whole reports whether the pod has as many GPUs as it asks for: otherwise
// there is nothing true that could be written.
func (c Correction) Whole() bool { return len(c.Actual.Shares) == c.Pod.Request.GPUs() }

// left returns the GPUs that are written of the pod and that it does not have.
func (c Correction) left() []gpu.UUID {
	return slices.DeleteFunc(append(c.Pod.Assignment.Devices(), c.Pod.Assignment.Leaving...), func(d gpu.UUID) bool {
		return slices.Contains(c.Actual.Devices(), d)
	})
}

// Reconcile returns the pods of which something else is written than what the
// kubelet gave them, and those that wait and are to have what such a pod has
// left: were they not moved with it, their GPU would be promised twice, and
// the one that was left not at all.
//
// Where several move, they leave their old GPUs only once all of them have been
// written: that is for a later call to return.
//
// Only what settled pods hold counts. The kubelet names pods without their UID:
// what it lists for one that it may not have admitted yet can be of another,
// deleted by force, that had the name before. For the same reason State.Pods
// must have been read before State.Held. Pods that can stand in for one of which
// that is not known yet stay where they are written to be: it may have the GPU
// that seems to be left.
func Reconcile(s State) []Correction {
	doubtful := s.doubtful()
	s.Held = s.heldBySettled()
	var out []Correction
	moving := 0
	for i, p := range s.planned() {
		c := Correction{Pod: s.Pods[i], Actual: p.Assignment}
		if p.Assignment.None() || p.Assignment.Same(c.Pod.Assignment) {
			continue
		}
		if !c.Pod.Assignment.None() && slices.ContainsFunc(doubtful, func(o Pod) bool { return o.Request.Interchangeable(p.Request) }) {
			continue
		}
		if c.Moves() && c.Whole() {
			moving++
		}
		out = append(out, c)
	}
	for i, c := range out {
		if moving > 1 || moving == 1 && !c.Moves() {
			out[i].Actual.Leaving = c.left()
		}
	}
	return slices.DeleteFunc(out, func(c Correction) bool { return c.Actual.Same(c.Pod.Assignment) })
}

// doubtful returns the pods that are not settled and for which the kubelet lists
// something all the same.
func (s State) doubtful() []Pod {
	return slices.DeleteFunc(slices.Clone(s.Pods), func(p Pod) bool { return p.Settled || !s.begun(p) })
}

func (s State) heldBySettled() []Held {
	var out []Held
	for _, h := range s.Held {
		if slices.ContainsFunc(s.Pods, func(p Pod) bool { return p.Settled && h.of(p) }) {
			out = append(out, h)
		}
	}
	return out
}

// Actual returns where the kubelet has put a pod, if it has given it anything.
// Slots of a GPU that is gone say nothing, and those of gpushare that the pod is
// where it is written to be.
func Actual(s State, p Pod) (placement.Assignment, bool) {
	found := make(map[gpu.UUID]bool)
	if s.fromGPUShare(p) {
		a := s.written(p)
		if !s.has(a) { // somebody has edited it
			a = s.byIndex(p)
		}
		return a, !a.None()
	}
	for _, h := range s.Held {
		if !h.of(p) {
			continue
		}
		for _, id := range h.Slots {
			if d, err := s.Slots.Device(id); err == nil {
				found[d.UUID] = true
			}
		}
	}
	if len(found) == 0 {
		return placement.Assignment{}, false
	}
	units, cores := p.Request.Share()
	var a placement.Assignment
	for _, d := range s.Inventory.Devices {
		if found[d.UUID] {
			a.Shares = append(a.Shares, placement.Share{Device: d.UUID, Units: units, Cores: cores})
		}
	}
	return a, true
}

// has reports whether the devices of an assignment are the node's.
func (s State) has(a placement.Assignment) bool {
	return !slices.ContainsFunc(a.Devices(), func(id gpu.UUID) bool { _, ok := s.Inventory.Device(id); return !ok })
}

// Find returns the container that holds exactly these slots of a resource.
func Find(held []Held, r gpu.Resource, ids []gpu.SlotID) (Held, bool) {
	want := slices.Sorted(slices.Values(ids))
	for _, h := range held {
		other := func(id gpu.SlotID) bool { return id.Resource() != r }
		if slices.Equal(slices.DeleteFunc(slices.Sorted(slices.Values(h.Slots)), other), want) {
			return h, true
		}
	}
	return Held{}, false
}
