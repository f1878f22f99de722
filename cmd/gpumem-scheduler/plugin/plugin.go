package plugin

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/decisions"
)

// Name is the plugin's in a configuration.
const Name = "GPUMemory"

// Plugin places pods with GPU memory in one profile.
type Plugin struct {
	*State
	handle  fwk.Handle // of the profile
	evictor *evictor
}

var (
	_ fwk.PreEnqueuePlugin  = (*Plugin)(nil)
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PostFilterPlugin  = (*Plugin)(nil)
	_ fwk.PreScorePlugin    = (*Plugin)(nil)
	_ fwk.ScorePlugin       = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.BindPlugin        = (*Plugin)(nil)
	_ fwk.SignPlugin        = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
)

func newPlugin(ctx context.Context, s *State, handle fwk.Handle) (*Plugin, error) {
	p := &Plugin{State: s, handle: handle}
	var err error
	p.evictor, err = newEvictor(ctx, p)
	return p, err
}

// Name returns the plugin's name.
func (p *Plugin) Name() string { return Name }

// cycle is what the plugin knows of the pod that is being scheduled.
type cycle struct {
	question cache.Question
	changes  uint64 // of the cache, before it was asked
	on       string // the node that the pod is on as far as is known; empty: none
	refused  *atomic.Int64
	scores   map[string]int64 // by node
	told     bool             // the answer of Filter
	reserved time.Time
}

// Clone returns the cycle itself: which pods preemption takes away is in NodeInfo.
func (c *cycle) Clone() fwk.StateData { return c }

// read returns what PreFilter has written; nil: the pod asks for no GPU memory.
func read(state fwk.CycleState) *cycle {
	data, err := state.Read(Name)
	if err != nil {
		return nil
	}
	c, _ := data.(*cycle)
	return c
}

// PreFilter reads what the pod asks for. A pod whose binding may have landed can go to that
// node alone.
func (p *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if !p.conf.Names.Holds(pod) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	p.binder.Ask()
	ref := api.Ref(pod)
	if problem := p.binder.NotReady(); problem != "" {
		return nil, fwk.AsStatus(errors.New(problem))
	}
	req, err := p.conf.Names.Request(pod)
	if err != nil {
		p.binder.Tell(ref, decisions.Decision{Verb: decisions.Filter, Result: decisions.Unfit, Reason: decisions.Unreadable, Message: err.Error()})
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
	}
	if req.Empty() {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	c := &cycle{question: cache.NewQuestion(ref, req, p.conf.Policies.GPU), refused: new(atomic.Int64)}
	c.changes, _ = p.Cache.Changes()
	state.Write(Name, c)
	on, _, known := p.Cache.Where(ref.UID)
	if !known {
		return nil, nil
	}
	c.on = on
	return &fwk.PreFilterResult{NodeNames: sets.New(on)}, nil
}

// PreFilterExtensions are none: Filter sees in NodeInfo which pods are taken away.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter says whether the node's GPUs have room.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	c := read(state)
	if c == nil {
		return nil
	}
	refusal := p.refuses(c, info)
	if refusal == nil {
		return nil
	}
	c.refused.Add(1)
	code := fwk.Unschedulable
	if refusal.Unresolvable {
		code = fwk.UnschedulableAndUnresolvable
	}
	return fwk.NewStatus(code, reasons.Refusal(refusal))
}

// refuses says why the pod cannot go to a node, with the pods that NodeInfo has on it; nil: it
// can.
func (p *Plugin) refuses(c *cycle, info fwk.NodeInfo) *decide.Refusal {
	name := info.Node().Name
	if c.on != "" {
		if c.on == name {
			return nil // what it has there already is enough for it
		}
		return decide.NewElsewhere(c.on, true)
	}
	if node, differs := p.differing(info); differs {
		return c.question.Ask(node)
	}
	return p.Cache.Refused(name, c.question)
}

// PreScore ranks all nodes at once.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, infos []fwk.NodeInfo) *fwk.Status {
	c := read(state)
	if c == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	nodes := make([]*placement.Node, len(infos))
	for i, info := range infos {
		nodes[i] = p.found(c, info.Node().Name)
	}
	scores := p.ranker.Rank(p.conf.Policies, c.question.Request, nodes, p.Cache.Prices())
	c.scores = make(map[string]int64, len(nodes))
	for i, node := range nodes {
		c.scores[node.Name] = scores[i]
	}
	p.tellFits(c, len(infos))
	p.binder.Tell(c.question.Pod, ranked(nodes, scores))
	return nil
}

// found returns a node as the pod finds it: what is kept for others is taken.
func (p *Plugin) found(c *cycle, name string) *placement.Node {
	node := p.Cache.Look(name)
	if node == nil {
		return &placement.Node{Name: name}
	}
	if len(node.Nominated) > 0 {
		left := decide.Reserved(*node, c.question.Pod, c.question.Request, c.question.Fallback)
		return &left
	}
	return node
}

// Score returns the node's rank.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	c := read(state)
	if c == nil {
		return 0, nil
	}
	return c.scores[info.Node().Name] * (fwk.MaxScore / ranking.MaxScore), nil
}

// ScoreExtensions are none: the ranks are scores already.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Reserve chooses the pod's GPUs and reserves them, in one critical section.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, node string) *fwk.Status {
	c := read(state)
	if c == nil {
		return nil
	}
	if !c.told {
		p.tellFits(c, 1) // kube-scheduler ranks no node that is alone
	}
	if info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node); err == nil {
		if err := p.catchUp(info); err != nil {
			return fwk.AsStatus(err)
		}
	}
	reserved, err := p.binder.Reserve(c.question.Pod, node, c.question.Request)
	if err != nil {
		return failed(err)
	}
	c.reserved = reserved
	return nil
}

// Unreserve takes the reservation back, unless a binding may still land.
func (p *Plugin) Unreserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string) {
	if c := read(state); c != nil && !c.reserved.IsZero() {
		p.binder.Release(c.question.Pod, c.reserved)
	}
}

// Bind writes the binding and with it the assignment.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if read(state) == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	if !p.begin() {
		return fwk.AsStatus(errors.New(p.binder.NotReady()))
	}
	defer p.binds.Done()
	p.waker.Answered(string(pod.UID))
	if err := p.binder.Bind(ctx, api.Ref(pod), node); err != nil {
		return failed(err)
	}
	return nil
}

// failed is the status of an error, in words where the core has refused the pod.
func failed(err error) *fwk.Status { return fwk.AsStatus(errors.New(reasons.Error(err))) }

// SignPod tells pods apart by what they ask for.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if !p.conf.Names.Holds(pod) {
		return nil, nil
	}
	req, err := p.conf.Names.Request(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	return []fwk.SignFragment{{Key: Name + ".Request", Value: req.Key()}}, nil
}
