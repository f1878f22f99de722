package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// adversary is a tenant who writes on its own pods whatever it likes, at any moment.
// The pods of others have all that they are promised: I1 to I6 hold for them, and I11,
// what a tenant writes on its own objects changes the accounting of no other pod.
type adversary int

const (
	without       adversary = iota
	underPolicies           // the API server refuses what the chart's policies refuse
	free                    // it refuses nothing
)

func (a adversary) String() string {
	return [...]string{"no adversary", "an adversary under policies", "an adversary without policies"}[a]
}

// adversaryOf has one seed in three with an adversary. What else there is in a run
// does not depend on it.
func adversaryOf(seed uint64) adversary {
	return pick(rand.New(rand.NewPCG(seed, 11)), []adversary{without, without, without, without, underPolicies, free})
}

// enemy is the adversary's namespace.
const enemy = "enemy"

// hostile reports whether a pod is the adversary's.
func (s *spec) hostile() bool { return s.namespace == enemy }

// scheme has the adversary do something, and then something else, until the faults end.
func (w *World) scheme() {
	w.after(w.between(20*tick, 1500*tick), nil, "-", func() {
		if w.quiet {
			return
		}
		mine := slices.DeleteFunc(sorted(w.api.pods), func(pod *v1.Pod) bool { return pod.Namespace != enemy })
		switch n := w.rng.IntN(10); {
		case len(mine) == 0, n < 3 && len(mine) < 5:
			w.create(w.newForgery(""))
		case n == 9:
			pod := pick(w.rng, mine)
			w.logf("  the adversary deletes %s", pod.Name)
			_ = w.api.deletePod(pod.Name, pod.UID, w.rng.IntN(2) == 0) // it is there
			if w.api.pods[pod.Name] == nil && w.rng.IntN(2) == 0 {
				w.create(w.newForgery(pod.Name))
			}
		default:
			w.tamper(pick(w.rng, mine))
		}
		w.scheme()
	})
}

// newForgery draws a pod of the adversary.
func (w *World) newForgery(name string) *spec {
	s := w.newSpec()
	s.name, s.namespace, s.keeper = name, enemy, false
	if w.rng.IntN(4) == 0 { // it asks for init containers alone
		for i := range s.containers {
			if s.containers[i].kind != initial {
				s.containers[i].amount = amount{}
			}
		}
		if s.need = peak(s.containers); s.need.units == 0 {
			s.containers = append([]container{{name: "first", kind: initial, amount: amount{units: pick(w.rng, sizes)}}}, s.containers...)
			s.need = peak(s.containers)
		}
	}
	m := pick(w.rng, w.machines)
	switch w.rng.IntN(4) {
	case 0, 1:
		if w.api.nodes[m.name] != nil {
			s.bound = m.name
		}
	case 2:
		s.gated = true
	}
	s.forged = make(map[string]string)
	for range w.rng.IntN(4) {
		key, value := w.forgery(s)
		s.forged[key] = value
	}
	if w.rng.IntN(4) == 0 {
		maps.Copy(s.forged, w.understatement(s))
	}
	return s
}

// understatement is what makes a pod seem to have so many GPUs of its node that it has
// less of each.
func (w *World) understatement(s *spec) map[string]string {
	m := pick(w.rng, w.machines)
	if at := w.api.pods[s.name]; at != nil && at.Spec.NodeName != "" {
		m = w.machine(at.Spec.NodeName)
	} else if s.bound != "" {
		m = w.machine(s.bound)
	}
	gpus := make([]string, 0, len(m.hardware))
	for _, d := range m.hardware {
		gpus = append(gpus, fmt.Sprintf(`{"uuid":%q,"index":%d,"units":1}`, d.UUID, d.Index))
	}
	w.rng.Shuffle(len(gpus), func(i, j int) { gpus[i], gpus[j] = gpus[j], gpus[i] })
	n := 1 + w.rng.IntN(len(gpus))
	more := pick(w.rng, []string{"", "", `"held":true,`, fmt.Sprintf(`"unitMiB":%d,`, pick(w.rng, []int{1, unitMiB}))})
	return map[string]string{
		w.names.Count():      strconv.Itoa(n),
		w.names.Assignment(): fmt.Sprintf(`{"v":1,%s"gpus":[%s]}`, more, strings.Join(gpus[:n], ",")),
	}
}

