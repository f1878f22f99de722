package sim

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/node/grants"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
)

// decoded is an annotation as the checks read it: on their own, so that a fault
// of the product's codec does not hide itself.
type decoded struct {
	ok   bool
	GPUs []struct {
		UUID    string `json:"uuid"`
		Index   int    `json:"index"`
		Units   int    `json:"units"`
		Cores   int    `json:"cores"`
		Foreign int    `json:"foreign"`
		Healthy bool   `json:"healthy"`
		Model   string `json:"model"`
	} `json:"gpus"`
	Leaving   []string `json:"leaving"`
	Allocated bool     `json:"held"`
	Given     []struct {
		UID  string   `json:"uid"`
		GPUs [][3]int `json:"gpus"` // index, units, cores
	} `json:"given"`
}

func (w *World) decode(value string) decoded {
	if value == "" {
		return decoded{}
	}
	d, ok := w.decoded[value]
	if !ok {
		d.ok = json.Unmarshal([]byte(value), &d) == nil
		w.decoded[value] = d
	}
	return d
}

// written is the assignment of a pod: what gpumem has written last, whatever an
// adversary has made of it.
func (w *World) written(pod *v1.Pod) string {
	if s := w.pods[string(pod.UID)]; w.forges(s) {
		return s.lawful
	}
	return w.believed(pod)
}

// believed is the assignment of a pod as the extender has it: nothing that is written of one
// that no scheduler has looked at, until the kubelet has admitted it.
func (w *World) believed(pod *v1.Pod) string {
	scheduled := func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled }
	if pod.Status.StartTime == nil && !terminal(pod) && !slices.ContainsFunc(pod.Status.Conditions, scheduled) {
		return ""
	}
	return pod.Annotations[w.names.Assignment()]
}

// assignment returns the GPUs that are written of a pod, or none.
func (w *World) assignment(pod *v1.Pod) []string {
	return w.gpusOf(w.asHeld(w.pods[string(pod.UID)], pod), w.written(pod))
}

// asHeld is a pod of which it is written that the kubelet has given it another number of
// GPUs than it asks for.
func (w *World) asHeld(s *spec, pod *v1.Pod) *spec {
	d := w.decode(w.written(pod))
	if !d.ok || !d.Allocated || len(d.GPUs) == 0 || len(d.GPUs) == s.gpus || pod.Status.StartTime == nil && !terminal(pod) {
		return s
	}
	then := *s
	then.gpus = len(d.GPUs)
	return &then
}

// leaving returns the GPUs that a pod is charged with until the pods that it has
// been taken for are written down as well.
func (w *World) leaving(pod *v1.Pod) []string {
	return w.decode(w.written(pod)).Leaving
}

func (w *World) gpusOf(s *spec, annotation string) []string {
	d := w.decode(annotation)
	if !d.ok || len(d.GPUs) != s.gpus && !w.forges(s) {
		return nil
	}
	out := make([]string, 0, len(d.GPUs))
	for _, g := range d.GPUs {
		out = append(out, g.UUID)
	}
	return out
}

func (s *spec) share() amount { return s.need.over(s.gpus) }

// books is the dumb model: what is held on each GPU of a node, from scratch.
type books struct {
	capacity  map[string]int
	foreign   map[string]int  // of it, what other programs use
	open      map[string]bool // healthy, and not cordoned
	models    map[string]string
	requested map[string]amount
	holders   map[string][]*spec
	nowhere   []*spec // bound to the node, on no GPU that is known
	lost      []*spec // of these, on one that is gone

	charged map[string]map[string]amount // by GPU and UID
	given   map[string]map[string]amount // by UID and GPU: what the node says that pods were given

	lawful bool // the adversary's rules count for nothing
}

func (w *World) newBooks(node *v1.Node) *books {
	inv := w.decode(node.Annotations[w.names.Inventory()])
	b := &books{
		capacity: make(map[string]int), foreign: make(map[string]int), open: make(map[string]bool), models: make(map[string]string),
		requested: make(map[string]amount), holders: make(map[string][]*spec),
		charged: make(map[string]map[string]amount), given: inv.given(),
	}
	for _, g := range inv.GPUs {
		b.capacity[g.UUID], b.foreign[g.UUID] = g.Units, g.Foreign
		b.open[g.UUID], b.models[g.UUID] = g.Healthy && !w.isCordoned(node, g.UUID), g.Model
	}
	return b
}

