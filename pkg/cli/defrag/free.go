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

// free evicts the pods of a plan that frees GPUs. It cordons the GPUs until the replacements of the
// evicted pods have nodes, because they would otherwise take the same GPUs.
func (o *Options) free(ctx context.Context, c *crowd, plan defrag.Plan) (err error) {
	for _, id := range plan.Assignment.Devices() {
		_, changed, failed := cordon.Write(ctx, o.cluster, plan.Node, string(id), true, "defrag")
		if changed { // also if the reply was lost; cordons of other users remain
			defer func() {
				// Uncordon after an interrupt too.
				_, _, e := cordon.Write(context.WithoutCancel(ctx), o.cluster, plan.Node, string(id), false, "")
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
	var waitsFor string
	late, err := o.poll(ctx, func(ctx context.Context) (bool, error) {
		yet, err := o.waitsFor(ctx, c, plan)
		if err == nil {
			waitsFor = yet
		}
		return err == nil && yet == "", lasting(err)
	})
	if late {
		return fmt.Errorf("the GPUs were not freed within %s: %s", o.timeout, waitsFor)
	}
	return err
}

// poll checks a condition until it holds. Late is true if --timeout passes first.
func (o *Options) poll(ctx context.Context, so wait.ConditionWithContextFunc) (late bool, err error) {
	limited, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	switch err = wait.PollUntilContextCancel(limited, look, true, so); {
	case ctx.Err() != nil && err != nil:
		return false, errors.New("interrupted")
	case limited.Err() != nil && err != nil: // the client may return any error then
		return true, nil
	default:
		return false, err
	}
}

// evict evicts the pods of a plan. It stops at the first pod that may not be evicted, and skips pods
// that are gone.
func (o *Options) evict(ctx context.Context, plan defrag.Plan) error {
	for i, m := range plan.Moves {
		switch gone, err := evict.Pod(ctx, o.cluster.Client, m.Pod.Pod, nil); {
		case evict.Refused(err):
			return fmt.Errorf("pod %s may not be evicted now; evicted: %d of %d: %w", m.Pod.Pod, i, len(plan.Moves), err)
		case err != nil:
			return fmt.Errorf("pod %s; evicted: %d of %d: %w", m.Pod.Pod, i, len(plan.Moves), err)
		case !gone:
			fmt.Fprintf(o.Out, "pod/%s evicted\n", m.Pod.Pod.Name)
		}
	}
	return nil
}

// waitsFor describes the next event that free waits for: an evicted pod has to end, or its controller
// needs as many pods on nodes as before. It returns "" when all have happened.
func (o *Options) waitsFor(ctx context.Context, c *crowd, plan defrag.Plan) (string, error) {
	for _, m := range plan.Moves {
		list, err := o.cluster.Client.CoreV1().Pods(m.Pod.Pod.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		owner := metav1.GetControllerOf(c.pods[m.Pod.Pod.UID])
		now := 0
		for i := range list.Items {
			pod := &list.Items[i]
			if string(pod.UID) == m.Pod.Pod.UID {
				return fmt.Sprintf("pod %s has not ended yet", m.Pod.Pod), nil
			}
			now += placedBy(owner, pod)
		}
		before := 0
		for _, pod := range c.pods {
			before += placedBy(owner, pod)
		}
		if now < before {
			return fmt.Sprintf("%s of namespace %s has %d of %d pods on nodes", controller(owner), m.Pod.Pod.Namespace, now, before), nil
		}
	}
	return "", nil
}

// placedBy returns 1 if the controller owns the pod and the pod is on a node and not ending, else 0.
func placedBy(owner *metav1.OwnerReference, pod *v1.Pod) int {
	of := metav1.GetControllerOf(pod)
	if owner == nil || of == nil || of.UID != owner.UID || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || api.Terminal(pod) {
		return 0
	}
	return 1
}