// forgery draws an annotation of a pod.
func (w *World) forgery(s *spec) (key, value string) {
	names := w.names
	one := func(values ...string) string { return pick(w.rng, values) }
	switch w.rng.IntN(10) {
	case 0, 1:
		return names.Count(), one("1", "2", "2", "8", "64", "0", "many", "")
	case 2:
		return names.Policy(), one("binpack", "exclusive", "exclusive", "whatever", "")
	case 3:
		return names.Group(), one("x", "y", "")
	case 4:
		return names.ExclusiveGroup(), one("x", "y", "")
	case 5:
		return names.UUID(), one(string(pick(w.rng, pick(w.rng, w.machines).everHad)), "!GPU-*", "[")
	case 6:
		return names.Index(), one("0", "1", "0,1", "7", "nonsense")
	case 7:
		return names.RoomMadeAt(), one("now", "")
	}
	return names.Assignment(), w.forgedAssignment(s)
}

// forgedAssignment draws an assignment that gpumem has not made: of GPUs of its node or of
// others, of as many as the pod asks for or not, of less than that, in another unit, with
// GPUs that it is leaving.
func (w *World) forgedAssignment(s *spec) string {
	if w.rng.IntN(6) == 0 {
		return pick(w.rng, []string{"", "{", "null", `{"v":9}`, `{"v":1,"gpus":[]}`, `{"v":1,"unitMiB":-1,"gpus":[{"uuid":"GPU-x","index":0,"units":2}]}`})
	}
	all := pick(w.rng, w.machines).everHad
	if s.bound != "" && w.rng.IntN(4) > 0 {
		all = w.machine(s.bound).everHad
	}
	all = slices.Clone(all)
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	n := min(len(all), pick(w.rng, []int{1, 1, 1, s.gpus, 2, 3}))
	var gpus []string
	for i, id := range all[:n] {
		gpus = append(gpus, fmt.Sprintf(`{"uuid":%q,"index":%d,"units":%d}`, id, i, pick(w.rng, []int{1, max(1, s.share().units), s.need.units, 1000})))
	}
	more := fmt.Sprintf(`"unitMiB":%d,`, pick(w.rng, []int{unitMiB, unitMiB, 0, 1, 1 << 30}))
	if w.rng.IntN(3) == 0 {
		more += fmt.Sprintf(`"leaving":[%q],`, pick(w.rng, pick(w.rng, w.machines).everHad))
	}
	if w.rng.IntN(3) == 0 {
		more += `"byNode":true,`
	}
	return fmt.Sprintf(`{"v":1,%s"gpus":[%s]}`, more, strings.Join(gpus, ","))
}

// tamper has the adversary edit a pod of its own.
func (w *World) tamper(pod *v1.Pod) {
	s := w.pods[string(pod.UID)]
	if len(pod.Spec.SchedulingGates) > 0 && w.rng.IntN(2) == 0 {
		w.logf("  the adversary takes the gate of %s away", pod.Name)
		_ = w.api.changePod(pod.Name, pod.UID, func(p *v1.Pod) { p.Spec.SchedulingGates = nil }) // it is there
		s.gated = false
		return
	}
	now := *pod
	now.Annotations, now.Labels = maps.Clone(pod.Annotations), maps.Clone(pod.Labels)
	if now.Annotations == nil {
		now.Annotations = make(map[string]string)
	}
	if w.rng.IntN(3) == 0 {
		maps.Copy(now.Annotations, w.understatement(s))
	}
	for range w.rng.IntN(3) {
		switch key, value := w.forgery(s); w.rng.IntN(8) {
		case 0:
			now.Labels = map[string]string{key: "forged"}
		case 1, 2:
			delete(now.Annotations, key)
		default:
			now.Annotations[key] = value
		}
	}
	if err := w.api.refuses(pod, &now); err != nil {
		return
	}
	w.logf("  the adversary edits %s: %v", pod.Name, now.Annotations)
	w.readAgain(s, now.Annotations)
	s.edited = s.edited || pod.Spec.NodeName == ""
	_ = w.api.changePod(pod.Name, pod.UID, func(p *v1.Pod) { p.Annotations, p.Labels = now.Annotations, now.Labels }) // it is there
}