// isCordoned reports whether people want a GPU to take no new pods.
func (w *World) isCordoned(node *v1.Node, id string) bool {
	return slices.Contains(strings.Split(node.Annotations[w.names.Domain()+"/cordoned-gpus"], ","), id)
}

func (b *books) add(s *spec, gpus, leaving []string) {
	lost := slices.ContainsFunc(gpus, func(id string) bool { _, ok := b.capacity[id]; return !ok })
	if lost {
		b.lost = append(b.lost, s)
	}
	if len(gpus) == 0 || lost {
		b.nowhere = append(b.nowhere, s)
		return
	}
	given := b.given[s.uid]
	for _, id := range slices.Concat(gpus, leaving) {
		if _, ok := b.capacity[id]; ok {
			b.charge(s, id, s.share().or(given[id]))
		}
	}
	for id, a := range given {
		if !slices.Contains(gpus, id) && !slices.Contains(leaving, id) {
			b.charge(s, id, a)
		}
	}
}

func (b *books) charge(s *spec, id string, a amount) {
	b.requested[id] = b.requested[id].plus(a)
	b.holders[id] = append(b.holders[id], s)
	if b.charged[id] == nil {
		b.charged[id] = make(map[string]amount)
	}
	b.charged[id][s.uid] = a
}

// keep drops the pods of a GPU that do not pass, and those that are nowhere.
func (b *books) keep(id string, passes func(*spec) bool) {
	b.nowhere, b.lost = nil, nil
	b.holders[id] = slices.DeleteFunc(b.holders[id], func(s *spec) bool { return !passes(s) })
	b.requested[id] = amount{}
	for _, s := range b.holders[id] {
		b.requested[id] = b.requested[id].plus(s.share())
	}
}

// free returns what is left of a GPU when each pod that may be anywhere is on it.
func (b *books) free(id string) amount {
	left := amount{units: b.capacity[id] - b.foreign[id], cores: allCores}.minus(b.requested[id])
	for _, s := range b.nowhere {
		left = left.minus(s.need)
	}
	return left
}

// allows reports whether the rules of pods let one be on a GPU beside others.
func (b *books) allows(s *spec, id string) bool {
	rules := func(s *spec) bool { return !b.lawful || !s.hostile() }
	for _, other := range slices.Concat(b.holders[id], b.nowhere) {
		if other.uid != s.uid && (other.exclusive && rules(other) || rules(s) && (s.exclusive || s.apart != "" && s.apart == other.apart && s.namespace == other.namespace)) {
			return false
		}
	}
	if s.gpus > 1 && strings.HasPrefix(id, "MIG-") {
		return false // a program sees one of them, and nothing else
	}
	if !rules(s) {
		return true
	}
	if slices.ContainsFunc(slices.Concat(b.holders[id], b.lost), func(other *spec) bool { return other.uid != s.uid && other.closed && rules(other) }) {
		return false
	}
	model := strings.TrimPrefix(strings.ToLower(b.models[id]), "nvidia ")
	return passes(s.uuids, strings.ToLower(id)) && passes(strings.TrimPrefix(s.model, "nvidia "), model)
}

// passes reports whether something passes a glob that may begin with "!".
func passes(glob, name string) bool {
	pattern, not := strings.CutPrefix(strings.ToLower(glob), "!")
	matched, _ := path.Match(pattern, name)
	return glob == "" || matched != not
}

// known is what an extender has been told or has decided of one pod.
type known struct {
	node string
	gpus []string
	left []string
	spec *spec

	assumed bool // it goes by the binding that was sent
}

