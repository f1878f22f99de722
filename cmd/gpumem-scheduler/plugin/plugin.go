package plugin

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// Name is the plugin's name in kube-scheduler's configuration.
const Name = "GPUMemory"

// Plugin schedules pods with GPU memory in one profile.
type Plugin struct {
	names   api.Names
	decider *decider.Decider // shared by all profiles
	handle  fwk.Handle       // of this profile
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

func newPlugin(ctx context.Context, names api.Names, decider *decider.Decider, handle fwk.Handle) (*Plugin, error) {
	p := &Plugin{names: names, decider: decider, handle: handle}
	var err error
	p.evictor, err = newEvictor(ctx, p)
	return p, err
}

// Name returns the plugin's name.
func (p *Plugin) Name() string { return Name }

// cycle is the plugin's state of one scheduling cycle.
type cycle struct {
	*decider.Cycle
	few bool // a PreFilter plugin restricts the pod to some nodes
}

// Clone returns c itself, because preemption removes pods only from the copied NodeInfo.
func (c *cycle) Clone() fwk.StateData { return c }

// cycleOf returns the cycle that PreFilter stored in kube-scheduler's state; nil: the pod requests no GPU
// memory.
func cycleOf(state fwk.CycleState) *cycle {
	stored, err := state.Read(Name)
	if err != nil {
		return nil
	}
	c, _ := stored.(*cycle)
	return c
}

// nodeOf converts kube-scheduler's view of a node.
func nodeOf(info fwk.NodeInfo) decider.Node {
	return decider.Node{Name: info.Node().Name, Generation: info.GetGeneration(), Pods: func(yield func(*v1.Pod) bool) {
		for _, i := range info.GetPods() {
			if !yield(i.GetPod()) {
				return
			}
		}
	}}
}

// PreFilter reads the pod's request. If the pod is, or may be, bound to a node already, PreFilter allows only
// that node.
func (p *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	c, refusal, err := p.decider.Begin(history.Filter, pod, len(nodes))
	switch {
	case err != nil:
		return nil, fwk.AsStatus(err)
	case refusal != nil:
		return nil, refusalStatus(refusal, reasons.Refusal(refusal))
	case c == nil:
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(Name, &cycle{Cycle: c})
	if c.BoundNode() == "" {
		return nil, nil
	}
	return &fwk.PreFilterResult{NodeNames: sets.New(c.BoundNode())}, nil
}

// PreFilterExtensions returns nil, because Filter reads the pods from NodeInfo, from which preemption removes
// its victims.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects the node if the pod does not fit the node's GPUs.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	if refusal := p.decider.Refuse(c.Cycle, nodeOf(info)); refusal != nil {
		return refusalStatus(refusal, c.Message(refusal))
	}
	return nil
}

// refusalStatus converts a refusal into a status.
func refusalStatus(refusal *decide.Refusal, reason string) *fwk.Status {
	code := fwk.Unschedulable
	if refusal.Unresolvable {
		code = fwk.UnschedulableAndUnresolvable
	}
	return fwk.NewStatus(code, reason)
}

// PreScore ranks all nodes at once.
func (p *Plugin) PreScore(_ context.Context, state fwk.CycleState, pod *v1.Pod, infos []fwk.NodeInfo) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return p.rankClaims(state, pod, infos)
	}
	if c.Equal() {
		return fwk.NewStatus(fwk.Skip)
	}
	names := make([]string, len(infos))
	for i, info := range infos {
		names[i] = info.Node().Name
	}
	p.decider.Fits(c.Cycle, len(names)+c.Refused(), len(names), nil)
	p.decider.Rank(c.Cycle, names, len(names))
	return nil
}

// Score returns the node's score.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	c := cycleOf(state)
	if c == nil {
		return claimScore(state, info.Node().Name), nil
	}
	return c.Score(info.Node().Name) * (maxScore / ranking.MaxScore), nil
}

// ScoreExtensions returns nil, because the scores need no normalization.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Reserve picks the pod's GPUs and reserves them.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return nil
	}
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if err := p.decider.Reserve(c.Cycle, nodeOf(info)); err != nil {
		return errorStatus(err)
	}
	return nil
}

// Unreserve releases the reservation, unless a binding may still succeed.
func (p *Plugin) Unreserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string) {
	if c := cycleOf(state); c != nil {
		p.decider.Unreserve(c.Cycle)
	}
}

// Bind sends the binding with the assignment.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, _ *v1.Pod, node string) *fwk.Status {
	c := cycleOf(state)
	if c == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	if err := p.decider.Bind(ctx, c.Pod, node); err != nil {
		return errorStatus(err)
	}
	return nil
}

// errorStatus converts an error into a status. A refusal by the core gets its full message.
func errorStatus(err error) *fwk.Status { return fwk.AsStatus(errors.New(reasons.Error(err))) }

// SignPod returns a signature of the pod's request: pods with different requests need different decisions.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if !p.names.Holds(pod) {
		return nil, nil
	}
	req, err := p.names.Request(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, err.Error())
	}
	return []fwk.SignFragment{{Key: Name + ".Request", Value: signatureOf(req)}}, nil
}

// signature contains all fields of a request, in a form that has a JSON encoding: kube-scheduler compares
// signatures as JSON. The priority is included, because it decides which nominated pods precede the pod.
type signature struct {
	placement.Request
	Containers []placement.Container // replaces the request's containers, which have no JSON form
}

func signatureOf(r placement.Request) signature { return signature{r, r.Containers.All()} }

// EventsToRegister returns the events that may free GPU memory for a refused pod. An event with objects of
// unexpected types requeues the pod.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	hint := func(helps func(waiting *v1.Pod, before, after any) (helps, known bool)) fwk.QueueingHintFn {
		return func(_ klog.Logger, waiting *v1.Pod, before, after any) (fwk.QueueingHint, error) {
			if helps, known := helps(waiting, before, after); known && !helps {
				return fwk.QueueSkip, nil
			}
			return fwk.Queue, nil
		}
	}
	gone := hint(func(waiting *v1.Pod, before, _ any) (bool, bool) {
		pod, ok := before.(*v1.Pod)
		return ok && p.decider.DeletionHelps(waiting, pod), ok
	})
	changed := hint(func(waiting *v1.Pod, before, after any) (bool, bool) {
		was, wasPod := before.(*v1.Pod)
		is, isPod := after.(*v1.Pod)
		ok := wasPod && isPod
		return ok && p.decider.ChangeHelps(waiting, was, is), ok
	})
	offers := hint(func(waiting *v1.Pod, _, after any) (bool, bool) {
		node, ok := after.(*v1.Node)
		return ok && p.decider.NodeHelps(waiting, node), ok
	})
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}, QueueingHintFn: gone},
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Update}, QueueingHintFn: changed},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAnnotation}, QueueingHintFn: offers},
	}, nil
}
