package extender

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cache"
	"github.com/gpumem/gpumem/pkg/decisions"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
	"github.com/gpumem/gpumem/pkg/preemption"
	"github.com/gpumem/gpumem/pkg/ranking"
)

// Cluster is what the extender wants of the API server.
type Cluster interface {
	// Pod returns a pod as the watch last told of it, or nil.
	Pod(namespace, name string) *v1.Pod
	// ReadPod reads a pod from the API server itself. It returns nil and no
	// error when there is none.
	ReadPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
	// ReadPodsOn reads the pods of a node that have not ended from the API server
	// itself: all that are bound when it is called.
	ReadPodsOn(ctx context.Context, node string) ([]*v1.Pod, error)
	// Bind sends a binding. A refusal is an error for which Refused reports
	// true; after any other the outcome is unknown.
	Bind(ctx context.Context, binding *v1.Binding) error
	// Refused reports whether an error of Bind means that nothing was written.
	Refused(err error) bool
}

// BindTimeout bounds one Bind, the reading of its outcome included. It is
// shorter than what kube-scheduler waits for an extender as the chart sets it.
const BindTimeout = 8 * time.Second

// Extender answers the verbs. Its fields are not changed once it serves.
type Extender struct {
	Log     *zap.Logger
	Names   api.Names
	Cache   *cache.Cache
	Cluster Cluster
	Policy  placement.Policy // of GPUs, for pods that name none
	Now     func() time.Time

	NodePolicy placement.Policy // the same of nodes; empty: as for GPUs

	// Neighbours is nil where nobody evicts.
	Neighbours Neighbours

	// Missing says what is not ready yet, and is empty when the cache can be
	// believed.
	Missing func() string

	// Decided is told of each answer about a pod, and Answered how long a verb
	// took. They are nil where nobody wants to know.
	Decided  func(placement.PodRef, decisions.Decision)
	Answered func(verb string, took time.Duration)

	ranker ranking.Ranker
	looks  looks
	turn   turn
}

// Filter says on which of the nodes the pod fits, and of each other one why not.
// Before it says that the pod fits nowhere, it may wait for SecondLook.
func (e *Extender) Filter(ctx context.Context, args *extenderv1.ExtenderArgs) *extenderv1.ExtenderFilterResult {
	e.turn.ask(e.Now())
	changed := e.Cache.Changed()
	result := e.filter(args)
	if len(result.FailedNodes) == 0 || fitsSomewhere(result) || !e.looks.allow(e.Now()) {
		return result
	}
	ctx, cancel := context.WithTimeout(ctx, SecondLook)
	defer cancel()
	for !fitsSomewhere(result) {
		select {
		case <-ctx.Done():
			return result
		case <-changed:
			changed = e.Cache.Changed()
			result = e.filter(args)
		}
	}
	return result
}

func (e *Extender) filter(args *extenderv1.ExtenderArgs) *extenderv1.ExtenderFilterResult {
	if problem := e.unanswerable(args); problem != "" {
		e.tellFailure(decisions.Filter, args.Pod, problem)
		return &extenderv1.ExtenderFilterResult{Error: passedOn(problem)}
	}
	judge := e.judge(args.Pod)
	result := &extenderv1.ExtenderFilterResult{}
	if args.NodeNames != nil {
		names := make([]string, 0, len(*args.NodeNames))
		result.NodeNames = &names
	} else {
		result.Nodes = &v1.NodeList{}
	}
	var refused refusals
	fit := 0
	for name, given := range asked(args) {
		refusal := judge(name, given)
		switch {
		case refusal != nil:
			refused.nodes = append(refused.nodes, refusedNode{name, refusal})
			continue
		case given == nil:
			*result.NodeNames = append(*result.NodeNames, name)
		default:
			result.Nodes.Items = append(result.Nodes.Items, *given)
		}
		fit++
	}
	result.FailedNodes, result.FailedAndUnresolvableNodes = refused.answer()
	e.logFilter(args.Pod, fit, result)
	e.tell(api.Ref(args.Pod), refused.decision(fit))
	return result
}

