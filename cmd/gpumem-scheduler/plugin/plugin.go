package plugin

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/util"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/history"
	"github.com/gpumem/gpumem/pkg/scheduler/decider"
)

// Name is the plugin's name in kube-scheduler's configuration.
const Name = "GPUMemory"

// Plugin schedules pods with GPU memory in one profile.
type Plugin struct {
	preemption.Interface // of defaults, except SelectVictimsOnNode
	fwk.PreEnqueuePlugin // of defaults: keeps a pod out of the queue while its victims are being evicted

	decider  *decider.Decider // shared by all profiles
	handle   fwk.Handle       // of this profile
	defaults *defaultpreemption.DefaultPreemption
}

// Check verifies the other extension points.
var (
	_ fwk.SignPlugin        = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
)

// Name returns the plugin's name.
func (p *Plugin) Name() string { return Name }

// cycle is the plugin's state of one scheduling cycle.
type cycle struct {
	*decider.Cycle
	few bool // a PreFilter plugin restricts the pod to some nodes
}

// Clone returns c itself, because preemption removes pods only from the copied NodeInfo.
func (c *cycle) Clone() fwk.StateData { return c }

// stored returns the plugin's value in kube-scheduler's state: a *cycle for a pod with GPU memory, and
// claimScores for a pod with a claim. It returns nil if the value is missing or has another type.
func stored[T fwk.StateData](state fwk.CycleState) T {
	data, _ := state.Read(Name)
	value, _ := data.(T)
	return value
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

// PreFilterExtensions returns nil: preemption removes its victims from NodeInfo, and Filter reads NodeInfo.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects the node if the pod does not fit the node's GPUs.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	if c := stored[*cycle](state); c != nil {
		if refusal := p.decider.Refuse(c.Cycle, nodeOf(info)); refusal != nil {
			return refusalStatus(refusal, c.Message(refusal))
		}
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
	c := stored[*cycle](state)
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

// scoreFactor converts scores to kube-scheduler's range. Its limit has no constant in all supported versions.
const scoreFactor = 100 / ranking.MaxScore

// Score returns the node's score.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	c := stored[*cycle](state)
	if c == nil {
		return stored[claimScores](state)[info.Node().Name] * scoreFactor, nil
	}
	return c.Score(info.Node().Name) * scoreFactor, nil
}

// ScoreExtensions returns nil, because the scores need no normalization.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }

// Reserve picks the pod's GPUs and reserves them.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, node string) *fwk.Status {
	c := stored[*cycle](state)
	if c == nil {
		return nil
	}
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return fwk.AsStatus(err)
	}
	return statusOf(p.decider.Reserve(c.Cycle, nodeOf(info)))
}

// Unreserve releases the reservation, unless a binding may still succeed.
func (p *Plugin) Unreserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string) {
	if c := stored[*cycle](state); c != nil {
		p.decider.Unreserve(c.Cycle)
	}
}

// Bind sends the binding with the assignment.
func (p *Plugin) Bind(ctx context.Context, state fwk.CycleState, _ *v1.Pod, node string) *fwk.Status {
	c := stored[*cycle](state)
	if c == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	return statusOf(p.decider.Bind(ctx, c.Pod, node))
}

// statusOf converts an error into a status. A refusal by the core gets its full message.
func statusOf(err error) *fwk.Status {
	if err == nil {
		return nil
	}
	return fwk.AsStatus(errors.New(reasons.Error(err)))
}

// SignPod returns no signature for a pod with GPU memory. kube-scheduler reuses the ranked nodes of an earlier pod
// with the same signature. For pods with GPU memory, hintingFramework replaces this.
func (p *Plugin) SignPod(_ context.Context, pod *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if p.decider.Names.Holds(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "the node hint replaces the signature")
	}
	return nil, nil
}

// EventsToRegister returns the events that may free GPU memory for a refused pod.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		event(fwk.Pod, fwk.Delete, func(waiting, deleted, _ *v1.Pod) bool { return p.decider.DeletionHelps(waiting, deleted) }),
		event(fwk.Pod, fwk.Update, p.decider.ChangeHelps),
		event(fwk.Node, fwk.Add|fwk.UpdateNodeAnnotation, func(waiting *v1.Pod, _, node *v1.Node) bool { return p.decider.NodeHelps(waiting, node) }),
	}, nil
}

// event returns an event that requeues a waiting pod if helps returns true. T is the type of its objects.
func event[T any](resource fwk.EventResource, action fwk.ActionType, helps func(waiting *v1.Pod, before, after T) bool) fwk.ClusterEventWithHint {
	hint := func(_ klog.Logger, waiting *v1.Pod, before, after any) (fwk.QueueingHint, error) {
		was, is, err := util.As[T](before, after)
		if err != nil || helps(waiting, was, is) {
			return fwk.Queue, err
		}
		return fwk.QueueSkip, nil
	}
	return fwk.ClusterEventWithHint{Event: fwk.ClusterEvent{Resource: resource, ActionType: action}, QueueingHintFn: hint}
}