// view gathers what an extender knows: the pods of its watch, those of which a
// read has told more, and those that it has assumed and sent.
func (e *extenderProc) view() map[string]known {
	w := e.w
	out := make(map[string]known)
	for _, s := range w.order {
		node, assumed, ok := e.books.PodNode(s.uid)
		if !ok || !assumed {
			continue
		}
		sent := e.sent[s.uid]
		if sent == nil || sent.Target.Name != node {
			w.violate("I3", "%s has assumed %s on %s, for which it has sent nothing", e.name, s.name, node)
			continue
		}
		if at, gone := e.pods.goneAt[podUID(s.uid)]; gone && e.sentAt[s.uid] < at {
			w.violate("I3", "%s assumes %s, for which it has sent nothing since it was told that the pod is gone", e.name, s.name)
			continue
		}
		s = w.asSent(s, sent.Annotations[w.names.Assignment()])
		out[s.uid] = known{node: node, gpus: w.gpusOf(s, sent.Annotations[w.names.Assignment()]), spec: s, assumed: true}
	}
	for uid, pod := range e.read {
		_, assumed, counted := e.books.PodNode(uid)
		if assumed {
			delete(e.read, uid) // it was read in the place of another of its name
			continue
		}
		if _, over := e.pods.gone[pod.UID]; over || e.over[uid] && !counted {
			delete(e.read, uid)
			continue
		}
		out[uid] = w.knownBy(pod)
	}
	for _, pod := range e.pods.store {
		if pod.Spec.NodeName != "" && !e.forgotten(pod) {
			uid := string(pod.UID)
			delete(e.read, uid)
			out[uid] = w.knownBy(pod)
		}
	}
	for uid := range e.reserved {
		if _, ok := out[uid]; !ok {
			delete(e.reserved, uid)
		}
	}
	return out
}

// forgotten reports whether a pod was taken out of the cache that is gone, though the cache has
// not been told of that.
func (e *extenderProc) forgotten(pod *v1.Pod) bool {
	stored := e.stored.pods.store[pod.Name]
	_, _, known := e.books.PodNode(string(pod.UID))
	return !known && (stored == nil || stored.UID != pod.UID)
}

// knownBy is what an object tells of a bound pod.
func (w *World) knownBy(pod *v1.Pod) known {
	s := w.asHeld(w.asWritten(pod), pod)
	written := w.believed(pod)
	return known{node: pod.Spec.NodeName, gpus: w.gpusOf(s, written), left: w.decode(written).Leaving, spec: s}
}

// check looks at all that can have changed in a step.
func (w *World) check() {
	for _, r := range w.replicas {
		if e := r.ext; e.live && e.dirty && e.missing() == "" {
			e.dirty = false
			w.checkBooks(e)
		}
	}
	if w.api.version != w.checked {
		w.checked = w.api.version
		w.checkTruth()
		w.checkLiveness()
	}
}

// checkBooks is I3: the cache is what comes out of what the extender was told
// and has assumed.
func (w *World) checkBooks(e *extenderProc) {
	view := e.view()
	uids := slices.Sorted(maps.Keys(view))
	with := make(map[string]bool)
	for _, k := range view {
		with[k.node] = true
	}
	for name, node := range e.nodes.store {
		if len(w.machines) > few && !with[name] && name != w.machines[w.steps%len(w.machines)].name {
			continue // at rest all are looked at
		}
		want := w.newBooks(node)
		for _, uid := range uids {
			if view[uid].node == name {
				want.add(view[uid].spec, view[uid].gpus, view[uid].left)
			}
		}
		got, ok := e.books.Node(name)
		if !ok {
			w.violate("I3", "%s does not know node %s", e.name, name)
			return
		}
		if e.checkOthers(got, want); w.cfg.Adversary == free {
			continue // what is the adversary's own may count for more
		}
		if len(got.Devices) != len(want.capacity) || len(got.Unattributed) != len(want.nowhere) {
			w.violate("I3", "%s: node %s has %d GPUs and %d pods nowhere, want %d and %d", e.name, name, len(got.Devices), len(got.Unattributed), len(want.capacity), len(want.nowhere))
			return
		}
		for _, d := range got.Devices {
			id := string(d.UUID)
			taken := amount{units: int(d.Requested), cores: d.RequestedCores}
			if taken != want.requested[id] || int(d.Allocatable) != want.capacity[id] || len(d.Pods) != len(want.holders[id]) {
				w.violate("I3", "%s: %s of %s has %v of %d units taken by %d pods, want %v of %d by %d (%v)", e.name, id, name,
					taken, d.Allocatable, len(d.Pods), want.requested[id], want.capacity[id], len(want.holders[id]), specNames(want.holders[id]))
				return
			}
			if d.Status.TakesPods() != want.open[id] || int(d.Foreign) != want.foreign[id] {
				w.violate("I3", "%s: %s of %s takes pods: %t, and other programs use %d units of it; want %t and %d", e.name, id, name, d.Status.TakesPods(), d.Foreign, want.open[id], want.foreign[id])
				return
			}
		}
	}
}

