package binder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/core/ranking"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/podlabels"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/report/history"
)

// Cluster is the API server as the Binder uses it.
type Cluster interface {
	// Pod returns a pod as the watch last showed it, or nil.
	Pod(namespace, name string) *v1.Pod
	// Node returns a node as the watch last showed it, or nil. The caller must not change it.
	Node(name string) *v1.Node
	// ReadPod reads a pod from the API server. It returns nil and no error if there is no such pod.
	ReadPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
	// ReadPodsOn reads from the API server the pods of a node that have not ended. The result includes all
	// pods that are bound at the time of the call.
	ReadPodsOn(ctx context.Context, node string) ([]*v1.Pod, error)
	// Leader reads the current leader of the kube-schedulers; empty: unknown. The name of a process that leads
	// again after another process differs from its name before.
	Leader(ctx context.Context) (string, error)
	// Revision reads the current resource version of the API server. Shown reports whether the watch of pods
	// has shown all changes up to a resource version.
	Revision(ctx context.Context) (string, error)
	Shown(revision string) bool
	// Bind sends a binding. Refused reports whether an error of Bind means that nothing was written. After any
	// other error, the outcome is unknown.
	Bind(ctx context.Context, binding *v1.Binding) error
	Refused(err error) bool
}

// Flight merges concurrent calls with the same key: the first caller runs do, and the others wait for its
// result. A singleflight.Group is a Flight.
type Flight interface {
	Do(key string, do func() (any, error)) (result any, err error, shared bool)
}

// BindTimeout bounds one Bind, including the read that resolves an unknown outcome. It is shorter than the
// timeout for the extender that the chart sets in kube-scheduler's configuration.
const BindTimeout = 8 * time.Second

// Binder binds pods. Its exported fields must not change after the first call.
type Binder struct {
	Self     string // program name for messages
	Log      *zap.Logger
	Names    api.Names
	Cache    *cache.Cache
	Cluster  Cluster
	Reads    Flight           // merges concurrent reads of the API server
	Policies ranking.Policies // for pods that name none
	Now      func() time.Time

	// Leads returns the time since which this process leads, and whether a binding that it sends at this moment is
	// sure to land or fail before another process can lead. Leads is nil if this process takes no part in the
	// election: then the kube-scheduler that leads sends it requests.
	Leads func() (since time.Time, alone bool)

	// Missing returns the data that the cache still lacks; empty: the cache is complete.
	Missing func() string

	// Decided receives each decision about a pod; nil: decisions are not recorded.
	Decided func(placement.PodRef, history.Decision)

	lead  atomic.Pointer[lead] // the lead that was read last; nil: none
	binds sync.WaitGroup       // bindings in progress, and bindings of unknown outcome that may still land

	mu        sync.Mutex
	draining  bool      // Drain has been called
	requested time.Time // time of the last request
	term      time.Time // start of the present term; unused if Leads is set
}

// Record passes a decision about a pod to Decided.
func (b *Binder) Record(ref placement.PodRef, d history.Decision) {
	if b.Decided != nil {
		d.Time = b.Now()
		b.Decided(ref, d)
	}
}

// NotReady returns the reason why this process cannot decide now; empty: it can.
func (b *Binder) NotReady() string {
	b.mu.Lock()
	draining := b.draining
	b.mu.Unlock()
	if draining {
		return b.Self + " is ending"
	}
	if missing := b.Missing(); missing != "" {
		return b.Self + " is not ready: " + missing
	}
	return ""
}

// Reserve picks the pod's GPUs on the node and reserves them until Bind or Release, however long that takes.
// It returns the time of the reservation, which Release needs.
func (b *Binder) Reserve(ref placement.PodRef, nodeName string, req placement.Request) (time.Time, error) {
	now := b.Now()
	_, err := b.Cache.AssumePod(ref, nodeName, req, b.Policies.GPU, now)
	if err == nil {
		b.Cache.HoldPod(ref.UID, true)
	}
	return now, err
}

// Release ends the reservation that Reserve made at the given time, unless a binding of unknown outcome was
// sent.
func (b *Binder) Release(ref placement.PodRef, reserved time.Time) {
	b.Cache.RefusePod(ref.UID, reserved)
	b.Cache.HoldPod(ref.UID, false)
}

