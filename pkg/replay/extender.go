package replay

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

// extended is the extender at work: its cache, its scores from 0 to 10 and its
// choice of GPUs. Of the nodes with the highest score the first by name is taken.
type extended struct {
	books    *cache.Cache
	ranker   ranking.Ranker
	policies ranking.Policies
	index    map[string]int // of nodes
	requests []placement.Request
	chosen   placement.Assignment
	nodes    []*placement.Node // that the pod at hand fits on
	read     []read            // by node of the fleet
}

// read is a node as the cache has it, until it changes.
type read struct {
	node    *placement.Node
	version uint32 // of the node, plus one
}

func newExtended(f *Fleet, policies ranking.Policies) *extended {
	p := &extended{books: cache.New(), policies: policies, index: make(map[string]int), read: make([]read, len(f.nodes))}
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
		p.index[n.Name] = i
		p.books.SetNode(n.Name, inv)
	}
	return p
}

// request returns a shape as the extender reads it from a pod.
func (p *extended) request(s *shape) *placement.Request {
	for len(p.requests) <= s.id {
		p.requests = append(p.requests, placement.Request{})
	}
	r := &p.requests[s.id]
	if r.CPU == 0 && r.Empty() {
		r.CPU, r.Count = s.CPU, s.GPUs
		if s.GPUs > 0 {
			r.Containers = placement.NewContainers(placement.Container{Name: "main", Kind: placement.App, Units: s.Total(), Cores: s.Cores * s.GPUs})
		}
		if s.Models != "" {
			r.Models = placement.NewGlobs(splitModels(s.Models)...)
		}
	}
	return r
}

func (p *extended) choose(f *Fleet, s *shape) (place, bool) {
	req := p.request(s)
	p.books.Learn(*req)
	nodes := p.nodes[:0]
	for i := range f.nodes {
		n, r := &f.nodes[i], &p.read[i]
		if !s.fits(n) {
			continue
		}
		if r.version != n.version+1 {
			r.version = n.version + 1
			r.node = p.books.Look(n.Name)
		}
		nodes = append(nodes, r.node)
	}
	p.nodes = nodes
	p.books.Reprice()
	for _, best := range p.ranker.Rank(1, p.policies, *req, nodes, p.books.Prices()).Best {
		return p.bind(req, nodes[best.Index].Name)
	}
	return place{}, false
}

func (p *extended) bind(req *placement.Request, node string) (place, bool) {
	at := place{node: p.index[node]}
	p.chosen = placement.Assignment{}
	if req.Empty() {
		return at, true
	}
	n, _ := p.books.Node(node)
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

func (p *extended) placed(f *Fleet, pod int, s *shape, at place) error {
	uid := strconv.Itoa(pod)
	ref := placement.PodRef{Namespace: "replay", Name: uid, UID: uid}
	h := placement.Holding{Pod: ref, Request: *p.request(s), Admitted: true, Started: time.Unix(0, 0)}
	if s.GPUs > 0 {
		h.Assignment = p.chosen
	}
	if len(h.Assignment.Shares) != s.GPUs {
		return fmt.Errorf("the extender chose %d GPUs, want %d", len(h.Assignment.Shares), s.GPUs)
	}
	p.books.AddPod(f.nodes[at.node].Name, h)
	return nil
}
