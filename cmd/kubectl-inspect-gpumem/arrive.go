package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/defrag"
	"github.com/gpumem/gpumem/pkg/gpu"
	"github.com/gpumem/gpumem/pkg/placement"
)

// arrive waits until the pod that room was made for has a node: others that wait may be
// faster, and it is told who was.
func (d *defragmentation) arrive(ctx context.Context, c *crowd, plan defrag.Plan) error {
	ref := c.waits.Namespace + "/" + c.waits.Name
	var seen []string // who has come to the plan's GPUs since
	var now clearing
	first := true
	err := wait.PollUntilContextTimeout(ctx, time.Second, d.timeout, true, func(ctx context.Context) (bool, error) {
		nodeName, err := d.placed(ctx, c.waits)
		if err != nil {
			return false, err
		}
		if nodeName != "" {
			fmt.Fprintf(d.Out, "pod/%s is on node %s\n", c.waits.Name, nodeName)
			return true, nil
		}
		if first {
			first = false
			fmt.Fprintf(d.ErrOut, "waiting for pod/%s to be placed\n", c.waits.Name)
		}
		came, err := d.newcomers(ctx, c, plan)
		if err != nil || slices.Equal(came, seen) {
			return false, err
		}
		seen, now = came, d.clearing(ctx, c, plan) // which reads all pods
		return now.taken, nil
	})
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; pod %s waits yet", ref)
	case wait.Interrupted(err):
		now = d.clearing(ctx, c, plan)
	case err != nil || !now.taken:
		return err
	}
	return fmt.Errorf("pod %s waits yet: %s; kubectl inspect gpumem explain %s says more, and the same command plans anew", ref, now.why, ref)
}

// placed returns the node of a pod, or nothing while it has none.
func (d *defragmentation) placed(ctx context.Context, pod *v1.Pod) (string, error) {
	now, err := d.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
		return "", fmt.Errorf("pod %s/%s, for which room was made, is gone", pod.Namespace, pod.Name)
	}
	if err != nil {
		return "", err
	}
	return now.Spec.NodeName, nil
}

// newcomers returns the UIDs of others that have come to the plan's GPUs, in order.
func (d *defragmentation) newcomers(ctx context.Context, c *crowd, plan defrag.Plan) (uids []string, err error) {
	list, err := d.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + plan.Node + "," + notEnded})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if h, _ := d.names.Holding(pod); pod.Spec.NodeName == plan.Node && !api.Terminal(pod) && c.came(plan, h) {
			uids = append(uids, h.Pod.UID)
		}
	}
	slices.Sort(uids)
	return uids, nil
}

// clearing is how the room is that was made for a pod.
type clearing struct {
	taken bool   // by others
	why   string // in words
}

func (d *defragmentation) clearing(ctx context.Context, c *crowd, plan defrag.Plan) clearing {
	where := newPlaces()
	nodes, facts, err := load(ctx, d.client, d.names, selection{names: []string{plan.Node}, where: where})
	switch {
	case err != nil:
		return clearing{why: oneLine(err)}
	case facts.PodsUnknown:
		return clearing{why: whyUnknown(facts)}
	case len(nodes) == 0:
		return clearing{why: "node " + plan.Node + " is gone"}
	}
	waits := waitFacts(d.names, where, c.waits)
	here := without(nodes[0], waits.Pod) // it may be there by now
	chance := facts.Chance(waits, here)
	if chance.Good() {
		return clearing{why: "there is room on node " + plan.Node}
	}
	faster := slices.DeleteFunc(here.Holdings(), func(h placement.Holding) bool { return !c.came(plan, h) })
	if chance.Fits() || !placement.Fit(waits.Request, here.Without(faster)).Fits() {
		return clearing{why: "node " + plan.Node + ": " + chance.Why()}
	}
	var names []string
	for _, h := range faster {
		names = append(names, h.Pod.String())
	}
	slices.Sort(names)
	return clearing{taken: true, why: "others were faster to take the room on node " + plan.Node + ": " + strings.Join(names, ", ")}
}

// came reports whether another pod is on a GPU of the plan than that for which it was made,
// and was on no node before.
func (c *crowd) came(plan defrag.Plan, h placement.Holding) bool {
	before := c.pods[h.Pod.UID]
	return h.Pod.UID != string(c.waits.UID) && (before == nil || before.Spec.NodeName == "") &&
		slices.ContainsFunc(h.Assignment.Devices(), func(id gpu.UUID) bool { return slices.Contains(plan.Assignment.Devices(), id) })
}