func holdingNames(holdings []placement.Holding) (out []string) {
	for _, h := range holdings {
		out = append(out, h.Pod.Name)
	}
	return out
}

func specNames(specs []*spec) (out []string) {
	for _, s := range specs {
		out = append(out, s.name)
	}
	return out
}

// checkDecision is I2 and I4 at the moment of a decision: a binding gives what
// is free by all that its sender knows, and says so in full.
func (e *extenderProc) checkDecision(uid, nodeName, annotation string) {
	w := e.w
	s := w.asSent(w.pods[uid], annotation)
	node := e.nodes.store[nodeName]
	gpus := w.gpusOf(s, annotation)
	if on, assumed, ok := e.books.PodNode(uid); ok && !assumed && on == nodeName {
		return // what it read was old: it has been told since that the pod is bound, and is refused
	}
	if node == nil {
		w.violate("I4", "%s binds %s to %s, which it does not know", e.name, s.name, nodeName)
		return
	}
	if len(gpus) != s.gpus {
		w.violate("I4", "%s binds %s to %d GPUs, want %d: %s", e.name, s.name, len(gpus), s.gpus, annotation)
		return
	}
	for _, g := range w.decode(annotation).GPUs {
		if given := (amount{units: g.Units, cores: g.Cores}); given != s.share() {
			w.violate("I4", "%s gives %s %v of %s, want %v", e.name, s.name, given, g.UUID, s.share())
		}
	}
	b := w.newBooks(node)
	b.lawful = true
	for other, k := range e.view() {
		if w.forges(k.spec) && !k.assumed && k.node == nodeName && other != uid {
			for id, a := range b.given[other] {
				b.charge(k.spec, id, a)
			}
		} else if other != uid && k.node == nodeName {
			b.add(k.spec, k.gpus, k.left)
		}
	}
	for i, id := range gpus {
		switch {
		case slices.Contains(gpus[:i], id):
			w.violate("I4", "%s gives %s %s twice", e.name, s.name, id)
		case !b.free(id).covers(s.share()):
			w.violate("I2", "%s gives %s %v of %s, of which %v is free (held by %v)", e.name, s.name, s.share(), id, b.free(id), specNames(b.holders[id]))
		case !b.open[id]:
			w.violate("I4", "%s gives %s %s, which is unhealthy or cordoned", e.name, s.name, id)
		case !b.allows(s, id):
			w.violate("I4", "%s gives %s %s, which the rules forbid (held by %v)", e.name, s.name, id, specNames(b.holders[id]))
		}
		if d := w.machine(nodeName).device(id); d == nil || b.capacity[id] > int(d.Allocatable) {
			w.excuse(s, olderInventory, "")
		}
	}
	e.checkCaughtUp(s, nodeName)
	e.checkNews(s, nodeName, gpus, b)
	if !e.repeated[uid] {
		e.checkConfusable(s, nodeName, gpus)
		e.checkNominated(s, node, gpus, b)
	}
}

// checkNominated looks whether a pod takes what the one of higher priority is to
// have that is nominated to the node: others are leaving or have left for it.
// Where several are, which of them lands where is for the extender to choose.
func (e *extenderProc) checkNominated(s *spec, node *v1.Node, gpus []string, b *books) {
	if s.priority {
		return
	}
	var nominated []*spec
	for _, pod := range e.pods.store {
		if _, _, counted := e.books.PodNode(string(pod.UID)); !counted && pod.Spec.NodeName == "" && pod.Status.NominatedNodeName == node.Name {
			nominated = append(nominated, e.w.pods[string(pod.UID)])
		}
	}
	if slices.ContainsFunc(slices.Concat(nominated, e.on(node.Name)), e.w.forges) {
		return // it may count for more than it has
	}
	if len(nominated) != 1 || nominated[0].uid == s.uid || nominated[0].edited || nominated[0].broken || !nominated[0].priority {
		return
	}
	before := b.fitting(nominated[0])
	b.add(s, gpus, nil)
	if before >= nominated[0].gpus && b.fitting(nominated[0]) < nominated[0].gpus {
		e.w.violate("I2", "%s gives %s %v of %s, and %s, which is nominated to it, does not fit any more", e.name, s.name, gpus, node.Name, nominated[0].name)
	}
}

