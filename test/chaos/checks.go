package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// invariant is the number of a promise in the design.
type invariant string

const (
	i1 invariant = "I1"
	i2 invariant = "I2"
	i4 invariant = "I4"
	i5 invariant = "I5"
	// stuck is a pod that is bound and does not come to run.
	stuck invariant = "stuck"
	// leaked is memory that is held for no pod.
	leaked invariant = "leaked"
)

// A finding is something that looks wrong in what was read. Two findings with
// the same text are the same: it names all that take part.
type finding struct {
	invariant invariant
	text      string
	lenient   bool // the device plugin may be about to mend it
}

func (f finding) String() string { return string(f.invariant) + ": " + f.text }

// checkHeld checks what one kubelet has given.
func checkHeld(all devices, node string, held []holding) []finding {
	var out []finding
	// An app container may have the IDs of a plain init container before it, but
	// of those the kubelet does not tell.
	owners := make(map[string][]string) // containers by ID
	for _, h := range held {
		for _, id := range h.ids {
			owners[id] = append(owners[id], h.pod+"/"+h.container)
		}
	}
	given := make(map[device]int64)
	for _, id := range slices.Sorted(maps.Keys(owners)) {
		if containers := owners[id]; len(containers) > 1 {
			slices.Sort(containers)
			out = append(out, finding{invariant: i1, text: fmt.Sprintf("the kubelet of %s has given %s to %s", node, id, strings.Join(containers, " and "))})
		}
		prefix, number, _ := strings.Cut(id, "-")
		d, ok := all.byPrefix(node, prefix)
		n, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil || n < 0 || n >= d.units {
			out = append(out, finding{invariant: i1, text: fmt.Sprintf("the kubelet of %s has given %s, which is no unit of its GPUs", node, id)})
			continue
		}
		given[d]++
	}
	for d, units := range given {
		if units > d.units {
			out = append(out, finding{invariant: i1, text: fmt.Sprintf("the kubelet of %s has given %d units of %s, which has %d", node, units, d.uuid, d.units)})
		}
	}
	return out
}

// crowd is GPU memory that was granted to more processes than it has room for.
type crowd struct {
	device    device
	processes []process
	forced    bool // it would fit but for pods deleted by force
	text      string
}

// checkLiving adds up the grants of processes that live, per GPU.
func checkLiving(all devices, living []process, forced map[types.UID]bool) []crowd {
	var out []crowd
	for _, d := range all {
		var in []process
		var sum, ofOthers int64
		for _, p := range living {
			if p.node != d.node || !slices.Contains(p.uuids, d.uuid) {
				continue
			}
			in = append(in, p)
			sum += p.limitMiB
			if !forced[p.pod] {
				ofOthers += p.limitMiB
			}
		}
		if sum <= d.units*unitMiB {
			continue
		}
		slices.SortFunc(in, func(a, b process) int { return a.pid - b.pid })
		var who []string
		for _, p := range in {
			who = append(who, fmt.Sprintf("%s/%.12s pid %d %d MiB", p.pod, p.container, p.pid, p.limitMiB))
		}
		out = append(out, crowd{
			device: d, processes: in, forced: ofOthers <= d.units*unitMiB,
			text: fmt.Sprintf("processes that live on %s of %s have grants for %d MiB of %d: %s", d.uuid, d.node, sum, d.units*unitMiB, strings.Join(who, "; ")),
		})
	}
	return out
}

// checkShares adds up, per GPU, what is written of pods that are bound and have
// not ended.
func checkShares(all devices, pods []pod) []finding {
	var out []finding
	for _, d := range all {
		var sum int64
		var who []string
		lenient := false
		for _, p := range pods {
			if p.node != d.node || p.ended {
				continue
			}
			for _, s := range p.shares {
				if s.uuid != d.uuid {
					continue
				}
				sum += s.units
				who = append(who, fmt.Sprintf("%v %d", p, s.units))
				// Where the kubelet has taken one pod for another, two corrections
				// follow each other.
				lenient = lenient || p.mayBeMended()
			}
		}
		if sum > d.units {
			slices.Sort(who)
			out = append(out, finding{i2, fmt.Sprintf("%s of %s has %d units and gives %d: %s", d.uuid, d.node, d.units, sum, strings.Join(who, "; ")), lenient})
		}
	}
	return out
}

// mayBeMended says whether the device plugin has a hand in the pod's assignment,
// so that it can be wrong for a moment. What the extender alone has written
// cannot: it is written with the binding, and once.
func (p pod) mayBeMended() bool { return p.touched || p.shape == direct }

// checkAssignment checks that a bound pod has a valid assignment.
func checkAssignment(all devices, p pod) []finding {
	if p.node == "" || p.ended {
		return nil
	}
	if why := invalid(all, p); why != "" {
		return []finding{{i4, fmt.Sprintf("pod %v on %s: %s", p, p.node, why), p.mayBeMended()}}
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
	uuids := p.uuids()
	if len(slices.Compact(uuids)) != p.count {
		return fmt.Sprintf("it has a GPU twice: %v", p.shares)
	}
	for _, s := range p.shares {
		if _, ok := all.byUUID(p.node, s.uuid); !ok {
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
			prefix, _, _ := strings.Cut(id, "-")
			d, _ := all.byPrefix(p.node, prefix)
			units[d.uuid]++
		}
		has := slices.Sorted(maps.Keys(units))
		if !slices.Equal(has, p.uuids()) {
			out = append(out, finding{i5, fmt.Sprintf("pod %v: written are %v, and the kubelet has given container %s units of %v", p, p.uuids(), h.container, has), true})
			continue
		}
		for uuid, n := range units {
			if n*int64(p.count) != p.containers[h.container] {
				out = append(out, finding{i5, fmt.Sprintf("pod %v: container %s asks for %d units of %d GPUs, and the kubelet has given %d of %s", p, h.container, p.containers[h.container], p.count, n, uuid), true})
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
		if proc.pod != p.uid {
			continue
		}
		see := slices.Sorted(slices.Values(proc.uuids))
		if !slices.Equal(see, p.uuids()) {
			out = append(out, finding{i5, fmt.Sprintf("pod %v: written are %v, and container %.12s sees %v", p, p.uuids(), proc.container, see), true})
		}
		name, known := p.names[proc.container]
		if known && proc.limitMiB*int64(p.count) != p.containers[name]*unitMiB {
			out = append(out, finding{i5, fmt.Sprintf("pod %v: container %s asks for %d units of %d GPUs and sees a limit of %d MiB", p, name, p.containers[name], p.count, proc.limitMiB), true})
		}
	}
	return out
}

// checkComplete checks that each container of a pod that runs has what it asks
// for, at the kubelet and in its environment.
func checkComplete(p pod, held []holding, living []process) []finding {
	var out []finding
	for name := range p.names {
		container := p.names[name]
		if p.containers[container] == 0 || !slices.ContainsFunc(living, func(proc process) bool { return proc.container == name }) {
			continue
		}
		if !slices.ContainsFunc(held, func(h holding) bool { return h.pod == p.name && h.container == container }) {
			out = append(out, finding{i5, fmt.Sprintf("pod %v: container %s runs, and the kubelet has given it nothing", p, container), true})
		}
	}
	if !slices.ContainsFunc(living, func(proc process) bool { return proc.pod == p.uid }) {
		out = append(out, finding{i5, fmt.Sprintf("pod %v is ready, and none of its processes sees a grant", p), true})
	}
	return out
}