// refuses is what the chart's policies do with the write of a tenant: a new pod has
// nothing that gpumem writes, only gpumem changes that of a pod, and of one that has a
// node nothing in the domain changes.
func (s *apiServer) refuses(old, now *v1.Pod) error {
	if s.w.cfg.Adversary != underPolicies {
		return nil
	}
	names := s.w.names
	written := []string{names.Assignment(), names.Index(), names.RoomMadeAt()}
	ours := func(key string) bool { return slices.Contains(written, key) }
	if old == nil {
		old = &v1.Pod{}
	} else if old.Spec.NodeName != "" {
		ours = func(key string) bool { return strings.HasPrefix(key, names.Domain()+"/") }
	}
	differs := func(old, now map[string]string) bool {
		for _, key := range slices.Concat(slices.Collect(maps.Keys(old)), slices.Collect(maps.Keys(now))) {
			was, before := old[key]
			is, after := now[key]
			if ours(key) && (was != is || before != after) {
				return true
			}
		}
		return false
	}
	if differs(old.Annotations, now.Annotations) || old.Spec.NodeName != "" && differs(old.Labels, now.Labels) {
		return errors.New("denied by a policy")
	}
	return nil
}

// readAgain takes over what the annotations of a pod ask for.
func (w *World) readAgain(s *spec, annotations map[string]string) {
	names := w.names
	s.gpus, s.broken, s.exclusive = 1, false, false
	bad := func(key string, good bool) bool {
		_, there := annotations[key]
		s.broken = s.broken || there && !good
		return there && good
	}
	count, err := strconv.Atoi(annotations[names.Count()])
	if bad(names.Count(), err == nil && s.divides(count)) {
		s.gpus = count
	}
	s.policy = annotations[names.Policy()]
	_, s.closed = annotations[names.Policy()]
	if bad(names.Policy(), placement.Policy(s.policy).IsKnown()) {
		s.closed = false
	} else {
		s.policy = ""
	}
	if s.policy == "exclusive" {
		s.exclusive, s.policy = true, ""
	}
	s.together, s.apart = annotations[names.Group()], annotations[names.ExclusiveGroup()]
	bad(names.Group(), s.together != "")
	bad(names.ExclusiveGroup(), s.apart != "")
	s.uuids = annotations[names.UUID()]
	if !bad(names.UUID(), s.uuids != "" && s.uuids != "[") {
		s.uuids = ""
	}
}

// divides reports whether the containers' amounts divide evenly over so many GPUs, and no
// container leaves some of what the init containers before it had.
func (s *spec) divides(count int) bool {
	if count < 1 || count > 64 {
		return false
	}
	var left amount
	for _, c := range s.containers {
		if c.amount.units%count != 0 || c.amount.cores%count != 0 {
			return false
		}
		if count > 1 && (c.amount.units > 0 && c.amount.units < left.units || c.amount.cores > 0 && c.amount.cores < left.cores) {
			return false
		}
		if c.amount.units > 0 {
			left.units = 0
		}
		if c.amount.cores > 0 {
			left.cores = 0
		}
		if c.kind == initial {
			left = amount{units: max(left.units, c.amount.units), cores: max(left.cores, c.amount.cores)}
		}
	}
	return true
}

// asWritten is a pod as an object has it, which may be older than the API server's.
func (w *World) asWritten(pod *v1.Pod) *spec {
	s := w.pods[string(pod.UID)]
	if !s.hostile() {
		return s
	}
	then := *s
	w.readAgain(&then, pod.Annotations)
	return &then
}

// asSent is a pod as a binding has it: what it asks for may have been changed since.
func (w *World) asSent(s *spec, annotation string) *spec {
	d := w.decode(annotation)
	if !s.hostile() || !d.ok || len(d.GPUs) == 0 {
		return s
	}
	then := *s
	then.gpus = len(d.GPUs)
	return &then
}