// fitting returns on how many GPUs a pod fits.
func (b *books) fitting(s *spec) (n int) {
	for id := range b.capacity {
		if b.open[id] && b.free(id).covers(s.share()) && b.allows(s, id) {
			n++
		}
	}
	return n
}

// checkConfusable is the rule of confusable pods: the kubelet's first question
// for one must not be that for another that waits on the node, is to have other
// GPUs and cannot stand in for it.
func (e *extenderProc) checkConfusable(s *spec, node string, gpus []string) {
	w := e.w
	for uid, k := range e.view() {
		o := k.spec
		if w.forges(o) || w.forges(s) {
			continue // the adversary can take another's place
		}
		if uid == s.uid || k.node != node || o.broken || o.edited || s.edited || e.knowsSettled(o) || sameSet(k.gpus, gpus) {
			continue
		}
		if s.confusable(o) && !o.alike(s) {
			w.violate("I4", "%s binds %s (%s) to %s, where %s (%s) waits for the kubelet, which could take one for the other", e.name, s.name, s, node, o.name, o)
		}
	}
}

// knowsSettled reports whether the extender has been told that the kubelet has
// admitted a pod.
func (e *extenderProc) knowsSettled(s *spec) bool {
	pod := e.pods.store[s.name]
	if pod == nil || string(pod.UID) != s.uid || pod.Spec.NodeName == "" {
		pod = e.read[s.uid]
	}
	return pod != nil && pod.Status.StartTime != nil
}

// truth returns what is taken of a node by what the API server has of it and its pods.
func (w *World) truth(name string, on []*v1.Pod) *books {
	node := w.api.nodes[name]
	if node == nil {
		node = &v1.Node{}
	}
	b := w.newBooks(node)
	for _, pod := range on {
		if pod.Spec.NodeName == name {
			b.add(w.asHeld(w.pods[string(pod.UID)], pod), w.assignment(pod), w.leaving(pod))
		}
	}
	return b
}

// checkTruth is I2 for annotations: the pods that no rule excuses fit the GPU that the API server has them on. It is I4 for
// pods that were placed with news of all others, beside such pods and beside those whose excuse had ended before.
func (w *World) checkTruth() {
	on := w.podsByNode()
	for _, m := range w.machines {
		if w.api.nodes[m.name] == nil || len(on[m.name]) == 0 {
			continue
		}
		b := w.truth(m.name, on[m.name])
		b.lawful = true
		for _, pod := range on[m.name] {
			s := w.pods[string(pod.UID)]
			w.excuseWhile(m.exchanging(s), s, exchange)
			w.excuseWhile(m.over(s), s, ending)
			w.noteArrivals(s)
		}
		for _, d := range m.hardware {
			id := string(d.UUID)
			b.keep(id, func(s *spec) bool {
				return !w.isExcused(s) && !w.forges(s) && slices.Contains(w.assignment(w.api.pods[s.name]), id)
			})
			if sum := b.requested[id]; sum.units > int(d.Allocatable) && !m.resized[d.UUID] || sum.cores > allCores {
				w.violate("I2", "%s of %s has %d units, and pods that were placed with full knowledge hold %v: %v", id, m.name, d.Allocatable, sum, specNames(b.holders[id]))
			}
			holders := b.holders[id]
			for _, s := range holders {
				if s.misplacedUntil() > 0 {
					continue
				}
				since := w.neighbourSince(s, id)
				b.holders[id] = slices.DeleteFunc(slices.Clone(holders), func(o *spec) bool { return o.misplacedUntil() > 0 && since <= o.misplacedUntil() })
				if !b.allows(s, id) {
					w.violate("I4", "%s is on %s of %s, which its rules forbid, or those of others: %v", s.name, id, m.name, specNames(b.holders[id]))
				}
			}
		}
	}
}