func (e *Extender) logFilter(pod *v1.Pod, fit int, result *extenderv1.ExtenderFilterResult) {
	e.Log.Debug("filter",
		zap.Stringer("pod", api.Ref(pod)), zap.String("uid", string(pod.UID)), zap.Int("fit", fit),
		zap.Int("failed", len(result.FailedNodes)), zap.Int("unresolvable", len(result.FailedAndUnresolvableNodes)))
}

// unanswerable says why a question about nodes cannot be answered at all.
func (e *Extender) unanswerable(args *extenderv1.ExtenderArgs) string {
	switch {
	case args.Pod == nil:
		return "the request names no pod"
	case args.NodeNames == nil && args.Nodes == nil:
		return "the request names no nodes"
	}
	if missing := e.Missing(); missing != "" {
		return "gpumem-extender is not ready: " + missing
	}
	return ""
}

// count returns how many nodes a question is about.
func count(args *extenderv1.ExtenderArgs) int {
	switch {
	case args.NodeNames != nil:
		return len(*args.NodeNames)
	case args.Nodes != nil:
		return len(args.Nodes.Items)
	default:
		return 0
	}
}

// asked yields the nodes of a question by name, and with them those that are given
// in full.
func asked(args *extenderv1.ExtenderArgs) iter.Seq2[string, *v1.Node] {
	return func(yield func(string, *v1.Node) bool) {
		if args.NodeNames != nil {
			for _, name := range *args.NodeNames {
				if !yield(name, nil) {
					return
				}
			}
			return
		}
		for i := range args.Nodes.Items {
			if node := &args.Nodes.Items[i]; !yield(node.Name, node) {
				return
			}
		}
	}
}

// look returns a node. One that is not known is what it says itself where it is
// given in full, and nothing where that cannot be read.
func (e *Extender) look(name string, given *v1.Node) (*placement.Node, error) {
	if node := e.Cache.Look(name); node != nil {
		return node, nil
	}
	if given == nil {
		return &placement.Node{Name: name}, nil
	}
	inv, err := e.Names.TemplateInventory(given)
	node := placement.NewNode(name, inv, nil)
	return &node, err
}

// judge returns a function that says why the pod cannot go to a node, or nil. A
// node that is given in full counts where the cache does not know it.
func (e *Extender) judge(pod *v1.Pod) func(name string, given *v1.Node) *cache.Refusal {
	ref := api.Ref(pod)
	req, err := e.Names.Request(pod)
	if err != nil {
		unreadable := unreadable(err)
		return func(string, *v1.Node) *cache.Refusal { return unreadable }
	}
	on, assumed, known := e.Cache.Where(ref.UID)
	elsewhere := cache.NewElsewhere(on, assumed)
	question := cache.NewQuestion(ref, req, e.Policy)
	return func(name string, given *v1.Node) *cache.Refusal {
		switch {
		case req.Empty():
			return nil
		case known && on != name:
			return elsewhere
		case known:
			return nil // what it holds there already is enough for it
		case given == nil || e.Cache.Look(name) != nil:
			return e.Cache.Refused(name, question)
		}
		node, err := e.look(name, given)
		if err != nil {
			return unreadable(err)
		}
		return question.Ask(*node)
	}
}

// unreadable refuses since something in a pod or a node cannot be read, on which no
// other pod has any influence.
func unreadable(err error) *cache.Refusal {
	return &cache.Refusal{Reason: decisions.Unreadable, Message: err.Error(), Unresolvable: true}
}

