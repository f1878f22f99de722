package packing

// preferring is gpumem for pods that prefer nodes without another replica of their workload: by preferred
// anti-affinity, or by a topology spread constraint with ScheduleAnyway. kube-scheduler filters a sample of
// the nodes for such pods. Their preference decides first, and then gpumem's order. Pods of one shape that
// arrive one after the other are replicas of one workload. A replica that leaves counts as if it stayed.
type preferring struct {
	*gpumem
	replicas  int               // of each workload
	workloads map[int]*workload // the last one of each shape
	next      int               // the node that kube-scheduler filters next
}

type workload struct {
	arrived int
	on      map[int]int // replicas by node
}

func (p *preferring) choose(f *Fleet, s *shape) (place, bool) {
	w := p.workloads[s.id]
	if w == nil || w.arrived == p.replicas {
		w = &workload{on: make(map[int]int)}
		p.workloads[s.id] = w
	}
	w.arrived++
	sample := p.sample(f, s)
	best := -1
	p.walk(s, func(node int) bool {
		if sample[node] && (best < 0 || w.on[node] < w.on[best]) {
			best = node
		}
		return best < 0 || w.on[best] > 0
	})
	return p.bind(f, s, best)
}

// sample returns the nodes that kube-scheduler scores: the first that pass its filters, as many as
// numFeasibleNodesToFind in pkg/scheduler/schedule_one.go of Kubernetes v1.36 returns by default.
func (p *preferring) sample(f *Fleet, s *shape) map[int]bool {
	all := len(f.nodes)
	most := min(all, max(100, all*max(5, 50-all/125)/100))
	out := make(map[int]bool, most)
	for range all {
		if len(out) == most {
			break
		}
		if s.fits(&f.nodes[p.next]) {
			out[p.next] = true
		}
		p.next = (p.next + 1) % all
	}
	return out
}

func (p *preferring) placed(f *Fleet, pod int, s *shape, at place) error {
	if s.GPUs > 0 {
		p.workloads[s.id].on[at.node]++
	}
	return p.gpumem.placed(f, pod, s, at)
}