// checkGrant is I1 and the kubelet's half of I5, for one container that has just
// been given its IDs.
func (k *kubelet) checkGrant(m *managed, c container, r gpu.Resource) {
	w, s := k.w, m.spec
	mine := k.m.checkpoint[s.uid]
	g := mine[part{c.name, r}]
	perGPU := make(map[string]int)
	for _, id := range g.ids {
		perGPU[k.m.gpuOf(id)]++
	}
	taken := sets.New(g.ids...)
	for uid, parts := range k.m.checkpoint {
		for p, other := range parts {
			if uid == s.uid || p.of != r || other.hidden {
				continue
			}
			for _, id := range other.ids {
				if taken.Has(id) {
					w.violate("I1", "%s of %s/%s is held by %s/%s too", id, s.name, c.name, w.pods[uid].name, p.container)
				}
			}
		}
	}
	on := make(map[string]string) // GPU by ID, each once: containers have those of init containers too
	for _, parts := range k.m.checkpoint {
		for p, other := range parts {
			for _, id := range other.ids {
				if p.of == r {
					on[id] = k.m.gpuOf(id)
				}
			}
		}
	}
	held := make(map[string]int)
	for _, id := range on {
		held[id]++
	}
	for id := range perGPU {
		if n := k.m.countOf(id, r); held[id] > n && !k.m.isResized(id) {
			w.violate("I1", "%d IDs of %s (%s) are held, which has %d", held[id], id, r, n)
		}
	}
	if uuids := slices.Sorted(strings.SplitSeq(g.env["NVIDIA_VISIBLE_DEVICES"], ",")); r == gpu.Memory && !slices.Equal(uuids, slices.Sorted(maps.Keys(perGPU))) {
		w.violate("I5", "%s/%s sees %v and holds IDs of %v", s.name, c.name, uuids, perGPU)
	}
	gpus := k.m.gpusOf(g.ids)
	k.checkPlace(s, gpus)
	k.checkChoice(s, gpus)
	if w.forges(s) {
		return // it may ask for whatever
	}
	if k.holdsNamesake(s) || !slices.ContainsFunc(k.advised, func(o allocation.Pod) bool { return o.Pod.UID == s.uid }) {
		m.blind = true // the plugin could not know whom it served
		w.excuse(s, unheardPod, "")
		return
	}
	for _, n := range perGPU {
		if len(perGPU) != s.gpus || n != c.amount.of(r)/s.gpus {
			if !m.blind {
				w.violate("I4", "%s/%s asks for %v of %d GPUs and gets %v", s.name, c.name, c.amount, s.gpus, perGPU)
			}
			return
		}
	}
	k.checkTold(s, c, r)
	for p, o := range mine {
		if others := k.m.gpusOf(o.ids); !m.blind && !slices.Equal(others, gpus) {
			w.violate("I4", "%s is on different GPUs: with %s of %s on %v, with %s of %s on %v", s.name, p.of, p.container, others, r, c.name, gpus)
		}
	}
}

// checkTold looks at what a container is told of its share.
func (k *kubelet) checkTold(s *spec, c container, r gpu.Resource) {
	env, share := k.m.checkpoint[s.uid][part{c.name, r}].env, c.amount.over(s.gpus)
	unit := int64(unitMiB)
	if k.m.shares { // of the smallest of its GPUs
		for i, id := range k.m.gpusOf(k.m.checkpoint[s.uid][part{c.name, r}].ids) {
			d := k.m.device(id)
			if d == nil {
				return // it was taken out since
			}
			if i == 0 || d.ShareMiB < unit {
				unit = d.ShareMiB
			}
		}
	}
	name, want := "GPUMEM_LIMIT_MIB", fmt.Sprint(int64(share.units)*unit)
	if r == gpu.Cores {
		name, want = "GPUMEM_CORE_PERCENT", fmt.Sprint(share.cores)
	}
	if env[name] != want {
		k.w.violate("I5", "%s/%s is told of %s=%s, want %s", s.name, c.name, name, env[name], want)
	}
}

