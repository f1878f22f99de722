package replay

import "math"

// What research compares gpumem's policies with: more policies, runs as the published simulator makes
// them, and pods that leave (churn_test.go), on traces of other clusters (openb_test.go).

// allPolicies lists all names that anyPolicy knows.
func allPolicies() []string {
	return append([]string{"dot-product", "clustering", "packing", "fgd"}, Policies()...)
}

// anyPolicy returns what makes the policy of a name, those of the product among them.
func anyPolicy(name string) (maker, error) {
	switch name {
	case "dot-product":
		return byScore(dotProduct{}), nil
	case "clustering":
		return byScore(clustering{}), nil
	case "packing":
		return byScore(packing{}), nil
	case "fgd":
		return func(t Trace, f *Fleet) Policy { return &first{scorer: fgd{newFragments(t, f)}} }, nil
	default:
		return named(name)
	}
}

// Published runs a policy as the published simulator does. The policy places pods without a GPU, too.
func Published(t Trace, policy string, seed int64) (Arrivals, error) {
	r, err := prepareAny(t, policy, seed)
	if err != nil {
		return Arrivals{}, err
	}
	r.others = r.policy
	return r.arrivals()
}

// Arrive places the pods of Published, but leaves those without a GPU to kube-scheduler.
func Arrive(t Trace, policy string, seed int64) (Arrivals, error) {
	r, err := prepareAny(t, policy, seed)
	if err != nil {
		return Arrivals{}, err
	}
	return r.arrivals()
}

func prepareAny(t Trace, policy string, seed int64) (*run, error) {
	policyOf, err := anyPolicy(policy)
	if err != nil {
		return nil, err
	}
	return prepare(t, policyOf, seed)
}

// dotProduct prefers the node whose free resources are least like the request
// (Grandl et al., "Multi-resource packing for cluster schedulers", SIGCOMM 2014).
type dotProduct struct{ tightestGPU }

func (dotProduct) score(f *Fleet, s *shape, n *node) int64 {
	units := float64(maxCount * f.largest)
	product := 0.0
	product += float64(n.cpu) / maxCPU * (float64(s.CPU) / maxCPU)
	product += float64(n.freeUnits()) / units * (float64(s.Total()) / units)
	return int64(maxScore * (1 - product/2))
}

// clustering keeps pods of a kind together.
type clustering struct{ tightestGPU }

func (clustering) score(f *Fleet, s *shape, n *node) int64 {
	if s.GPUs == 0 {
		return 0
	}
	spec := int64(maxCount * f.largest)
	score := maxScore / 4 * (spec - int64(n.freeUnits())) / spec
	kinds := len(n.kinds)
	if n.kinds[0] > 0 {
		kinds-- // pods without a GPU do not count
	}
	switch {
	case n.kinds[f.kind(s)] > 0 && kinds == 1:
		return score + maxScore*3/4
	case n.kinds[f.kind(s)] > 0:
		return score + maxScore*2/4
	case kinds == 0:
		return score + maxScore/4
	default:
		return score
	}
}

// packing prefers GPUs in use to free ones, and those to idle nodes.
type packing struct{ tightestGPU }

func (packing) score(_ *Fleet, s *shape, n *node) int64 {
	if s.GPUs == 0 {
		return 0
	}
	free := int64(0)
	for i := range n.gpus {
		if n.gpus[i].free == n.gpus[i].capacity {
			free++
		}
	}
	if free == int64(len(n.gpus)) {
		return max(maxScore/3-free, free)
	}
	opened, left := int64(0), int64(0)
	for _, i := range s.tightest(n) {
		d := &n.gpus[i]
		if d.free == d.capacity {
			opened++
		}
		left += int64(d.free * 100 / d.capacity)
	}
	if opened > 0 {
		return max(maxScore/2-opened, maxScore/3)
	}
	return max(maxScore-left/10, maxScore/2)
}

// fgd is fragmentation gradient descent: a pod goes where what is free of the node after it loses
// the least of its worth to the pods that are typical of the trace.
type fgd struct{ *fragments }

func (p fgd) score(_ *Fleet, s *shape, n *node) int64 {
	score, _ := p.best(s, n)
	return score
}

func (p fgd) devices(_ *Fleet, s *shape, n *node) []int {
	_, devices := p.best(s, n)
	return devices
}

// best returns the score of a node and the devices that it is reached with: of
// a pod with one GPU the first of the best, else the tightest.
func (p fgd) best(s *shape, n *node) (int64, []int) {
	before := p.fragmentBefore(n)
	n.cpu -= s.CPU
	defer func() { n.cpu += s.CPU }()
	if s.GPUs != 1 {
		devices := s.tightest(n)
		return p.after(before, s, n, devices), devices
	}
	score, device := int64(-1), -1
	for i := range n.gpus {
		if !s.fitsDevice(&n.gpus[i]) || n.twin(i) {
			continue
		}
		if at := p.after(before, s, n, []int{i}); at > score {
			score, device = at, i
		}
	}
	return score, []int{device}
}

// twin reports whether a GPU with a lower index is like this one.
func (n *node) twin(i int) bool {
	for k := range i {
		if n.gpus[k] == n.gpus[i] {
			return true
		}
	}
	return false
}

func (p fgd) after(before float64, s *shape, n *node, devices []int) int64 {
	for _, i := range devices {
		n.gpus[i].free -= s.Units
	}
	after := p.fragment(n)
	for _, i := range devices {
		n.gpus[i].free += s.Units
	}
	return int64(1 / (1 + math.Exp(-(before-after)/p.unit)) * maxScore)
}
