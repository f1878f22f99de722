package replay

// Policy chooses where pods go. One value serves one run.
type Policy interface {
	// choose returns a place that the shape fits on, or false when there is none.
	choose(f *Fleet, s *shape) (place, bool)
}

// keeper is a policy that keeps an account of its own.
type keeper interface {
	placed(f *Fleet, pod int, s *shape, at place) error
}

// scorer is a policy that scores nodes one by one.
type scorer interface {
	// score says how good a node that the shape fits on is; the highest is best.
	score(f *Fleet, s *shape, n *node) int64
	// devices chooses the GPUs of the node.
	devices(f *Fleet, s *shape, n *node) []int
}

// first takes the first of the nodes with the highest score, and keeps scores
// until the node changes.
type first struct {
	scorer
	kept [][]kept // by shape and node
}

type kept struct {
	score   int64
	version uint32 // of the node, plus one
	fits    bool
}

func (p *first) choose(f *Fleet, s *shape) (place, bool) {
	for len(p.kept) <= s.id {
		p.kept = append(p.kept, nil)
	}
	if p.kept[s.id] == nil {
		p.kept[s.id] = make([]kept, len(f.nodes))
	}
	scores := p.kept[s.id]
	best := -1
	for i := range f.nodes {
		n, k := &f.nodes[i], &scores[i]
		if k.version != n.version+1 {
			k.version = n.version + 1
			if k.fits = s.fits(n); k.fits {
				k.score = p.score(f, s, n)
			}
		}
		if k.fits && (best < 0 || k.score > scores[best].score) {
			best = i
		}
	}
	if best < 0 {
		return place{}, false
	}
	return place{node: best, gpus: p.devices(f, s, &f.nodes[best])}, true
}
