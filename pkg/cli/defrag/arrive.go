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
	// look is the interval between checks of the pods.
	look = time.Second
	// renewal is the interval between renewals of the reservation, which lasts for api.ReservationTime.
	renewal = 20 * time.Second
)

// makeWay evicts the pods of a plan for a waiting pod and waits until the pod has a node. A reservation
// keeps all pods except those with a higher priority off the plan's GPUs, and expires by itself. A
// cordon would exclude the waiting pod too, and kube-scheduler clears a nomination whenever it finds no
// node for the pod.
func (o *Options) makeWay(ctx context.Context, c *crowd, plan defrag.Plan) error {
	if err := o.reserve(ctx, c, plan); err != nil {
		return fmt.Errorf("nothing was evicted: %w", err)
	}
	if err := o.evict(ctx, plan); err != nil {
		return err
	}
	ref := c.waits.Namespace + "/" + c.waits.Name
	looks := 0
	late, err := o.poll(ctx, func(ctx context.Context) (bool, error) {
		node, err := o.placed(ctx, c)
		switch {
		case err != nil:
			return false, lasting(err)
		case node != "":
			fmt.Fprintf(o.Out, "pod/%s is on node %s\n", c.waits.Name, node)
			return true, nil
		}
		if looks++; looks == 1 {
			fmt.Fprintf(o.ErrOut, "waiting for pod/%s to be placed\n", c.waits.Name)
		}
		if time.Duration(looks)*look%renewal == 0 {
			err = o.reserve(ctx, c, plan)
		}
		return false, lasting(err)
	})
	if late || ctx.Err() != nil && err != nil {
		return fmt.Errorf("pod %s still waits, and its reservation ends within a minute: kubectl inspect gpumem explain %s shows the reason; run the command again for a new plan", ref, ref)
	}
	return err
}

// reserve writes or renews the reservation in the status of the waiting pod.
func (o *Options) reserve(ctx context.Context, c *crowd, plan defrag.Plan) error {
	pod := c.waits
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

// errGone is the error for a deleted waiting pod.
type errGone string

func (e errGone) Error() string { return string(e) }

// lasting returns err if a retry cannot help, and nil for other errors.
func lasting(err error) error {
	if gone := errGone(""); errors.As(err, &gone) || apierrors.IsForbidden(err) {
		return err
	}
	return nil
}

// placed returns the node of the waiting pod; empty while it has none.
func (o *Options) placed(ctx context.Context, c *crowd) (string, error) {
	now, err := o.cluster.Client.CoreV1().Pods(c.waits.Namespace).Get(ctx, c.waits.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != c.waits.UID {
		return "", errGone(fmt.Sprintf("pod %s/%s, for which others were evicted, is gone", c.waits.Namespace, c.waits.Name))
	}
	if err != nil {
		return "", err
	}
	return now.Spec.NodeName, nil
}