// Bind picks the pod's GPUs on the node, or uses the GPUs that are already reserved there, and binds the pod.
// Parameter asked is the caller's context: Bind ignores its end once the binding is sent.
func (b *Binder) Bind(asked context.Context, ref placement.PodRef, nodeName string) error {
	log := b.Log.With(zap.Stringer("pod", ref), zap.String("uid", ref.UID), zap.String("node", nodeName))
	b.RecordRequest()
	b.mu.Lock()
	if !b.draining { // NotReady rejects later Binds, and Drain does not wait for them
		b.binds.Add(1)
		defer b.binds.Done()
	}
	b.mu.Unlock()
	defer b.Cache.HoldPod(ref.UID, false)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(asked), BindTimeout)
	defer cancel()

	err := b.prepare(ctx, asked, ref, nodeName)
	before, _ := b.Cache.Node(nodeName)
	before = before.Without([]placement.Holding{{Pod: ref}})
	var assignment placement.Assignment
	if err == nil {
		assignment, err = b.bind(ctx, asked, ref, nodeName)
	}
	b.Record(ref, b.bindDecision(ref, before, nodeName, assignment, err))
	if err != nil {
		b.Cache.Unexpect(ref.UID)
		log.Info("bind refused", zap.String("reason", reasons.Error(err)))
		return err
	}
	units := gpu.Units(0)
	for _, s := range assignment.Shares {
		units += s.Units
	}
	log.Info("bound", zap.Any("devices", assignment.Devices()), zap.Int64("units", int64(units)))
	return nil
}

// prepare rejects malformed requests, and loads the node's bindings by previous leaders into the cache.
func (b *Binder) prepare(ctx, asked context.Context, ref placement.PodRef, nodeName string) error {
	if ref.Name == "" || ref.Namespace == "" || ref.UID == "" || nodeName == "" {
		return fmt.Errorf("the request must name namespace, name and UID of the pod and the node; it has %q, %q, %q and %q", ref.Namespace, ref.Name, ref.UID, nodeName)
	}
	if err := b.mayDecide(ctx, asked); err != nil {
		return err
	}
	return b.loadNode(ctx, nodeName)
}

func (b *Binder) bind(ctx, asked context.Context, ref placement.PodRef, nodeName string) (placement.Assignment, error) {
	var none placement.Assignment
	pod, err := b.podByUID(ctx, ref)
	if err != nil {
		return none, err
	}
	if pod.Spec.NodeName != "" {
		return b.alreadyBound(pod, nodeName)
	}
	req, err := b.Names.Request(pod)
	if err != nil {
		return none, err
	}
	if err := b.mayDecide(ctx, asked); err != nil { // check again: the reads may have taken long
		return none, err
	}
	if req.Empty() {
		// kube-scheduler also sends pods that request 0 of the resource.
		return none, b.Cluster.Bind(ctx, api.PlainBinding(ref, nodeName))
	}
	now := b.Now()
	assignment, err := b.Cache.AssumePod(ref, nodeName, req, b.Policies.GPU, now)
	if err != nil {
		if on, assumed, known := b.Cache.PodNode(ref.UID); known && !assumed && on == nodeName {
			err = nil // the watch has shown the binding meanwhile; the device plugin will record the GPUs
		}
		return none, err
	}
	node, _ := b.Cache.Node(nodeName)
	binding, err := b.Names.Binding(ref, nodeName, assignment, node)
	if err != nil {
		b.Cache.RefusePod(ref.UID, now)
		return none, err
	}
	// From Kubernetes 1.35 on, the pod gets the labels of the binding as it gets the annotations
	// (k8s.io/kubernetes/pkg/registry/core/pod/storage, setPodNodeAndMetadata).
	binding.Labels = podlabels.WithValues(podlabels.ForAssignment(b.Names, assignment, node))
	if err := b.Cluster.Bind(ctx, binding); err != nil {
		return b.resolveBind(ctx, ref, nodeName, now, err)
	}
	return assignment, nil
}

// mayDecide returns an error if Bind must not send a binding: the process is not ready, another process may
// lead, the caller has disconnected, or BindTimeout has passed.
func (b *Binder) mayDecide(ctx, asked context.Context) error {
	if problem := b.NotReady(); problem != "" {
		return errors.New(problem)
	}
	if asked.Err() != nil {
		return errors.New("kube-scheduler has hung up")
	}
	if !b.MayLead() {
		return errors.New("the Lease was not renewed in time: another may lead soon, or leads")
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the API server has not answered in %v", BindTimeout)
	}
	return nil
}

// MayLead reports whether this process may bind pods: as far as it knows, no other process can lead now.
func (b *Binder) MayLead() bool {
	if b.Leads == nil {
		return true
	}
	_, alone := b.Leads()
	return alone
}

