package extender

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/decisions"
)

// Cluster is what the extender wants of the API server.
type Cluster interface {
	// Pod returns a pod as the watch last told of it, or nil.
	Pod(namespace, name string) *v1.Pod
	// Waiting returns the pods that ask for GPU memory and have no node, as the watch
	// last told of them.
	Waiting() []*v1.Pod
	// ReadPod reads a pod from the API server itself. It returns nil and no
	// error when there is none.
	ReadPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
	// ReadPodsOn reads the pods of a node that have not ended from the API server
	// itself: all that are bound when it is called.
	ReadPodsOn(ctx context.Context, node string) ([]*v1.Pod, error)
	// Leader reads who leads the kube-schedulers of which one asks this extender: one
	// that has lost the lead never leads again under the same name. It returns an
	// empty name where that is not known.
	Leader(ctx context.Context) (string, error)
	// Revision reads the resource version that the API server has reached, and Told
	// reports whether the watch of pods has told of all that was written up to one.
	Revision(ctx context.Context) (string, error)
	Told(revision string) bool
	// Wake has kube-scheduler try a waiting pod again.
	Wake(ctx context.Context, pod placement.PodRef) error
	// Bind sends a binding. A refusal is an error for which Refused reports
	// true; after any other the outcome is unknown.
	Bind(ctx context.Context, binding *v1.Binding) error
	// Refused reports whether an error of Bind means that nothing was written.
	Refused(err error) bool
}

// A Flight has the first of those who want the same thing at once do it, and the others wait
// for what comes of that. A singleflight.Group is one.
type Flight interface {
	Do(key string, do func() (any, error)) (result any, err error, shared bool)
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
	Reads   Flight           // of the API server, by Binds
	Policy  placement.Policy // of GPUs, for pods that name none
	Now     func() time.Time

	NodePolicy placement.Policy // the same of nodes; empty: as for GPUs

	// Alone has Filter name the best node alone. Otherwise Prioritize scores those
	// that fit, beside kube-scheduler's own scores.
	Alone bool

	// NodesToFind is how many of all nodes a kube-scheduler looks for that asks about a
	// sample; nil: as many as by default.
	NodesToFind func(all int) int

	// Neighbours is nil where nobody evicts.
	Neighbours Neighbours

	// Missing says what is not ready yet, and is empty when the cache can be
	// believed.
	Missing func() string

	// Decided is told of each answer about a pod, and Answered how long a verb
	// took. They are nil where nobody wants to know.
	Decided  func(placement.PodRef, decisions.Decision)
	Answered func(verb string, took time.Duration)

	ranker  ranking.Ranker
	looks   looks
	turn    turn
	waiting waiting
	waker   waker
}

// Bind chooses the pod's GPUs on the node and binds it there.
func (e *Extender) Bind(asked context.Context, args *extenderv1.ExtenderBindingArgs) *extenderv1.ExtenderBindingResult {
	ref := placement.PodRef{Namespace: args.PodNamespace, Name: args.PodName, UID: string(args.PodUID)}
	log := e.Log.With(zap.Stringer("pod", ref), zap.String("uid", ref.UID), zap.String("node", args.Node))
	e.turn.ask(e.Now())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(asked), BindTimeout)
	defer cancel()

	e.waiting.answered(ref.UID, nil)
	err := e.prepare(ctx, asked, ref, args.Node)
	before, _ := e.Cache.Node(args.Node)
	var assignment placement.Assignment
	if err == nil {
		assignment, err = e.bind(ctx, asked, ref, args.Node)
	}
	e.tell(ref, e.bound(ref, before, args.Node, assignment, err))
	if err != nil {
		e.Cache.Unexpect(ref.UID, e.Now())
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
	if err := e.mayDecide(ctx, asked); err != nil {
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
	if err := e.mayDecide(ctx, asked); err != nil { // the reads may have taken long
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

// mayDecide returns an error where another may decide by now, or nothing can be sent any more.
func (e *Extender) mayDecide(ctx, asked context.Context) error {
	if missing := e.Missing(); missing != "" {
		return fmt.Errorf("gpumem-extender is not ready: %s", missing)
	}
	if asked.Err() != nil {
		return errors.New("kube-scheduler has hung up")
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the API server has not answered in %v", BindTimeout)
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