// checkChoice looks at the GPUs of a pod that no scheduler placed, if the plugin
// knew the pod and has given it nothing before: none of them was cordoned when the
// plugin chose, as far as it knew, or used up by other programs.
func (k *kubelet) checkChoice(s *spec, gpus []string) {
	w, p := k.w, k.plugin()
	known := slices.IndexFunc(k.advised, func(o allocation.Pod) bool { return o.Pod.UID == s.uid })
	if p == nil || known < 0 || len(k.m.checkpoint[s.uid]) > 1 || k.holdsNamesake(s) {
		return
	}
	if o := k.advised[known]; !o.Assignment.None() && !(w.forges(s) && s.bound != "" && k.first) {
		return
	}
	for _, id := range gpus {
		if since, ok := p.cordonedSince[id]; ok && since <= k.asked {
			w.violate("I4", "%s has placed %s on %s, which is cordoned", p.name, s.name, id)
		}
		for _, d := range p.inventory.Devices {
			if string(d.UUID) == id && p.probed <= k.asked && int(d.Allocatable-d.Foreign) < s.share().units {
				w.violate("I2", "%s has placed %s on %s, of whose %d units other programs use %d", p.name, s.name, id, d.Allocatable, d.Foreign)
			}
		}
	}
}

// gpusOf returns the GPUs that IDs of a pod are of, sorted.
func (m *machine) gpusOf(ids []string) []string {
	set := sets.New[string]()
	for _, id := range ids {
		set.Insert(m.gpuOf(id))
	}
	return sets.List(set)
}

func (m *machine) isResized(uuid string) bool { return m.resized[gpu.UUID(uuid)] }

// checkRest is what must hold when nothing has gone wrong for a while.
func (w *World) checkRest() {
	for _, r := range w.replicas {
		w.checkExtenderAtRest(r.ext)
	}
	for _, m := range w.machines {
		w.checkMachineAtRest(m)
	}
}

func (w *World) checkExtenderAtRest(e *extenderProc) {
	if missing := e.missing(); missing != "" {
		w.violate("rest", "%s has never become ready", e.name)
		return
	}
	if left := e.assumed(0); len(left) > 0 {
		w.violate("I6", "%s still assumes %v", e.name, specNames(left))
	}
	on := w.podsByNode()
	for _, n := range e.books.Nodes() {
		want := w.truth(n.Name, on[n.Name])
		if w.cfg.Adversary == free {
			e.checkGivenAtRest(n)
			continue
		}
		if len(n.Unattributed) != len(want.nowhere) {
			w.violate("I3", "at rest %s counts as nowhere on %s %v, want %v", e.name, n.Name, holdingNames(n.Unattributed), specNames(want.nowhere))
		}
		for _, d := range n.Devices {
			if taken, id := (amount{units: int(d.Requested), cores: d.RequestedCores}), string(d.UUID); taken != want.requested[id] {
				w.violate("I3", "at rest %s counts %v of %s as held, want %v (%v)", e.name, taken, id, want.requested[id], specNames(want.holders[id]))
			}
		}
	}
}

