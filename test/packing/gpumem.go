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
	ranker   ranking.Ranker
	policies ranking.Policies
	requests []placement.Request // by shape
	chosen   placement.Assignment
	nodes    []*placement.Node // that the current pod fits
	index    []int             // of each of nodes in the fleet
	read     []cachedNode      // by node of the fleet
}

// cachedNode is a node of the cache until it changes.
type cachedNode struct {
	node    *placement.Node
	version uint32 // of the node, plus one
}

func newGPUMem(f *Fleet, policies ranking.Policies) *gpumem {
	p := &gpumem{cache: cache.New(), policies: policies, read: make([]cachedNode, len(f.nodes))}
	for i := range f.nodes {
		n := &f.nodes[i]
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
	req := p.request(s)
	p.cache.Learn(*req)
	p.nodes, p.index = p.nodes[:0], p.index[:0]
	for i := range f.nodes {
		n, r := &f.nodes[i], &p.read[i]
		if !s.fits(n) {
			continue
		}
		if r.version != n.version+1 {
			r.version = n.version + 1
			r.node = p.cache.Look(n.Name)
		}
		p.nodes, p.index = append(p.nodes, r.node), append(p.index, i)
	}
	p.cache.Reprice()
	ranked := p.ranker.Rank(1, p.policies, *req, p.nodes, p.cache.Prices())
	if len(ranked.Best) == 0 {
		return place{}, false
	}
	best := ranked.Best[0].Index
	return p.bind(req, place{node: p.index[best]}, p.nodes[best].Name)
}

// bind chooses the GPUs of the node as the scheduler does before the Binding.
func (p *gpumem) bind(req *placement.Request, at place, node string) (place, bool) {
	p.chosen = placement.Assignment{}
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
