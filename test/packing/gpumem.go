package packing

import (
	"fmt"
	"strconv"
	"time"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
)

// gpumem is the scheduler's code at work: its cache, its ranking and its choice of GPUs. Of equal
// nodes it takes the first by name.
type gpumem struct {
	cache    *cache.Cache
	index    ranking.Index
	policies ranking.Policies
	requests []placement.Request // by shape
	chosen   placement.Assignment
	nodes    map[string]int // the nodes of the fleet by name
}

func newGPUMem(f *Fleet, policies ranking.Policies) *gpumem {
	p := &gpumem{cache: cache.New(), policies: policies, nodes: make(map[string]int)}
	for i := range f.nodes {
		n := &f.nodes[i]
		p.nodes[n.Name] = i
		inv := gpu.Inventory{UnitMiB: 1024, CPU: n.Node.CPU}
		for g := range n.gpus {
			d := &n.gpus[g]
			inv.Devices = append(inv.Devices, gpu.Device{
				UUID: gpu.UUID(strconv.Itoa(g)), Index: g, Model: f.models[d.model],
				MemoryMiB: int64(d.capacity) * 1024, Allocatable: d.capacity,
			})
		}
		p.cache.SetNode(n.Name, inv)
	}
	return p
}

// request returns the request that the scheduler parses from a pod of this shape.
func (p *gpumem) request(s *shape) *placement.Request {
	for len(p.requests) <= s.id {
		p.requests = append(p.requests, placement.Request{})
	}
	r := &p.requests[s.id]
	if r.CPU == 0 && r.Empty() {
		r.CPU, r.Count = s.CPU, s.GPUs
		if s.GPUs > 0 {
			r.Containers = placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: s.Total()})
		}
		if s.Models != "" {
			r.Models = placement.NewGlobs(splitModels(s.Models)...)
		}
	}
	return r
}

func (p *gpumem) choose(f *Fleet, s *shape) (place, bool) {
	best := -1
	p.walk(s, func(node int) bool {
		if s.fits(&f.nodes[node]) {
			best = node
		}
		return best < 0
	})
	return p.bind(f, s, best)
}

// walk visits the nodes whose GPUs the shape fits, the best first, until visit returns false.
func (p *gpumem) walk(s *shape, visit func(node int) bool) {
	req := p.request(s)
	p.cache.Learn(*req)
	p.cache.Reprice()
	p.index.Walk(p.cache, ranking.Question{Request: *req, Defaults: p.policies}, nil, func(n *placement.Node, _ int) bool { return visit(p.nodes[n.Name]) })
}

// bind chooses the GPUs of the node as the scheduler does before the Binding; node -1: there is none.
func (p *gpumem) bind(f *Fleet, s *shape, best int) (place, bool) {
	p.chosen = placement.Assignment{}
	if best < 0 {
		return place{}, false
	}
	req, at, node := p.request(s), place{node: best}, f.nodes[best].Name
	if req.Empty() {
		return at, true
	}
	n, _ := p.cache.Node(node)
	chosen, refusal := decide.Decide(n, placement.PodRef{}, *req, p.policies.GPU)
	if refusal != nil {
		return place{}, false
	}
	p.chosen = chosen
	for _, d := range chosen.Devices() {
		i, err := strconv.Atoi(string(d))
		if err != nil {
			return place{}, false
		}
		at.gpus = append(at.gpus, i)
	}
	return at, true
}

func (p *gpumem) placed(f *Fleet, pod int, s *shape, at place) error {
	uid := strconv.Itoa(pod)
	h := placement.Holding{
		Pod:     placement.PodRef{Namespace: "packing", Name: uid, UID: uid},
		Request: *p.request(s), Admitted: true, Started: time.Unix(0, 0),
	}
	if s.GPUs > 0 {
		h.Assignment = p.chosen
	}
	if len(h.Assignment.Shares) != s.GPUs {
		return fmt.Errorf("gpumem chose %d GPUs, want %d", len(h.Assignment.Shares), s.GPUs)
	}
	p.cache.AddPod(f.nodes[at.node].Name, h)
	return nil
}

func (p *gpumem) removed(pod int) { p.cache.RemovePod(strconv.Itoa(pod)) }
