package grants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/process/operation"
)

const (
	reconcileInterval = time.Minute
	// debounce groups the containers of a pod, and the pods of a burst, into one pass.
	debounce = 100 * time.Millisecond
	// The pause after a failure doubles from minRetry to maxRetry.
	minRetry = time.Second
	maxRetry = time.Minute
)

// Metrics receives the differences between annotated and actual assignments.
type Metrics interface {
	// Drifted reports the number of pods whose annotation differs from their allocation.
	Drifted(pods int)
	// Corrected reports that an assignment was written. The reason is one of the Reasons.
	Corrected(reason string)
}

// Reasons to write an assignment.
const (
	ReasonPlaced  = "placed"  // the pod had no assignment, or somebody has changed it
	ReasonHeld    = "held"    // the kubelet has allocated other GPUs to the pod
	ReasonPlanned = "planned" // the kubelet has allocated the pod's GPUs to another pod, and the pod inherits that pod's plan
)

// Reconciler writes the actual assignments of the node's pods to their annotations.
type Reconciler struct {
	cfg     Config
	state   *State
	pods    Pods
	events  event.Events
	metrics Metrics
	log     *zap.Logger

	kick chan struct{} // capacity 1: requests a pass
	turn chan struct{} // capacity 1: held by the one write in progress

	mu       sync.Mutex      // guards the rest
	reported map[string]bool // UIDs of pods that Mixed has reported
}

// NewReconciler returns a reconciler.
func NewReconciler(cfg Config, state *State, pods Pods, events event.Events, metrics Metrics, log *zap.Logger) *Reconciler {
	return &Reconciler{
		cfg: cfg, state: state, pods: pods, events: events, metrics: metrics, log: log,
		kick: make(chan struct{}, 1), turn: make(chan struct{}, 1), reported: make(map[string]bool),
	}
}

// Kick requests a pass from Run.
func (r *Reconciler) Kick() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run reconciles the assignments of the node's pods until the context is done.
func (r *Reconciler) Run(ctx context.Context) error {
	retry, lastMessage := minRetry, ""
	for {
		_, _, podsChanged := r.pods.Pods()
		_, offerChanged := r.state.offers.Current()
		delay := reconcileInterval
		if err := r.Pass(ctx); err != nil && ctx.Err() == nil {
			if err.Error() != lastMessage {
				r.log.Warn("assignments not reconciled", zap.String("node", r.cfg.Node), zap.Error(err))
			}
			lastMessage = err.Error()
			delay, retry = retry, min(2*retry, maxRetry)
		} else {
			retry, lastMessage = minRetry, ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.kick:
		case <-podsChanged:
		case <-offerChanged:
		case <-time.After(delay):
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(debounce):
		}
	}
}

// Pass corrects all pods whose annotations differ from their allocations.
func (r *Reconciler) Pass(ctx context.Context) error {
	s, complete, err := r.state.SnapshotOnce(ctx)
	if err != nil {
		return err
	}
	r.forget()
	if complete {
		r.state.tally(s)
	}
	return errors.Join(r.Correct(ctx, s), r.correctOthers(ctx, s), r.refresh(ctx))
}

// refresh lists the pods from the API server while Pods.HasUnwatched reports true, because only a list can then
// show the deletion of a pod.
func (r *Reconciler) refresh(ctx context.Context) error {
	if !r.pods.HasUnwatched() {
		return nil
	}
	listing, cancel := context.WithTimeout(ctx, r.cfg.WriteWait)
	defer cancel()
	return r.pods.Refresh(listing)
}

// Correct writes the corrections of assignments.
//
// It writes waiting pods first. A waiting pod inherits the plan of the pod that got its GPU. Correct can
// compute this plan only while the other pod's annotation still contains it. If the write of a waiting pod
// fails, Correct writes no pod that is interchangeable with it.
func (r *Reconciler) Correct(ctx context.Context, s allocation.State) error {
	corrections := allocation.Reconcile(s)
	slices.SortStableFunc(corrections, func(a, b allocation.Correction) int {
		return placement.CompareBool(hasSlots(s, a.Pod.Pod), hasSlots(s, b.Pod.Pod))
	})
	drifted := 0
	for _, c := range corrections {
		if c.Moves() && hasSlots(s, c.Pod.Pod) {
			drifted++
		}
	}
	r.metrics.Drifted(drifted)
	var errs []error
	var unwritten []placement.Request // requests of waiting pods whose write has failed
	for _, c := range corrections {
		if !c.HasRequestedCount() {
			_ = r.Mixed(ctx, c.Pod, len(c.Actual.Shares)) // records an event
		}
		if !c.Whole() {
			continue
		}
		if slices.ContainsFunc(unwritten, c.Pod.Request.Interchangeable) {
			continue
		}
		err := r.write(ctx, c.Pod.Pod, &c, s)
		if errs = append(errs, err); err != nil && !hasSlots(s, c.Pod.Pod) {
			unwritten = append(unwritten, c.Pod.Request)
		}
	}
	return errors.Join(errs...)
}