func (w *World) checkMachineAtRest(m *machine) {
	node := w.api.nodes[m.name]
	if node == nil {
		return
	}
	if b := w.newBooks(node); len(b.capacity) != len(m.hardware) {
		w.violate("rest", "the inventory of %s names %d GPUs, and it has %d", m.name, len(b.capacity), len(m.hardware))
		return
	}
	for _, pod := range sorted(w.api.pods) {
		name, s := pod.Name, w.pods[string(pod.UID)]
		k := m.kubelet.managed[s.uid]
		if pod.Spec.NodeName != m.name || terminal(pod) || k == nil {
			continue
		}
		if !k.active() {
			if !k.writing { // its status is on its way where it was evicted a moment ago
				w.violate("rest", "%s has ended on %s, and the API server says %s", name, m.name, pod.Status.Phase)
			}
			continue
		}
		var held []string
		for _, c := range s.containers {
			for _, r := range w.resources {
				g := m.checkpoint[s.uid][part{c.name, r}]
				if g == nil && c.amount.of(r) > 0 {
					w.violate("rest", "%s/%s has been admitted and has no %s", name, c.name, r)
					return
				}
				if g != nil {
					m.checkRecord(s, c, g)
				}
				if g != nil && (c.kind != initial || s.initial()) {
					held = append(held, g.ids...)
				}
			}
		}
		gpus := m.gpusOf(held)
		if slices.ContainsFunc(gpus, func(id string) bool { return m.isResized(id) || m.capacity(id) == 0 }) {
			continue
		}
		if k.blind && len(gpus) != s.gpus {
			continue // nothing true can be written of it: it never starts, and its events say so
		}
		written := slices.Sorted(slices.Values(w.assignment(pod)))
		if w.forges(s) {
			written = slices.Sorted(slices.Values(w.gpusOf(s, pod.Annotations[w.names.Assignment()])))
		}
		if s.initial() && (written == nil || w.forges(s)) {
			continue // a plugin that has started since cannot know: it counts everywhere, or as its owner says
		}
		if !slices.Equal(written, gpus) {
			w.violate("I5", "%s on %s holds IDs of %v, and %v is written of it", name, m.name, gpus, written)
		}
		box := m.sandboxes[s.uid]
		for _, c := range s.containers {
			if pod.DeletionTimestamp == nil && !w.forges(s) && (box == nil || !box.running[c.name] && !box.done[c.name]) {
				w.violate("rest", "%s/%s on %s has not started", name, c.name, m.name)
			}
		}
	}
	b := w.truth(m.name, w.podsByNode()[m.name])
	for _, d := range m.hardware {
		if w.cfg.Adversary == free {
			break // see checkGivenAtRest
		}
		if sum, id := b.requested[string(d.UUID)], string(d.UUID); (sum.units > int(d.Allocatable) || sum.cores > allCores) && !m.resized[d.UUID] && !m.crooked() {
			w.violate("I2", "at rest pods hold %v of %s, which has %d units: %v", sum, id, d.Allocatable, specNames(b.holders[id]))
		}
	}
}

// checkRecord compares the plugin's record of a container with the kubelet's answer that it stores.
func (m *machine) checkRecord(s *spec, c container, g *grant) {
	slots := make([]gpu.SlotID, 0, len(g.ids))
	for _, id := range g.ids {
		slots = append(slots, gpu.SlotID(id))
	}
	memory, cores := m.plugin.real.State.Grants(allocation.Allocated{Namespace: s.namespace, Name: s.name, Container: c.name, Slots: slots})
	for _, recorded := range []*grants.Grant{memory, cores} {
		if recorded != nil && maps.Equal(recorded.Response.GetEnvs(), g.env) {
			return
		}
	}
	m.w.violate("record", "%s/%s on %s has %v, and the record has %v and %v", s.name, c.name, m.name, g.env, memory, cores)
}

// probe makes some more pods when all is at rest: each has to run, or to wait
// for want of room.
func (w *World) probe() {
	var probes []*spec
	for _, need := range []amount{{units: 2}, {units: 2}, {units: 4, cores: w.someCores(30)}} {
		s := &spec{gpus: 1, namespace: namespaces[0], need: need, containers: []container{{name: "c0", kind: app, amount: need}}}
		w.create(s)
		probes = append(probes, s)
	}
	for end := w.now() + probeTime; w.next(end); {
	}
	for _, s := range probes {
		pod := w.api.pods[s.name]
		if pod == nil || pod.Status.Phase != v1.PodFailed {
			continue // evicted for a pod of high priority, or as it should be
		}
		if on := pod.Spec.NodeName; !w.machine(on).crooked() {
			w.violate("rest", "%s was made at rest, and has been refused on %s", s.name, on)
		}
	}
}

// crooked reports whether the kubelet has other IDs left than the books: a GPU
// has shrunk, or a pod never starts because it has IDs of the wrong number of
// GPUs.
func (m *machine) crooked() bool {
	for uid := range m.checkpoint {
		s := m.w.pods[uid]
		if k := m.kubelet.managed[uid]; k == nil || k.active() && (k.blind || slices.ContainsFunc(m.holds(s), m.isResized)) {
			return true
		}
	}
	return false
}