// Prioritize scores the nodes, from 0 to extenderv1.MaxExtenderPriority. It
// has no way to say what is wrong: then all nodes are equal.
func (e *Extender) Prioritize(_ context.Context, args *extenderv1.ExtenderArgs) *extenderv1.HostPriorityList {
	result := make(extenderv1.HostPriorityList, 0, count(args))
	if args.Pod == nil || args.NodeNames == nil && args.Nodes == nil {
		return &result
	}
	nodes := make([]*placement.Node, 0, count(args))
	req, err := e.Names.Request(args.Pod)
	for name, given := range asked(args) {
		node, _ := e.look(name, given)
		if len(node.Nominated) > 0 {
			left := preemption.Reserved(*node, api.Ref(args.Pod), req, e.Policy)
			node = &left
		}
		nodes = append(nodes, node)
	}
	scores := make([]int64, len(nodes))
	if err == nil && !req.Empty() && e.Missing() == "" {
		policies := ranking.Policies{GPU: e.Policy, Node: e.NodePolicy}
		scores = e.ranker.Rank(policies, req, nodes, e.Cache.Prices())
	}
	best := ""
	for i, node := range nodes {
		result = append(result, extenderv1.HostPriority{Host: node.Name, Score: scores[i]})
		if scores[i] == extenderv1.MaxExtenderPriority {
			best = node.Name
		}
	}
	e.tell(api.Ref(args.Pod), ranked(nodes, scores, best))
	e.Log.Debug("prioritize",
		zap.Stringer("pod", api.Ref(args.Pod)), zap.String("uid", string(args.Pod.UID)),
		zap.Int("nodes", len(nodes)), zap.String("best", best))
	return &result
}

// Bind chooses the pod's GPUs on the node and binds it there.
func (e *Extender) Bind(asked context.Context, args *extenderv1.ExtenderBindingArgs) *extenderv1.ExtenderBindingResult {
	ref := placement.PodRef{Namespace: args.PodNamespace, Name: args.PodName, UID: string(args.PodUID)}
	log := e.Log.With(zap.Stringer("pod", ref), zap.String("uid", ref.UID), zap.String("node", args.Node))
	e.turn.ask(e.Now())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(asked), BindTimeout)
	defer cancel()

	err := e.prepare(ctx, asked, ref, args.Node)
	before, _ := e.Cache.Node(args.Node)
	var assignment placement.Assignment
	if err == nil {
		assignment, err = e.bind(ctx, asked, ref, args.Node)
	}
	e.tell(ref, e.bound(ref, before, args.Node, assignment, err))
	if err != nil {
		log.Info("bind refused", zap.String("reason", err.Error()))
		return &extenderv1.ExtenderBindingResult{Error: passedOn(err.Error())}
	}
	units := gpu.Units(0)
	for _, s := range assignment.Shares {
		units += s.Units
	}
	log.Info("bound", zap.Any("devices", assignment.Devices()), zap.Int64("units", int64(units)))
	return &extenderv1.ExtenderBindingResult{}
}

// prepare refuses a Bind that cannot be answered, and has the cache catch up.
func (e *Extender) prepare(ctx, asked context.Context, ref placement.PodRef, nodeName string) error {
	if ref.Name == "" || ref.Namespace == "" || ref.UID == "" || nodeName == "" {
		return fmt.Errorf("the request must name namespace, name and UID of the pod and the node; it has %q, %q, %q and %q", ref.Namespace, ref.Name, ref.UID, nodeName)
	}
	if err := e.mayDecide(asked); err != nil {
		return err
	}
	return e.catchUp(ctx, nodeName)
}

func (e *Extender) bind(ctx, asked context.Context, ref placement.PodRef, nodeName string) (placement.Assignment, error) {
	var none placement.Assignment
	pod, err := e.podByUID(ctx, ref)
	if err != nil {
		return none, err
	}
	if pod.Spec.NodeName != "" {
		return e.alreadyBound(pod, nodeName)
	}
	req, err := e.Names.Request(pod)
	if err != nil {
		return none, err
	}
	if err := e.mayDecide(asked); err != nil { // the reads may have taken long
		return none, err
	}
	if req.Empty() {
		// kube-scheduler sends whoever names the resource, with 0 of it too.
		return none, e.Cluster.Bind(ctx, api.PlainBinding(ref, nodeName))
	}
	now := e.Now()
	assignment, err := e.Cache.AssumePod(ref, nodeName, req, e.Policy, now)
	if err != nil {
		if on, assumed, known := e.Cache.Where(ref.UID); known && !assumed && on == nodeName {
			err = nil // bound it is, as has been heard meanwhile; the device plugin will write to which GPUs
		}
		return none, err
	}
	node, _ := e.Cache.Node(nodeName)
	binding, err := e.Names.Binding(ref, nodeName, assignment, node)
	if err != nil {
		e.Cache.RefusePod(ref.UID, now)
		return none, err
	}
	maps.Copy(binding.Annotations, e.Names.GPUShareAnnotations(assignment, node, e.Now(), false))
	if err := e.Cluster.Bind(ctx, binding); err != nil {
		return e.settle(ctx, ref, nodeName, now, err)
	}
	return assignment, nil
}

