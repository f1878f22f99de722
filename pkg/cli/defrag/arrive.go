package defrag

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/core/defrag"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

const (
	// pollInterval is the interval between checks of the pods.
	pollInterval = time.Second
	// renewalInterval is the interval between renewals of the reservation, which lasts for api.ReservationTime.
	renewalInterval = 20 * time.Second
)

// evictForWaitingPod evicts the pods of a plan for a waiting pod, and waits until the waiting pod has a node. A
// reservation keeps pods of the same or a lower priority off the plan's GPUs, and expires by itself. Neither a
// cordon nor a nomination can replace it: a cordon would exclude the waiting pod too, and kube-scheduler clears a
// nomination whenever it finds no node for the pod.
func (o *Options) evictForWaitingPod(ctx context.Context, c *evictionPlanner, plan defrag.Plan) error {
	if err := o.reserve(ctx, c, plan); err != nil {
		return fmt.Errorf("nothing was evicted: %w", err)
	}
	if err := o.evict(ctx, plan); err != nil {
		return err
	}
	ref := c.waitingPod.Namespace + "/" + c.waitingPod.Name
	polls := 0
	timedOut, err := o.poll(ctx, func(ctx context.Context) (bool, error) {
		node, err := o.waitingPodNode(ctx, c)
		switch {
		case err != nil:
			return false, permanentError(err)
		case node != "":
			fmt.Fprintf(o.Out, "pod/%s is on node %s\n", c.waitingPod.Name, node)
			return true, nil
		}
		if polls++; polls == 1 {
			fmt.Fprintf(o.ErrOut, "waiting for pod/%s to be placed\n", c.waitingPod.Name)
		}
		if time.Duration(polls)*pollInterval%renewalInterval == 0 {
			err = o.reserve(ctx, c, plan)
		}
		return false, permanentError(err)
	})
	if timedOut || ctx.Err() != nil && err != nil {
		return fmt.Errorf("pod %s still waits, and its reservation ends within a minute: kubectl inspect gpumem explain %s shows the reason; run the command again for a new plan", ref, ref)
	}
	return err
}

// reserve writes or renews the reservation in the status of the waiting pod.
func (o *Options) reserve(ctx context.Context, c *evictionPlanner, plan defrag.Plan) error {
	pod := c.waitingPod
	reservation := api.Reservation{Node: plan.Node, GPUs: plan.Assignment.Devices()}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": []any{reservation.Condition(time.Now())}},
	})
	if err == nil {
		_, err = o.cluster.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// podDeletedError is the error for a deleted waiting pod.
type podDeletedError string

func (e podDeletedError) Error() string { return string(e) }

// permanentError returns err if a retry cannot help, and nil for other errors.
func permanentError(err error) error {
	if deleted := podDeletedError(""); errors.As(err, &deleted) || apierrors.IsForbidden(err) {
		return err
	}
	return nil
}

// waitingPodNode returns the node of the waiting pod; empty while it has none.
func (o *Options) waitingPodNode(ctx context.Context, c *evictionPlanner) (string, error) {
	current, err := o.cluster.Client.CoreV1().Pods(c.waitingPod.Namespace).Get(ctx, c.waitingPod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && current.UID != c.waitingPod.UID {
		return "", podDeletedError(fmt.Sprintf("pod %s/%s, for which others were evicted, is gone", c.waitingPod.Namespace, c.waitingPod.Name))
	}
	if err != nil {
		return "", err
	}
	return current.Spec.NodeName, nil
}
