package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A finding is a broken promise. Findings with the same text are the same one: it names every pod involved.
type finding struct {
	promise, text string
	pods          []string // namespace/name
	repairable    bool     // by the device plugin; counts at rest only
	facts         string   // more lines
}

func (f finding) String() string { return f.promise + ": " + f.text }

func (p pod) finding(promise, format string, args ...any) finding {
	return finding{promise: promise, pods: []string{p.name}, repairable: p.repairable(), text: fmt.Sprintf("pod %v ", p) + fmt.Sprintf(format, args...)}
}

// checkHeld checks that a kubelet has allocated each unit once, and none that its GPUs do not have.
func checkHeld(gpus []gpu, node string, held []holding) (out []finding) {
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
			out = append(out, finding{promise: "I1", pods: pods, text: fmt.Sprintf("the kubelet of %s allocated %s to %s", node, id, strings.Join(containers, " and "))})
		}
		if uuidOf(gpus, node, id) == "" {
			out = append(out, finding{promise: "I1", pods: pods, text: fmt.Sprintf("the kubelet of %s allocated %s, which is no unit of its GPUs", node, id)})
		}
	}
	return out
}

// uuidOf returns the GPU of a unit.
func uuidOf(gpus []gpu, node, id string) string {
	prefix, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	i := slices.IndexFunc(gpus, func(g gpu) bool { return g.node == node && g.prefix() == prefix && n < g.units })
	if err != nil || n < 0 || i < 0 {
		return ""
	}
	return gpus[i].uuid
}

// checkShares adds up the assignments of bound pods per GPU.
func checkShares(gpus []gpu, pods []pod) (out []finding) {
	for _, g := range gpus {
		f := finding{promise: "I2"}
		var sum int64
		var who []string
		for _, p := range pods {
			if units := p.on(g); units > 0 {
				sum += units
				f.pods, who = append(f.pods, p.name), append(who, fmt.Sprintf("%v %d", p, units))
				f.repairable = f.repairable || p.repairable()
			}
		}
		if sum > g.units {
			slices.Sort(who)
			f.text = fmt.Sprintf("%s of %s has %d units, and %d are assigned: %s", g.uuid, g.node, g.units, sum, strings.Join(who, "; "))
			out = append(out, f)
		}
	}
	return out
}

// checkAssignment checks that a bound pod has a valid assignment.
func checkAssignment(gpus []gpu, p pod) []finding {
	if p.Spec.NodeName == "" || p.ended() {
		return nil
	}
	problem := p.problem
	switch {
	case problem != "":
	case int64(len(slices.Compact(p.uuids()))) != p.count || int64(len(p.shares)) != p.count:
		problem = fmt.Sprintf("it requests %d GPUs and has %v", p.count, p.shares)
	default:
		for _, s := range p.shares {
			if !slices.ContainsFunc(gpus, func(g gpu) bool { return g.node == p.Spec.NodeName && g.uuid == s.UUID }) {
				problem = "its node has no GPU " + s.UUID
			} else if s.Units*p.count != p.units {
				problem = fmt.Sprintf("it requests %d units of %d GPUs and has %d of %s", p.units, p.count, s.Units, s.UUID)
			}
		}
	}
	if problem == "" {
		return nil
	}
	return []finding{p.finding("I4", "on %s: %s", p.Spec.NodeName, problem)}
}

// checkAgreement compares a running pod's assignment with the kubelet's answer and with the environment of
// its processes, for each container that runs.
func checkAgreement(gpus []gpu, p pod, held []holding, processes []process) (out []finding) {
	statuses := slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	for _, status := range statuses {
		units := p.containers[status.Name]
		if status.State.Running == nil || units == 0 {
			continue
		}
		i := slices.IndexFunc(held, func(h holding) bool { return h.pod == p.name && h.container == status.Name })
		if i < 0 {
			out = append(out, p.finding("I5", "container %s runs, and the kubelet allocated nothing to it", status.Name))
		} else {
			by := make(map[string]int64) // units by UUID
			for _, id := range held[i].ids {
				by[uuidOf(gpus, p.Spec.NodeName, id)]++
			}
			uuids := slices.Sorted(maps.Keys(by))
			if !slices.Equal(uuids, p.uuids()) || slices.ContainsFunc(uuids, func(uuid string) bool { return by[uuid]*p.count != units }) {
				out = append(out, p.finding("I5", "is assigned to %v; container %s requests %d units, and the kubelet allocated %v", p.uuids(), status.Name, units, by))
			}
		}
		_, id, _ := strings.Cut(status.ContainerID, "://")
		i = slices.IndexFunc(processes, func(proc process) bool { return proc.Container == id })
		if i < 0 {
			out = append(out, p.finding("I5", "container %s runs without GPU memory in its environment", status.Name))
			continue
		}
		if sees := slices.Sorted(slices.Values(processes[i].uuids)); !slices.Equal(sees, p.uuids()) || processes[i].limitMiB*p.count != units*unitMiB {
			out = append(out, p.finding("I5", "is assigned to %v; container %s requests %d units, and sees %d MiB of %v", p.uuids(), status.Name, units, processes[i].limitMiB, sees))
		}
	}
	return out
}