// correctOthers corrects the level and the GPU indexes of admitted pods, also of pods whose GPUs cannot be
// corrected yet.
func (r *Reconciler) correctOthers(ctx context.Context, s allocation.State) error {
	var errs []error
	for _, pod := range s.Pods {
		if _, differs := r.desiredAssignment(pod, nil, s); differs && pod.Admitted {
			errs = append(errs, r.write(ctx, pod.Pod, nil, s))
		}
	}
	return errors.Join(errs...)
}

// WriteLevel writes the level of a pod's grants if the annotation differs. The annotation can contain the level
// that the node had at the time of the Binding.
func (r *Reconciler) WriteLevel(ctx context.Context, pod allocation.Pod, s allocation.State) error {
	if desired, _ := r.desiredAssignment(pod, nil, s); desired.Enforcement == pod.Assignment.Enforcement {
		return nil
	}
	return r.write(ctx, pod.Pod, nil, s)
}

// desiredAssignment returns the desired assignment of a pod, and whether any annotation must change. The
// assignment is the correction `c` or, if it is nil, the annotation, with the level of the pod's grants.
func (r *Reconciler) desiredAssignment(pod allocation.Pod, c *allocation.Correction, s allocation.State) (desired placement.Assignment, differs bool) {
	current, level := pod.Assignment, r.state.LevelOf(s, pod)
	switch {
	case c != nil:
		desired = c.Actual
		desired.Enforcement = level
		desired.ByNode = current.ByNode || current.None() && !planned(c.Pod)
		return desired, !current.Same(desired)
	case current.None():
		return current, false
	}
	desired = current
	if level != "" && level != cmp.Or(current.Enforcement, gpu.EnforcementAdvisory) {
		desired.Enforcement = level
	}
	return desired, desired.Enforcement != current.Enforcement || stale(pod, s.Inventory)
}

// write waits until no other write is in progress, and writes the desired annotations of a pod. It does nothing
// if the pod already has them. No other function writes these annotations.
func (r *Reconciler) write(ctx context.Context, ref placement.PodRef, c *allocation.Correction, s allocation.State) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.WriteWait)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return fmt.Errorf("write the assignment of pod %s after another write: %w", ref, ctx.Err())
	}
	pods, _, _ := r.pods.Pods() // includes recent writes
	i := slices.IndexFunc(pods, func(pod allocation.Pod) bool { return pod.Pod == ref })
	if i < 0 {
		return nil
	}
	current := pods[i].Assignment
	desired, differs := r.desiredAssignment(pods[i], c, s)
	if !differs {
		return nil
	}
	if err := r.pods.Correct(ctx, ref, desired, s.Inventory); err != nil {
		return err
	}
	switch {
	case c == nil && desired.Enforcement != current.Enforcement:
		r.reportLevel(ctx, ref, current, desired)
	case c != nil:
		r.state.recordPlan(ref, desired)
		if !current.SameDevices(desired) { // otherwise the pod only leaves its old GPUs, and an earlier event has reported the move
			r.reportCorrected(ctx, *c, current, desired, s)
		}
	}
	return nil
}

// stale reports whether the annotation with the indexes differs from the assignment. A user may have edited it,
// or the driver may have renumbered the GPUs. If the inventory lacks one of the pod's GPUs, stale returns
// false, because the GPU's index is unknown.
func stale(pod allocation.Pod, inv gpu.Inventory) bool {
	var indexes []int
	for _, id := range pod.Assignment.Devices() {
		d, known := inv.Device(id)
		if !known {
			return false
		}
		indexes = append(indexes, d.Index)
	}
	return pod.Index != api.FormatIndexes(indexes)
}

// planned reports whether a scheduler planned the pod's assignment.
func planned(pod allocation.Pod) bool { return !pod.Plan.None() && !pod.Plan.ByNode }

// CheckLock blocks while the lock is held: see State.CheckLock.
func (r *Reconciler) CheckLock() {
	r.mu.Lock()
	defer r.mu.Unlock()
}

// Mixed returns an error for a pod that has slots on more or fewer GPUs than it requests. It records one event
// per pod.
func (r *Reconciler) Mixed(ctx context.Context, pod allocation.Pod, gpus int) error {
	ref, mixed := pod.Pod, fmt.Errorf("pod %s has slots of %d GPUs and asks for %d: delete it, to have it placed again",
		pod.Pod, gpus, pod.Request.GPUs())
	r.mu.Lock()
	told := r.reported[ref.UID]
	r.reported[ref.UID] = true
	r.mu.Unlock()
	if !told {
		operation.Log(ctx, r.log).Error("the pod's slots do not match its request", zap.String("node", r.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID), zap.String("reason", mixed.Error()))
		r.events.Pod(ref, event.Mixed, mixed.Error())
	}
	return mixed
}

// forget drops the state of pods that no longer exist.
func (r *Reconciler) forget() {
	pods, complete, _ := r.pods.Pods()
	here := make(map[string]bool, len(pods))
	for _, pod := range pods {
		here[pod.Pod.UID] = true
	}
	r.state.Prune(here, complete)
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.reported, func(uid string, _ bool) bool { return !here[uid] })
}

// hasSlots reports whether the kubelet has already allocated slots to a container of the pod.
func hasSlots(s allocation.State, pod placement.PodRef) bool {
	return slices.ContainsFunc(s.Allocated, func(h allocation.Allocated) bool { return h.BelongsTo(pod) })
}
