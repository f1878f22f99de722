package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/allocation"
	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

const (
	reconcileInterval = time.Minute
	// debounce lets the containers of a pod, and the pods of a burst, be dealt
	// with together.
	debounce = 100 * time.Millisecond
	// How long to wait after a failure: twice as long each time.
	minRetry = time.Second
	maxRetry = time.Minute
)

// Kick makes Reconcile look soon.
func (p *Plugin) Kick() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// Reconcile keeps the assignments of the node's pods what the kubelet made of
// them, until the context is done.
func (p *Plugin) Reconcile(ctx context.Context) error {
	retry, said := minRetry, ""
	for {
		_, _, podsChanged := p.pods.Pods()
		_, offerChanged := p.offer()
		wait := reconcileInterval
		if err := p.reconcile(ctx); err != nil && ctx.Err() == nil {
			if err.Error() != said {
				p.log.Warn("assignments not reconciled", zap.String("node", p.cfg.Node), zap.Error(err))
			}
			said = err.Error()
			wait, retry = retry, min(2*retry, maxRetry)
		} else {
			retry, said = minRetry, ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.kick:
		case <-podsChanged:
		case <-offerChanged:
		case <-time.After(wait):
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(debounce):
		}
	}
}

// reconcile corrects each pod of which something else is written than what it
// has.
func (p *Plugin) reconcile(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, p.cfg.KubeletWait)
	defer cancel()
	pods, complete, _ := p.pods.Pods() // before the kubelet is asked: see allocation.Reconcile
	held, _, err := p.kubelet.List(asking)
	if err != nil {
		return err
	}
	s := p.heardOf(pods, held)
	p.forget()
	if complete {
		p.tally(s)
	}
	return errors.Join(p.correctAll(ctx, s), p.keepAll(ctx, s))
}

// correctAll writes all that is written wrong.
//
// Pods that wait go first. One that has lost its GPU to another gets the
// other's plan, and that can be told only while it is written of the other: if
// it cannot be written, neither is any that is interchangeable with it.
func (p *Plugin) correctAll(ctx context.Context, s allocation.State) error {
	corrections := allocation.Reconcile(s)
	slices.SortStableFunc(corrections, func(a, b allocation.Correction) int {
		return placement.CompareBool(s.Begun(a.Pod.Pod), s.Begun(b.Pod.Pod))
	})
	drifted := 0
	for _, c := range corrections {
		if c.Moves() && s.Begun(c.Pod.Pod) {
			drifted++
		}
	}
	p.metrics.Drifted(drifted)
	var errs []error
	var unwritten []placement.Request // of pods that wait
	for _, c := range corrections {
		if !c.Asked() {
			p.report(c.Pod.Pod, mixed(c.Pod, c.Actual))
		}
		if !c.Whole() {
			continue
		}
		if slices.ContainsFunc(unwritten, c.Pod.Request.Interchangeable) {
			continue
		}
		err := p.write(ctx, c.Pod.Pod, &c, s)
		if !errors.Is(err, errBeingWritten) {
			errs = append(errs, err)
		}
		if err != nil && !s.Begun(c.Pod.Pod) {
			unwritten = append(unwritten, c.Pod.Request)
		}
	}
	return errors.Join(errs...)
}

// errBeingWritten says that another call is writing the pod's assignment. When
// that is done, the loop looks again.
var errBeingWritten = errors.New("the assignment is being written")

