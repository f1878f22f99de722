package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/event"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/process/operation"
)

// prefer returns preferred slots. If no known pod matches the call, it first waits for the pod (podWaiter).
func (p *Server) prefer(ctx context.Context, r gpu.Resource, available, required []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	waiting, cancel := context.WithTimeout(ctx, p.cfg.PodWait)
	defer cancel()
	waiter := podWaiter{server: p}
	for {
		s, changed, _ := p.state.Snapshot(waiting)
		ids, err := preferListed(s, r, available, required, size)
		if errors.Is(err, allocation.ErrNoPod) {
			if waiter.wait(waiting, changed) {
				continue
			}
			if ctx.Err() != nil {
				return nil, fmt.Errorf("the kubelet did not wait: %w", ctx.Err())
			}
			s, _, _ = p.state.Snapshot(ctx) // the state from before the wait is outdated
			ids, err = p.preferForUnknownPod(ctx, s, r, available, required, size)
		}
		if err != nil {
			p.refuse(ctx, s, r, size, err)
			return nil, err
		}
		operation.Log(ctx, p.log).Debug("slots preferred", zap.String("node", p.cfg.Node), zap.Stringer("resource", r), zap.Int("slots", size), zap.Strings("devices", deviceNames(s, ids)))
		return ids, nil
	}
}

// podWaiter waits for an unknown pod.
type podWaiter struct {
	server   *Server
	answered bool // the API server has answered a list of the pods
}

// podWaitParts is the number of parts of Config.PodWait. After each part, wait may call the API server.
const podWaitParts = 20

// wait returns true when the pods have changed, and false when the pod remains unknown. Usually the watch
// delivers the pod. But a broken watch recovers long after the API server. So after PodWait/podWaitParts, wait
// lists the pods from the API server, and repeats the list until it succeeds once.
func (n *podWaiter) wait(ctx context.Context, changed <-chan struct{}) bool {
	for {
		select {
		case <-changed:
			return true
		case <-ctx.Done():
			return false
		case <-time.After(n.server.cfg.PodWait / podWaitParts):
		}
		if n.answered {
			return false
		}
		err := n.server.pods.Refresh(ctx)
		if n.answered = err == nil; err != nil {
			operation.Log(ctx, n.server.log).Warn("the API server does not tell of the pod that the kubelet asks for", zap.String("node", n.server.cfg.Node), zap.Error(err))
		}
	}
}

// preferListed returns the result of allocation.Prefer, or ErrNoPod if no pod that the kubelet lists waits: the
// kubelet lists the pod for which it calls. For this check, preferListed skips admitted pods whose allocations
// the kubelet never lists (Pod.Unlisted): such a pod seems to wait for its slots for as long as it runs.
func preferListed(s allocation.State, r gpu.Resource, available, required []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	if s.Listed != nil {
		listed := s
		listed.Pods = slices.DeleteFunc(slices.Clone(s.Pods), func(pod allocation.Pod) bool {
			return !s.Listed[pod.Pod.String()] || pod.Admitted && pod.Unlisted()
		})
		ids, err := allocation.Prefer(listed, r, available, required, size)
		if errors.Is(err, allocation.ErrNoPod) || len(listed.Pods) == len(s.Pods) {
			return ids, err
		}
	}
	return allocation.Prefer(s, r, available, required, size)
}