// checkRest checks a pod at rest.
func checkRest(nodes []node, pods []pod, p pod, held []holding, processes []process) []finding {
	switch {
	case p.ended():
		return nil
	case p.DeletionTimestamp != nil:
		return []finding{p.finding("stuck", "is still being deleted")}
	case p.Spec.NodeName == "" && p.reason() == "":
		return []finding{p.finding("stuck", "is not bound, and has no reason")}
	case p.Spec.NodeName == "":
		if fit := fitting(nodes, pods, p); len(fit) > 0 {
			return []finding{p.finding("stuck", "waits although it fits on %s: %s", fit[0], p.reason())}
		}
		return nil
	case p.restarts():
		return nil
	case !isReady(p.Pod):
		return []finding{p.finding("stuck", "is bound to %s and does not run", p.Spec.NodeName)}
	}
	return checkAgreement(gpusOf(nodes), p, held, processes)
}

// checkOrphans checks at rest that kubelets have allocated nothing to pods that do not exist.
func checkOrphans(pods []pod, held map[string][]holding) (out []finding) {
	for _, node := range slices.Sorted(maps.Keys(held)) {
		for _, h := range held[node] {
			if !slices.ContainsFunc(pods, func(p pod) bool { return p.name == h.pod && p.Spec.NodeName == node && !p.ended() }) {
				out = append(out, finding{promise: "leaked", pods: []string{h.pod}, text: fmt.Sprintf("the kubelet of %s allocated %v to %s, which does not exist", node, h.ids, h)})
			}
		}
	}
	return out
}

// fitting returns the nodes that a pod certainly fits on: those whose pods all have a known GPU.
func fitting(nodes []node, pods []pod, p pod) (out []string) {
	for _, n := range nodes {
		var gpus int64
		for _, g := range n.gpus {
			if g.fits(pods, p) {
				gpus++
			}
		}
		free, known := n.free(pods)
		if n.takesPods && known && free >= p.units && gpus >= p.count {
			out = append(out, n.name)
		}
	}
	return out
}

// free returns the node's units that its pods do not request, and whether the GPUs of all pods are known.
func (n node) free(pods []pod) (units int64, known bool) {
	units, known = n.units, true
	for _, p := range pods {
		if p.Spec.NodeName == n.name && !p.ended() {
			units -= p.units
			known = known && p.problem == ""
		}
	}
	return units, known
}

// fits reports whether a GPU has room for a pod's share.
func (g gpu) fits(pods []pod, p pod) bool {
	if uuid := p.Annotations[uuidKey]; !g.healthy || uuid != "" && uuid != g.uuid {
		return false
	}
	free := g.units
	for _, other := range pods {
		if units := other.on(g); units > 0 {
			if other.Annotations[policyKey] == "exclusive" || p.Annotations[policyKey] == "exclusive" {
				return false
			}
			free -= units
		}
	}
	return free*p.count >= p.units
}

// idlePods returns the pods that could run and do not.
func idlePods(nodes []node, pods []pod) (out []pod) {
	for _, p := range pods {
		switch {
		case p.ended(), p.DeletionTimestamp != nil:
		case p.Spec.NodeName == "" && len(fitting(nodes, pods, p)) == 0:
		case p.Spec.NodeName != "" && (isReady(p.Pod) || p.restarts()):
		default:
			out = append(out, p)
		}
	}
	return out
}
