package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/allocation"
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
	retry := minRetry
	for {
		_, _, podsChanged := p.pods.Pods()
		_, offerChanged := p.offer()
		wait := reconcileInterval
		if err := p.reconcile(ctx); err != nil && ctx.Err() == nil {
			p.log.Warn("assignments not reconciled", zap.String("node", p.cfg.Node), zap.Error(err))
			wait, retry = retry, min(2*retry, maxRetry)
		} else {
			retry = minRetry
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
	held, _, err := p.kubelet.List(asking)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.held = held
	p.mu.Unlock()
	s, _ := p.recall()
	p.forgetReports(s)
	_, corrections := settle(s)
	var errs []error
	for _, c := range corrections {
		if n := len(c.Actual.Shares); n != c.Pod.Request.GPUs() {
			p.report(c.Pod.Pod, fmt.Sprintf("the kubelet gave it slots of %d GPUs, and it asks for %d", n, c.Pod.Request.GPUs()))
			continue
		}
		writing, cancel := context.WithTimeout(ctx, p.cfg.WriteWait)
		errs = append(errs, p.correct(writing, c, s.Inventory))
		cancel()
	}
	return errors.Join(errs...)
}

// settle returns the pods with the GPUs that they really have, and what of this
// is to be written.
//
// A pod that was given the GPUs of one that still waits has changed places with
// it, if the two can stand in for one another: the other then waits for the
// GPUs that were planned for the first.
func settle(s allocation.State) ([]allocation.Pod, []allocation.Correction) {
	pods := slices.Clone(s.Pods)
	corrections := allocation.Reconcile(s)
	for _, c := range slices.Clone(corrections) {
		i := slices.IndexFunc(pods, func(p allocation.Pod) bool { return p.Pod == c.Pod.Pod })
		planned := c.Pod.Assignment
		pods[i].Assignment = c.Actual
		if planned.None() {
			continue
		}
		j := slices.IndexFunc(pods, func(p allocation.Pod) bool {
			return p.Pod != c.Pod.Pod && !p.Settled && !holds(s, p) &&
				p.Assignment.SameDevices(c.Actual) && p.Request.Interchangeable(c.Pod.Request)
		})
		if j < 0 {
			continue
		}
		other := allocation.Correction{Pod: pods[j], Actual: planned.WithShares(pods[j].Request)}
		corrections = append(corrections, other)
		pods[j].Assignment = other.Actual
	}
	return pods, corrections
}

// holds reports whether the kubelet has given the pod anything.
func holds(s allocation.State, p allocation.Pod) bool {
	return slices.ContainsFunc(s.Held, func(h allocation.Held) bool {
		return h.Namespace == p.Pod.Namespace && h.Name == p.Pod.Name
	})
}

// correct writes what a pod really has, unless that is written already or being
// written.
func (p *Plugin) correct(ctx context.Context, c allocation.Correction, inv gpu.Inventory) error {
	ref := c.Pod.Pod
	pods, _, _ := p.pods.Pods()
	i := slices.IndexFunc(pods, func(pod allocation.Pod) bool { return pod.Pod == ref })
	if i < 0 || pods[i].Assignment.SameDevices(c.Actual) {
		return nil
	}
	if !p.claim(ref) {
		return nil
	}
	defer p.release(ref)
	if err := p.pods.Correct(ctx, ref, c.Actual, inv); err != nil {
		return err
	}
	was, is := pods[i].Assignment, c.Actual
	p.log.Info("assignment corrected", zap.String("node", p.cfg.Node), zap.Stringer("pod", ref), zap.String("uid", ref.UID),
		zap.Any("devices", is.Devices()), zap.Any("was", was.Devices()), zap.Int64("units", int64(c.Pod.Request.Units())))
	if was.None() {
		p.events.Pod(ref, false, "GPUMemoryPlaced", "placed on "+describe(is, inv)+" by the device plugin of its node: no scheduler of gpumem had placed it")
	} else {
		p.events.Pod(ref, false, "GPUMemoryCorrected", "has "+describe(is, inv)+" and not "+describe(was, inv)+", as was written: the kubelet exchanged it with a pod of the same size")
	}
	return nil
}

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

// forgetReports drops what was told of pods that are gone.
func (p *Plugin) forgetReports(s allocation.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid := range p.reported {
		if !slices.ContainsFunc(s.Pods, func(pod allocation.Pod) bool { return pod.Pod.UID == uid }) {
			delete(p.reported, uid)
		}
	}
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
