package defrag

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpumem/gpumem/pkg/cli/cordon"
	"github.com/gpumem/gpumem/pkg/core/defrag"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/evict"
)

// freeGPUs evicts the pods of a plan that frees GPUs. It cordons the GPUs until the replacements of the
// evicted pods have nodes, because the replacements would otherwise take the same GPUs.
func (o *Options) freeGPUs(ctx context.Context, c *evictionPlanner, plan defrag.Plan) (err error) {
	for _, id := range plan.Assignment.Devices() {
		_, changed, failed := cordon.WriteCordon(ctx, o.cluster, plan.Node, string(id), true, "defrag")
		if changed { // true also if the reply was lost; false for another user's cordon, which must remain
			defer func() {
				// Uncordon after an interrupt too.
				_, _, e := cordon.WriteCordon(context.WithoutCancel(ctx), o.cluster, plan.Node, string(id), false, "")
				err = errors.Join(err, e)
			}()
		}
		if failed != nil {
			return failed
		}
	}
	if err := o.evict(ctx, plan); err != nil {
		return err
	}
	var pending string
	timedOut, err := o.poll(ctx, func(ctx context.Context) (bool, error) {
		event, err := o.pendingEvent(ctx, c, plan)
		if err == nil {
			pending = event
		}
		return err == nil && event == "", permanentError(err)
	})
	if timedOut {
		return fmt.Errorf("the GPUs were not freed within %s: %s", o.timeout, pending)
	}
	return err
}

// poll checks a condition until it is true. The result timedOut is true if --timeout passes first.
func (o *Options) poll(ctx context.Context, condition wait.ConditionWithContextFunc) (timedOut bool, err error) {
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	switch err = wait.PollUntilContextCancel(limited, pollInterval, true, condition); {
	case ctx.Err() != nil && err != nil:
		return false, errors.New("interrupted")
	case limited.Err() != nil && err != nil: // after the timeout, the client may return any error
		return true, nil
	default:
		return false, err
	}
}

// evict evicts the pods of a plan. It stops at the first pod whose eviction fails, and skips pods that
// are gone.
func (o *Options) evict(ctx context.Context, plan defrag.Plan) error {
	for i, m := range plan.Moves {
		switch gone, err := evict.Pod(ctx, o.cluster.Client, m.Pod.Pod, nil); {
		case evict.IsRefusal(err):
			return fmt.Errorf("pod %s may not be evicted now; evicted: %d of %d: %w", m.Pod.Pod, i, len(plan.Moves), err)
		case err != nil:
			return fmt.Errorf("pod %s; evicted: %d of %d: %w", m.Pod.Pod, i, len(plan.Moves), err)
		case !gone:
			fmt.Fprintf(o.Out, "pod/%s evicted\n", m.Pod.Pod.Name)
		}
	}
	return nil
}

// pendingEvent describes a change that freeGPUs still waits for: the end of an evicted pod, or its controller having
// as many pods on nodes as before. It returns "" if freeGPUs waits for nothing.
func (o *Options) pendingEvent(ctx context.Context, c *evictionPlanner, plan defrag.Plan) (string, error) {
	for _, m := range plan.Moves {
		list, err := o.cluster.Client.CoreV1().Pods(m.Pod.Pod.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		owner := metav1.GetControllerOf(c.pods[m.Pod.Pod.UID])
		placed := 0
		for i := range list.Items {
			pod := &list.Items[i]
			if string(pod.UID) == m.Pod.Pod.UID {
				return fmt.Sprintf("pod %s has not ended yet", m.Pod.Pod), nil
			}
			placed += countPlaced(owner, pod)
		}
		placedBefore := 0
		for _, pod := range c.pods {
			placedBefore += countPlaced(owner, pod)
		}
		if placed < placedBefore {
			return fmt.Sprintf("%s of namespace %s has %d of %d pods on nodes", controllerName(owner), m.Pod.Pod.Namespace, placed, placedBefore), nil
		}
	}
	return "", nil
}

// countPlaced returns 1 if the controller owns the pod, and the pod is on a node and neither ended nor
// terminating. Otherwise it returns 0.
func countPlaced(owner *metav1.OwnerReference, pod *v1.Pod) int {
	podOwner := metav1.GetControllerOf(pod)
	if owner == nil || podOwner == nil || podOwner.UID != owner.UID || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || api.Terminal(pod) {
		return 0
	}
	return 1
}