// preferForUnknownPod selects slots for a pod that has not become known in time. Such a pod gets no cores, because the
// GPU of its memory is unknown.
func (p *Server) preferForUnknownPod(ctx context.Context, s allocation.State, r gpu.Resource, available, required []gpu.SlotID, size int) ([]gpu.SlotID, error) {
	ids, err := allocation.Prefer(s, r, available, required, size)
	if !errors.Is(err, allocation.ErrNoPod) {
		return ids, err
	}
	if !p.placesUnknown(r) {
		return nil, p.unknownPodError(s, r, size, err)
	}
	stranger := allocation.Pod{Holding: placement.Holding{
		Pod:     placement.PodRef{Namespace: "unknown", Name: "unknown"},
		Request: placement.Request{Containers: placement.NewContainers(placement.Container{Kind: placement.App, Units: gpu.Units(size)})},
	}}
	s.Pods = append(slices.Clone(s.Pods), stranger)
	s.Listed = nil
	ids, err = allocation.Prefer(s, r, available, required, size)
	if err == nil {
		operation.Log(ctx, p.log).Warn("placed without knowing the pod", zap.String("node", p.cfg.Node), zap.Int("units", size),
			zap.Strings("devices", deviceNames(s, ids)))
	}
	return ids, err
}

func (p *Server) placesUnknown(r gpu.Resource) bool { return p.cfg.PlaceUnassigned && r == gpu.Memory }

func (p *Server) unknownPodError(s allocation.State, r gpu.Resource, size int, err error) error {
	reason := "this node refuses pods that no scheduler of gpumem has placed"
	if p.cfg.PlaceUnassigned {
		reason = "cores go to a pod that is known to ask for memory too"
	}
	return fmt.Errorf("%w: %s: the API server has not reported it yet, and %s", err, reasons.Slots(r, size, s.Inventory.UnitMiB), reason)
}

// admit interprets the slots that the kubelet took. If no known pod requests this amount, admit waits for the
// pod before it returns an error. It returns the containers for which the kubelet may have called, the
// likeliest first, and none for an unknown pod.
func (p *Server) admit(ctx context.Context, r gpu.Resource, ids []gpu.SlotID) (possible []allocation.Attributed, _ allocation.Grant, _ gpu.Inventory, _ error) {
	waiting, cancel := context.WithTimeout(ctx, p.cfg.PodWait)
	defer cancel()
	waiter := podWaiter{server: p}
	for {
		s, changed, _ := p.state.Snapshot(waiting)
		grant, err := allocation.Resolve(s, r, ids)
		if err != nil {
			operation.Log(ctx, p.log).Warn("refused", zap.String("node", p.cfg.Node), zap.Stringer("resource", r), zap.Int("slots", len(ids)), zap.Error(err))
			return nil, allocation.Grant{}, gpu.Inventory{}, err
		}
		possible, err = allocation.Admit(s, grant)
		if errors.Is(err, allocation.ErrNoPod) {
			if waiter.wait(waiting, changed) {
				continue
			}
			switch {
			case ctx.Err() != nil:
				err = fmt.Errorf("the kubelet did not wait: %w", ctx.Err())
			case p.placesUnknown(r):
				err = nil
			default:
				err = p.unknownPodError(s, r, len(ids), err)
			}
		}
		if err != nil {
			p.refuse(ctx, s, r, len(ids), err)
			return nil, allocation.Grant{}, gpu.Inventory{}, err
		}
		return possible, grant, s.Inventory, nil
	}
}

// refuse logs a refusal. If only one pod can be affected, it also records an event on that pod.
func (p *Server) refuse(ctx context.Context, s allocation.State, r gpu.Resource, size int, err error) {
	reason := reasons.Error(err)
	operation.Log(ctx, p.log).Warn("refused", zap.String("node", p.cfg.Node), zap.Stringer("resource", r), zap.Int("slots", size), zap.String("error", reason))
	var meant []placement.PodRef
	for _, pod := range s.Pods {
		asks := slices.ContainsFunc(pod.Request.Containers.All(), func(c placement.Container) bool { return allocation.Amount(r, c) == size })
		served := slices.ContainsFunc(s.Allocated, func(h allocation.Allocated) bool { return h.BelongsTo(pod.Pod) && len(h.SlotsOf(r)) > 0 })
		if asks && !served && (s.Listed == nil || s.Listed[pod.Pod.String()]) {
			meant = append(meant, pod.Pod)
		}
	}
	if len(meant) == 1 {
		p.events.Pod(meant[0], event.Refused, reason)
	}
}