// checkOthers is I11: what an extender counts of each pod that is not the adversary's is
// what comes of that pod's own object, or of its binding.
func (e *extenderProc) checkOthers(got placement.Node, want *books) {
	var is, should []string
	for _, h := range got.Unattributed {
		if h.Pod.Namespace != enemy {
			is = append(is, h.Pod.Name+" nowhere")
		}
	}
	for _, s := range want.nowhere {
		if !s.hostile() {
			should = append(should, s.name+" nowhere")
		}
	}
	for _, d := range got.Devices {
		for _, h := range d.Pods {
			if h.Pod.Namespace != enemy {
				is = append(is, fmt.Sprintf("%s %v of %s", h.Pod.Name, charged(*h, d.UUID), d.UUID))
			}
		}
	}
	for id, holders := range want.holders {
		for _, s := range holders {
			if !s.hostile() {
				should = append(should, fmt.Sprintf("%s %v of %s", s.name, want.charged[id][s.uid], id))
			}
		}
	}
	slices.Sort(is)
	slices.Sort(should)
	if !slices.Equal(is, should) {
		e.w.violate("I11", "%s counts on %s of others than the adversary %q, want %q", e.name, got.Name, is, should)
	}
}

// charged is what a pod is charged with on a GPU.
func charged(h placement.Holding, id gpu.UUID) amount {
	share := h.ShareOn(id)
	return amount{units: int(share.Units), cores: share.Cores}
}

// forges reports whether a pod is one of an adversary that no policy stops.
func (w *World) forges(s *spec) bool { return w.cfg.Adversary == free && s.hostile() }

// on returns the pods that an extender knows on a node.
func (e *extenderProc) on(node string) (out []*spec) {
	for _, k := range e.view() {
		if k.node == node {
			out = append(out, k.spec)
		}
	}
	return out
}

// given is what a node tells that the kubelet has given to pods, by UID and GPU.
func (inv decoded) given() map[string]map[string]amount {
	if !inv.ok {
		return nil
	}
	out := make(map[string]map[string]amount)
	for _, given := range inv.Given {
		out[given.UID] = make(map[string]amount)
		for _, share := range given.GPUs {
			for _, d := range inv.GPUs {
				if d.Index == share[0] {
					out[given.UID][d.UUID] = amount{units: share[1], cores: share[2]}
				}
			}
		}
	}
	return out
}

// given is what the kubelet has given to a pod of each GPU, as it tells: nothing of
// plain init containers.
func (m *machine) given(s *spec) map[string]amount {
	out := make(map[string]amount)
	for p, g := range m.checkpoint[s.uid] {
		shown := slices.ContainsFunc(s.containers, func(c container) bool { return c.name == p.container && c.kind != initial })
		for _, id := range g.ids {
			if uuid := m.gpuOf(id); shown {
				a := out[uuid]
				*a.at(p.of)++
				out[uuid] = a
			}
		}
	}
	return out
}

// checkGivenAtRest looks what an extender counts of a node with pods of an adversary:
// of others what is theirs (I11), of its own no less than the kubelet has given them,
// and nothing of those that are gone.
func (e *extenderProc) checkGivenAtRest(got placement.Node) {
	w, m := e.w, e.w.machine(got.Name)
	on := w.podsByNode()[got.Name]
	e.checkOthers(got, w.truth(got.Name, on))
	there := make(map[string]bool)
	for _, pod := range on {
		there[string(pod.UID)] = pod.Spec.NodeName != ""
	}
	nowhere := make(map[string]bool)
	for _, h := range got.Unattributed {
		if nowhere[h.Pod.UID] = true; !there[h.Pod.UID] {
			w.violate("I3", "at rest %s counts %s on %s, which is gone", e.name, h.Pod.Name, got.Name)
		}
	}
	for _, d := range got.Devices {
		counted := make(map[string]amount)
		for _, h := range d.Pods {
			if counted[h.Pod.UID] = charged(*h, d.UUID); !there[h.Pod.UID] {
				w.violate("I3", "at rest %s counts %s on %s, which is gone", e.name, h.Pod.Name, d.UUID)
			}
		}
		for _, pod := range on {
			s := w.pods[string(pod.UID)]
			if k := m.kubelet.managed[s.uid]; !w.forges(s) || nowhere[s.uid] || k == nil || !k.active() {
				continue
			}
			if given := m.given(s)[string(d.UUID)]; given.units > counted[s.uid].units || given.cores > counted[s.uid].cores {
				w.violate("I11", "at rest %s counts %v of %s for %s, to which the kubelet has given %v", e.name, counted[s.uid], d.UUID, s.name, given)
			}
		}
	}
}