// mayDecide returns an error where another may decide by now.
func (e *Extender) mayDecide(asked context.Context) error {
	if missing := e.Missing(); missing != "" {
		return fmt.Errorf("gpumem-extender is not ready: %s", missing)
	}
	if asked.Err() != nil {
		return errors.New("kube-scheduler has hung up")
	}
	return nil
}

// podByUID returns the pod that kube-scheduler means, from the watch if it is
// there already.
func (e *Extender) podByUID(ctx context.Context, ref placement.PodRef) (*v1.Pod, error) {
	if pod := e.Cluster.Pod(ref.Namespace, ref.Name); pod != nil && string(pod.UID) == ref.UID {
		return pod, nil
	}
	pod, err := e.readPod(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", ref, err)
	}
	if pod == nil {
		return nil, fmt.Errorf("pod %s is gone", ref)
	}
	if string(pod.UID) != ref.UID {
		return nil, fmt.Errorf("pod %s is another one now: it has UID %s, not %s", ref, pod.UID, ref.UID)
	}
	return pod, nil
}

// alreadyBound answers for a pod that has a node: success if it is this one.
func (e *Extender) alreadyBound(pod *v1.Pod, nodeName string) (placement.Assignment, error) {
	if pod.Spec.NodeName != nodeName {
		return placement.Assignment{}, fmt.Errorf("pod %s is bound to node %s already", api.Ref(pod), pod.Spec.NodeName)
	}
	assignment, err := e.Names.AssignmentOf(pod)
	if err != nil {
		return placement.Assignment{}, nil //nolint:nilerr // bound it is; the device plugin will mend the annotation
	}
	return assignment, nil
}

// settle finds out what became of a binding that returned an error, and keeps
// or forgets the assumption accordingly. Decided is when it was assumed.
func (e *Extender) settle(ctx context.Context, ref placement.PodRef, nodeName string, decided time.Time, cause error) (placement.Assignment, error) {
	var none placement.Assignment
	cause = fmt.Errorf("bind pod %s to node %s: %w", ref, nodeName, cause)
	pod, err := e.readPod(ctx, ref)
	gone := err == nil && (pod == nil || string(pod.UID) != ref.UID)
	if err == nil && !gone && pod.Spec.NodeName != "" {
		// Bound after all: by the try that failed or by an earlier one.
		return e.alreadyBound(pod, nodeName)
	}
	switch {
	case gone:
		e.Cache.ForgetPod(ref.UID)
		return none, cause
	case e.Cluster.Refused(cause):
		e.Cache.RefusePod(ref.UID, decided)
		return none, cause
	}
	return none, fmt.Errorf("%w: the outcome is not known; the memory stays reserved until it is", cause)
}

// ReviewAssumed asks the API server about pods whose binding has been on its
// way for longer than limit, and settles what the watch has not.
//
// The limit must be longer than the API server may work on a binding after its
// sender has given up: one that is still under way could otherwise land after
// its memory was given to another pod.
func (e *Extender) ReviewAssumed(ctx context.Context, limit time.Duration) {
	before := e.Now().Add(-limit)
	for _, a := range e.Cache.AssumedBefore(before) {
		log := e.Log.With(zap.Stringer("pod", a.Pod), zap.String("uid", a.Pod.UID), zap.String("node", a.Node))
		pod, err := e.readPod(ctx, a.Pod)
		switch {
		case err != nil:
			log.Warn("assumed pod cannot be read; it stays assumed", zap.Error(err))
		case pod == nil || string(pod.UID) != a.Pod.UID || pod.Spec.NodeName == "":
			e.Cache.ExpirePod(a.Pod.UID, before)
			log.Info("assumed pod forgotten: it is not bound")
		}
	}
}