// keepAll writes what is not so of pods that are where they are written to be, or that cannot be
// corrected yet.
func (p *Plugin) keepAll(ctx context.Context, s allocation.State) error {
	var errs []error
	for _, pod := range s.Pods {
		if _, differs := p.wanted(pod, nil, s); !differs || !pod.Settled {
			continue
		}
		if err := p.write(ctx, pod.Pod, nil, s); !errors.Is(err, errBeingWritten) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// wanted returns the assignment that is to be written of a pod, and whether it, or what belongs
// beside it, is something else than what is written now. That is what a correction says, if there
// is one, or else what is written; and at the level at which the pod was given what it has, where
// its node had another when the pod was bound to it.
func (p *Plugin) wanted(pod allocation.Pod, c *allocation.Correction, s allocation.State) (is placement.Assignment, differs bool) {
	was, level := pod.Assignment, p.levelOf(s, pod)
	switch {
	case c != nil:
		is = c.Actual
		is.Enforcement = level
		is.ByNode = was.ByNode || was.None() && len(c.Pod.Indexes) == 0 && !planned(c.Pod)
		return is, !was.Same(is)
	case was.None():
		return was, false
	}
	is = was
	if level != "" && level != cmp.Or(was.Enforcement, gpu.EnforcementAdvisory) {
		is.Enforcement = level
	}
	return is, is.Enforcement != was.Enforcement || p.stale(pod, s.Inventory)
}

// write writes what is wanted of a pod, unless that is written already or being written. Nothing
// else writes of a pod.
func (p *Plugin) write(ctx context.Context, ref placement.PodRef, c *allocation.Correction, s allocation.State) error {
	claimed := p.claim(ref)
	if claimed {
		defer p.release(ref)
	}
	pods, _, _ := p.pods.Pods() // with what has just been written
	i := slices.IndexFunc(pods, func(pod allocation.Pod) bool { return pod.Pod == ref })
	if i < 0 {
		return nil
	}
	was := pods[i].Assignment
	is, differs := p.wanted(pods[i], c, s)
	switch {
	case !differs:
		return nil
	case !claimed:
		return errBeingWritten
	}
	writing, cancel := context.WithTimeout(ctx, p.cfg.WriteWait)
	defer cancel()
	if err := p.pods.Correct(writing, ref, is, s.Inventory); err != nil {
		return err
	}
	switch {
	case c == nil && is.Enforcement != was.Enforcement:
		p.tellLevel(ref, was, is)
	case c != nil:
		p.wrote(ref, is)
		if !was.SameDevices(is) { // else it has left its old GPUs for good: that has been told
			p.tellCorrected(*c, was, is, s)
		}
	}
	return nil
}

// stale reports whether what is written beside a pod's assignment is not so: gpushare's mark, or
// the indexes, which somebody may have changed, or the driver, and which are told of GPUs that
// are there. In gpushare's place the indexes are left alone: one writing puts gpushare's own
// right too, which may be all that tells where a pod is that was taken over.
func (p *Plugin) stale(pod allocation.Pod, inv gpu.Inventory) bool {
	if p.cfg.GPUShare {
		return pod.Unmarked
	}
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

// mixed says that a pod has slots of more GPUs than it asks for, or of fewer.
func mixed(pod allocation.Pod, actual placement.Assignment) string {
	return fmt.Sprintf("pod %s has slots of %d GPUs and asks for %d: delete it, to have it placed again",
		pod.Pod, len(actual.Shares), pod.Request.GPUs())
}

// tellCorrected logs, counts and tells the pod that its assignment was corrected.
func (p *Plugin) tellCorrected(c allocation.Correction, was, is placement.Assignment, s allocation.State) {
	ref, inv := c.Pod.Pod, s.Inventory
	p.log.Info("assignment corrected", zap.String("node", p.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID),
		zap.Any("devices", is.Devices()), zap.Any("was", was.Devices()), zap.Int64("units", int64(c.Pod.Request.Units())))
	switch {
	case was.None() && len(c.Pod.Indexes) > 0:
		p.events.Pod(ref, false, "GPUMemoryTakenOver", "counts on "+describe(is, inv)+", which gpushare had chosen for it")
	case planned(c.Pod) && (was.None() || c.Pod.Plan.SameDevices(is)):
		p.metrics.Corrected(ReasonPlaced)
		p.events.Pod(ref, true, "GPUMemoryCorrected", "has "+describe(is, inv)+", which is written again: somebody had changed the pod's assignment, or taken it away")
	case was.None():
		p.metrics.Corrected(ReasonPlaced)
		p.events.Pod(ref, false, "GPUMemoryPlaced", "placed on "+describe(is, inv)+" by the device plugin of its node: no scheduler of gpumem had placed it")
	case !c.Asked():
		p.metrics.Corrected(ReasonHeld)
		p.events.Pod(ref, true, "GPUMemoryCorrected", "has "+describe(is, inv)+" and not "+describe(was, inv)+", as was written: the number of its GPUs was changed after the kubelet had given it those")
	case s.Begun(c.Pod.Pod):
		p.metrics.Corrected(ReasonHeld)
		p.events.Pod(ref, false, "GPUMemoryCorrected", "has "+describe(is, inv)+" and not "+describe(was, inv)+", as was written: the kubelet took it for a pod of the same size")
	default:
		p.metrics.Corrected(ReasonPlanned)
		p.events.Pod(ref, false, "GPUMemoryCorrected", "is to have "+describe(is, inv)+" instead of "+describe(was, inv)+", which the kubelet gave to a pod of the same size")
	}
}

// tellLevel logs and tells the pod that the level of its assignment was corrected.
func (p *Plugin) tellLevel(ref placement.PodRef, from, to placement.Assignment) {
	level, was := to.Enforcement, cmp.Or(from.Enforcement, gpu.EnforcementAdvisory)
	p.log.Info("level corrected", zap.String("node", p.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID),
		zap.String("level", string(level)), zap.String("was", string(was)))
	p.events.Pod(ref, !level.AtLeast(was), "GPUMemoryEnforcement",
		fmt.Sprintf("is held to its grant at level %s: the node had %s when the pod was bound to it", level, was))
}

// planned reports whether a scheduler planned where the pod is.
func planned(pod allocation.Pod) bool { return !pod.Plan.None() && !pod.Plan.ByNode }

func (p *Plugin) claim(ref placement.PodRef) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing[ref.UID] {
		return false
	}
	p.writing[ref.UID] = true
	return true
}

func (p *Plugin) release(ref placement.PodRef) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.writing, ref.UID)
}

// report tells once of a pod whose slots no assignment can describe.
func (p *Plugin) report(ref placement.PodRef, note string) {
	p.mu.Lock()
	told := p.reported[ref.UID]
	p.reported[ref.UID] = true
	p.mu.Unlock()
	if told {
		return
	}
	p.log.Error("slots of the pod are not what it asks for", zap.String("node", p.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID), zap.String("reason", note))
	p.events.Pod(ref, true, "GPUMemoryMixed", note)
}

// forget drops what is known of pods that are gone by now.
func (p *Plugin) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods, _, _ := p.pods.Pods()
	here := make(map[string]bool, len(pods))
	for _, pod := range pods {
		here[pod.Pod.UID] = true
	}
	maps.DeleteFunc(p.reported, func(uid string, _ bool) bool { return !here[uid] })
	maps.DeleteFunc(p.plans, func(uid string, _ placement.Assignment) bool { return !here[uid] })
}

// wrote records what this node has written of a pod.
func (p *Plugin) wrote(ref placement.PodRef, a placement.Assignment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans[ref.UID] = a
}

// describe names the GPUs of an assignment for people.
func describe(a placement.Assignment, inv gpu.Inventory) string {
	var parts []string
	for _, uuid := range a.Devices() {
		index := "?"
		if d, ok := inv.Device(uuid); ok {
			index = strconv.Itoa(d.Index)
		}
		parts = append(parts, fmt.Sprintf("GPU %s (%s)", index, uuid))
	}
	return strings.Join(parts, ", ")
}
