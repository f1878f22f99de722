package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// invariant is the name of a promise: see the package's documentation.
type invariant string

const (
	i1 invariant = "I1"
	i2 invariant = "I2"
	i4 invariant = "I4"
	i5 invariant = "I5"
	// idle is a pod that fits and is late to run.
	idle invariant = "idle"
	// stuck is a pod that is bound and does not come to run, or that waits although
	// there is room.
	stuck invariant = "stuck"
	// leaked is memory that is held for no pod.
	leaked invariant = "leaked"
)

// A finding is something that looks wrong in what was read. Two findings with
// the same text are the same: it names all that take part.
type finding struct {
	invariant invariant
	text      string
	facts     string   // lines that explain it
	pods      []string // that take part, as namespace/name
	lenient   bool     // the device plugin may be about to repair it
}

func (f finding) String() string { return string(f.invariant) + ": " + f.text }

// checkHeld checks what one kubelet has given.
func checkHeld(all devices, node string, held []holding) []finding {
	var out []finding
	// An app container may have the IDs of a plain init container before it, but
	// of those the kubelet does not tell.
	holders := make(map[string][]holding) // by ID
	for _, h := range held {
		for _, id := range h.ids {
			holders[id] = append(holders[id], h)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(holders)) {
		var pods, containers []string
		for _, h := range holders[id] {
			pods, containers = append(pods, h.pod), append(containers, h.String())
		}
		slices.Sort(containers)
		if len(containers) > 1 {
			out = append(out, finding{invariant: i1, pods: pods, text: fmt.Sprintf("the kubelet of %s has given %s to %s", node, id, strings.Join(containers, " and "))})
		}
		// Without a unit twice, a GPU gives no more than it has.
		if _, ok := all.byID(node, id); !ok {
			out = append(out, finding{invariant: i1, pods: pods, text: fmt.Sprintf("the kubelet of %s has given %s, which is no unit of its GPUs", node, id)})
		}
	}
	return out
}

// byID returns the device of a unit.
func (all devices) byID(node, id string) (device, bool) {
	prefix, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	i := slices.IndexFunc(all, func(d device) bool { return d.node == node && d.prefix() == prefix && n < d.units })
	if err != nil || n < 0 || i < 0 {
		return device{}, false
	}
	return all[i], true
}

// crowd is GPU memory that was granted to more processes than it has room for.
type crowd struct {
	finding
	forced bool // it would fit but for pods deleted by force
}

// checkLiving adds up the grants of processes that live, per GPU.
func checkLiving(all devices, living []process, forced map[types.UID]bool) []crowd {
	var out []crowd
	for _, d := range all {
		var sum, ofOthers int64
		var who []string
		for _, p := range living {
			if p.Node != d.node || !slices.Contains(p.uuids, d.uuid) {
				continue
			}
			sum += p.limitMiB
			if !forced[p.Pod] {
				ofOthers += p.limitMiB
			}
			who = append(who, fmt.Sprintf("pod %s container %.12s pid %d %d MiB", p.Pod, p.Container, p.PID, p.limitMiB))
		}
		if sum > d.units*unitMiB {
			slices.Sort(who)
			out = append(out, crowd{
				finding: finding{invariant: i1, text: fmt.Sprintf("processes that live on %s of %s have grants for %d MiB of %d: %s", d.uuid, d.node, sum, d.units*unitMiB, strings.Join(who, "; "))},
				forced:  ofOthers <= d.units*unitMiB,
			})
		}
	}
	return out
}

// checkShares adds up, per GPU, what is written of pods that are bound and have
// not ended.
func checkShares(all devices, pods []pod) []finding {
	var out []finding
	for _, d := range all {
		f := finding{invariant: i2}
		var sum int64
		var who []string
		for _, p := range pods {
			units := p.on(d)
			if units == 0 {
				continue
			}
			sum += units
			f.pods, who = append(f.pods, p.name), append(who, fmt.Sprintf("%v %d", p, units))
			// Where the kubelet has taken one pod for another, two corrections
			// follow each other.
			f.lenient = f.lenient || p.mayBeMended()
		}
		if sum > d.units {
			slices.Sort(who)
			f.text = fmt.Sprintf("%s of %s has %d units and gives %d: %s", d.uuid, d.node, d.units, sum, strings.Join(who, "; "))
			out = append(out, f)
		}
	}
	return out
}

// on returns the units of a GPU that are written of the pod, if it is bound and
// has not ended.
func (p pod) on(d device) int64 {
	if p.node != d.node || p.ended {
		return 0
	}
	var units int64
	for _, s := range p.shares {
		if s.uuid == d.uuid {
			units += s.units
		}
	}
	return units
}

// mayBeMended says whether the device plugin has a hand in the pod's assignment,
// so that it can be wrong for a moment. What the extender alone has written
// cannot: it is written with the binding, and once.
func (p pod) mayBeMended() bool { return p.touched || p.shape == direct }

// finding is one about this pod.
func (p pod) finding(i invariant, lenient bool, format string, args ...any) finding {
	return finding{invariant: i, pods: []string{p.name}, lenient: lenient, text: fmt.Sprintf("pod %v ", p) + fmt.Sprintf(format, args...)}
}

// checkAssignment checks that a bound pod has a valid assignment.
func checkAssignment(all devices, p pod) []finding {
	if p.node == "" || p.ended {
		return nil
	}
	if why := invalid(all, p); why != "" {
		return []finding{p.finding(i4, p.mayBeMended(), "on %s: %s", p.node, why)}
	}
	return nil
}

func invalid(all devices, p pod) string {
	if p.problem != "" {
		return p.problem
	}
	if len(p.shares) != p.count {
		return fmt.Sprintf("it has %d GPUs and asks for %d", len(p.shares), p.count)
	}
	if len(slices.Compact(p.uuids())) != p.count {
		return fmt.Sprintf("it has a GPU twice: %v", p.shares)
	}
	for _, s := range p.shares {
		if !slices.ContainsFunc(all, func(d device) bool { return d.node == p.node && d.uuid == s.uuid }) {
			return fmt.Sprintf("its node has no GPU %s", s.uuid)
		}
		if s.units*int64(p.count) != p.need {
			return fmt.Sprintf("it asks for %d units of %d GPUs and has %d of %s", p.need, p.count, s.units, s.uuid)
		}
	}
	return ""
}

// checkKubelet compares what is written of a pod with what the kubelet has given
// its containers. A pod that the kubelet has given nothing yet says nothing.
func checkKubelet(all devices, p pod, held []holding) []finding {
	var out []finding
	for _, h := range held {
		if h.pod != p.name {
			continue
		}
		units := make(map[string]int64) // by UUID
		for _, id := range h.ids {
			d, _ := all.byID(p.node, id)
			units[d.uuid]++
		}
		has := slices.Sorted(maps.Keys(units))
		if !slices.Equal(has, p.uuids()) {
			out = append(out, p.finding(i5, true, "is to have %v, and the kubelet has given container %s units of %v", p.uuids(), h.container, has))
			continue
		}
		for _, uuid := range has {
			if n := units[uuid]; n*int64(p.count) != p.containers[h.container] {
				out = append(out, p.finding(i5, true, "container %s asks for %d units of %d GPUs, and the kubelet has given %d of %s", h.container, p.containers[h.container], p.count, n, uuid))
			}
		}
	}
	return out
}

// checkEnvironment compares what is written of a pod with what its processes
// see.
func checkEnvironment(p pod, living []process) []finding {
	var out []finding
	for _, proc := range living {
		if proc.Pod != p.uid {
			continue
		}
		see := slices.Sorted(slices.Values(proc.uuids))
		if !slices.Equal(see, p.uuids()) {
			out = append(out, p.finding(i5, true, "is to have %v, and container %.12s sees %v", p.uuids(), proc.Container, see))
		}
		name, known := p.names[proc.Container]
		if known && proc.limitMiB*int64(p.count) != p.containers[name]*unitMiB {
			out = append(out, p.finding(i5, true, "container %s asks for %d units of %d GPUs and sees a limit of %d MiB", name, p.containers[name], p.count, proc.limitMiB))
		}
	}
	return out
}

// checkComplete checks that each container that runs has what it asks for, at
// the kubelet and in its environment.
func checkComplete(p pod, held []holding, living []process) []finding {
	var out []finding
	for _, id := range slices.Sorted(maps.Keys(p.running)) {
		name := p.running[id]
		if p.containers[name] == 0 {
			continue
		}
		if !slices.ContainsFunc(held, func(h holding) bool { return h.pod == p.name && h.container == name }) {
			out = append(out, p.finding(i5, true, "container %s runs, and the kubelet has given it nothing", name))
		}
		if !slices.ContainsFunc(living, func(proc process) bool { return proc.Container == id }) {
			out = append(out, p.finding(i5, true, "container %s runs, and no process in it sees a grant", name))
		}
	}
	return out
}

// checkRest checks a pod at rest.
func checkRest(nodes hosts, pods []pod, p pod, held []holding, living []process) []finding {
	switch {
	case p.ended:
		return nil
	case p.deleting:
		return []finding{p.finding(stuck, true, "is still being deleted")}
	case p.node == "":
		return checkWaiting(nodes, pods, p)
	case p.shape == restarts:
		return nil // its containers come and go
	case !p.ready:
		return []finding{p.finding(stuck, true, "is bound to %s and does not run", p.node)}
	}
	return slices.Concat(checkKubelet(nodes.devices(), p, held), checkEnvironment(p, living), checkComplete(p, held, living))
}

// checkWaiting checks that a pod which is not bound has nowhere to go, and that
// somebody says so.
func checkWaiting(nodes hosts, pods []pod, p pod) []finding {
	if p.waits == "" {
		return []finding{p.finding(stuck, true, "is not bound, and nobody says why")}
	}
	if room := nodes.fitting(pods, p); len(room) > 0 {
		return []finding{p.finding(stuck, true, "waits although %s has room for it: %s", room[0], p.waits)}
	}
	return nil
}

// checkOrphans checks at rest that the kubelets have given nothing to pods that
// are not there.
func checkOrphans(pods []pod, held map[string][]holding) []finding {
	var out []finding
	for _, node := range slices.Sorted(maps.Keys(held)) {
		for _, h := range held[node] {
			if !slices.ContainsFunc(pods, func(p pod) bool { return p.name == h.pod && p.node == node && !p.ended }) {
				out = append(out, finding{invariant: leaked, pods: []string{h.pod}, text: fmt.Sprintf("the kubelet of %s has given %v to %s, which is not there", node, h.ids, h)})
			}
		}
	}
	return out
}