// podByUID returns the pod that kube-scheduler has named, from the watch if possible.
func (b *Binder) podByUID(ctx context.Context, ref placement.PodRef) (*v1.Pod, error) {
	if pod := b.Cluster.Pod(ref.Namespace, ref.Name); pod != nil && string(pod.UID) == ref.UID {
		return pod, nil
	}
	pod, err := b.readPod(ctx, ref)
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

// alreadyBound returns the outcome of Bind for a bound pod: success if it is on the same node.
func (b *Binder) alreadyBound(pod *v1.Pod, nodeName string) (placement.Assignment, error) {
	if pod.Spec.NodeName != nodeName {
		return placement.Assignment{}, fmt.Errorf("pod %s is bound to node %s already", api.Ref(pod), pod.Spec.NodeName)
	}
	assignment, _ := b.Names.AssignmentOf(pod) // the device plugin will correct an unreadable annotation
	return assignment, nil
}

// resolveBind resolves a binding that returned an error: it reads the pod, and then keeps or removes the
// reservation. Parameter decided is the time of the reservation.
func (b *Binder) resolveBind(ctx context.Context, ref placement.PodRef, nodeName string, decided time.Time, cause error) (placement.Assignment, error) {
	cause = fmt.Errorf("bind pod %s to node %s: %w", ref, nodeName, cause)
	pod, err := b.readPod(ctx, ref)
	switch {
	case err == nil && (pod == nil || string(pod.UID) != ref.UID):
		b.Cache.ForgetPod(ref.UID)
	case err == nil && pod.Spec.NodeName != "":
		return b.alreadyBound(pod, nodeName) // the failed attempt, or an earlier one, has bound the pod
	case b.Cluster.Refused(cause):
		b.Cache.RefusePod(ref.UID, decided)
	default:
		b.recordUnknown(decided)
		cause = fmt.Errorf("%w: the outcome is not known; the memory is reserved until it is", cause)
	}
	return placement.Assignment{}, cause
}

// ReviewAssumed reads from the API server the pods whose reservation is older than limit, and resolves their
// bindings.
//
// The limit must exceed the time for which the API server may still process a binding after its sender has
// given up. Otherwise, a binding in progress could land after its memory was allocated to another pod.
func (b *Binder) ReviewAssumed(ctx context.Context, limit time.Duration) {
	before := b.Now().Add(-limit)
	for _, a := range b.Cache.AssumedBefore(before) {
		log := b.Log.With(zap.Stringer("pod", a.Pod), zap.String("uid", a.Pod.UID), zap.String("node", a.Node))
		pod, err := b.readPod(ctx, a.Pod)
		switch {
		case err != nil:
			log.Warn("assumed pod cannot be read; it is assumed as before", zap.Error(err))
		case pod == nil || string(pod.UID) != a.Pod.UID || pod.Spec.NodeName == "":
			b.Cache.ExpirePod(a.Pod.UID, before)
			log.Info("assumed pod forgotten: it is not bound")
		}
	}
}

// bindDecision returns the record of a Bind. Parameter before is the node's state before the Bind.
func (b *Binder) bindDecision(ref placement.PodRef, before placement.Node, name string, assignment placement.Assignment, err error) history.Decision {
	d := history.Decision{Verb: history.Bind, Result: history.Bound, Node: name, Asked: 1, Fit: 1}
	if err != nil {
		d.Result, d.Reason, d.Message, d.Fit = history.Refused, history.Error, reasons.Error(err), 0
		if refusal := (*decide.Refusal)(nil); errors.As(err, &refusal) {
			d.Reason = refusal.Reason
		}
	}
	if pod := b.Cluster.Pod(ref.Namespace, ref.Name); pod != nil && before.Name != "" {
		if req, err := b.Names.Request(pod); err == nil {
			d.Nodes = []history.Node{history.DescribeNode(req, before, assignment)}
		}
	}
	return d
}

// recordUnknown records a binding whose outcome Bind has not learned. The binding counts as in progress until it
// can no longer land.
func (b *Binder) recordUnknown(sent time.Time) {
	b.binds.Add(1)
	time.AfterFunc(sent.Add(BindTimeout).Sub(b.Now()), b.binds.Done)
}

// Drain rejects new Binds. It returns when all sent bindings have been answered or cannot land any more. Then
// another process may decide.
func (b *Binder) Drain() {
	b.mu.Lock()
	b.draining = true
	b.mu.Unlock()
	b.binds.Wait()
}
