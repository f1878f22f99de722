package defrag

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/defrag"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// look is how often it is looked whether pods are where they are to be.
const look = time.Second

// wakes is after how many looks the pod is woken again.
const wakes = 5

// makeWay evicts the pods of a plan for one that waits. Space is kept for that on the node, and
// no GPU cordoned: all are kept off that are not more important, among them those that are
// made in place of the evicted. A cordon would keep the pod itself off too, and have it
// preempt others meanwhile; a nomination kube-scheduler takes back each time that it finds
// no node for the pod, which wakes those that are after that space.
func (o *Options) makeWay(ctx context.Context, c *crowd, plan defrag.Plan) error {
	kept := false
	defer func() { // an interrupt ends the waiting, and not this, nor does an answer that was lost
		switch err := o.keepNone(context.WithoutCancel(ctx), c.waits); {
		case err == nil, !kept, apierrors.IsNotFound(err):
		case apierrors.IsInvalid(err), apierrors.IsConflict(err): // another has its name
		default:
			fmt.Fprintf(o.ErrOut, "warning: GPUs may still be kept for pod %s/%s, by its condition %s: %v\n", c.waits.Namespace, c.waits.Name, api.Reserved, err)
		}
	}()
	if err := o.keepRoom(ctx, c.waits, plan.Node, plan.Assignment); err != nil {
		return fmt.Errorf("nothing was evicted: %w", err)
	}
	kept = true
	if err := o.evict(ctx, plan); err != nil {
		return err
	}
	return o.arrive(ctx, c, plan)
}

// keepRoom writes that GPUs of a node are kept for a waiting pod.
func (o *Options) keepRoom(ctx context.Context, pod *v1.Pod, nodeName string, at placement.Assignment) error {
	kept := api.Reservation{Node: nodeName, GPUs: at.Devices()}
	return o.patchStatus(ctx, pod, map[string]any{}, kept.Condition(time.Now()))
}

// keepNone takes back what keepRoom and wake write.
func (o *Options) keepNone(ctx context.Context, pod *v1.Pod) error {
	return o.patchStatus(ctx, pod, map[string]any{o.cluster.Names.RoomMadeAt(): nil}, map[string]any{"type": api.Reserved, "$patch": "delete"})
}

// roomKept reports whether a condition of keepRoom is on a pod.
func roomKept(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == api.Reserved })
}

// wake has kube-scheduler look at a waiting pod again, by a change that counts as one. When a
// pod ended it looked of itself, but perhaps a moment before the extender had heard of it.
func (o *Options) wake(ctx context.Context, pod *v1.Pod) error {
	return o.patchStatus(ctx, pod, map[string]any{o.cluster.Names.RoomMadeAt(): time.Now().UTC().Format(time.RFC3339Nano)})
}

// patchStatus writes annotations and conditions of a pod, with the right to its status alone.
// What it does not name is left: a null in their place would take all away.
func (o *Options) patchStatus(ctx context.Context, pod *v1.Pod, annotations map[string]any, conditions ...any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": annotations},
		"status":   map[string]any{"conditions": append([]any{}, conditions...)},
	})
	if err == nil {
		_, err = o.cluster.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// arrive waits until the pod that pods were evicted for has a node. More important ones may be
// faster, and the output says which.
func (o *Options) arrive(ctx context.Context, c *crowd, plan defrag.Plan) error {
	ref := c.waits.Namespace + "/" + c.waits.Name
	var seen []string // who has come to the plan's GPUs since
	var now clearing
	looks, free := 0, 0 // free: since the evicted pods are gone
	late, err := o.poll(ctx, func(ctx context.Context) (bool, error) {
		nodeName, err := o.placed(ctx, c.waits)
		if err != nil {
			return false, lasting(err)
		}
		if nodeName != "" {
			fmt.Fprintf(o.Out, "pod/%s is on node %s\n", c.waits.Name, nodeName)
			return true, nil
		}
		if looks++; looks == 1 {
			fmt.Fprintf(o.ErrOut, "waiting for pod/%s to be placed\n", c.waits.Name)
		}
		came, leaving, err := o.newcomers(ctx, c, plan)
		if err == nil && !leaving {
			if free++; free%wakes == 1 {
				err = o.wake(ctx, c.waits)
			}
		}
		if err != nil || slices.Equal(came, seen) {
			return false, lasting(err)
		}
		seen, now = came, o.clearing(ctx, c, plan) // which reads all pods
		return now.taken, nil
	})
	switch {
	case ctx.Err() != nil && err != nil:
		return fmt.Errorf("%w; pod %s waits yet, and nothing is kept for it any longer", err, ref)
	case late:
		now = o.clearing(ctx, c, plan)
	case err != nil || !now.taken:
		return err
	}
	return fmt.Errorf("pod %s waits yet: %s; nothing is kept for it any longer; kubectl inspect gpumem explain %s says more, and the same command makes another plan", ref, now.why, ref)
}

// errGone says that the pod to evict for is there no more.
type errGone string

func (e errGone) Error() string { return string(e) }

// lasting returns an error that another look does not help, and forgets any other: the space
// would be given up for it.
func lasting(err error) error {
	if gone := errGone(""); errors.As(err, &gone) || apierrors.IsForbidden(err) {
		return err
	}
	return nil
}

// placed returns the node of a pod, or nothing while it has none.
func (o *Options) placed(ctx context.Context, pod *v1.Pod) (string, error) {
	now, err := o.cluster.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
		return "", errGone(fmt.Sprintf("pod %s/%s, for which others were evicted, is gone", pod.Namespace, pod.Name))
	}
	if err != nil {
		return "", err
	}
	return now.Spec.NodeName, nil
}

// newcomers returns the UIDs of others that have come to the plan's GPUs, in order, and whether
// a pod is there yet that was evicted.
func (o *Options) newcomers(ctx context.Context, c *crowd, plan defrag.Plan) (uids []string, leaving bool, err error) {
	pods, err := o.cluster.PodsOn(ctx, plan.Node)
	if err != nil {
		return nil, false, err
	}
	for i := range pods {
		pod := &pods[i]
		leaving = leaving || c.leaves(api.Ref(pod))
		if h, _ := o.cluster.Names.Holding(pod); pod.Spec.NodeName == plan.Node && !api.Terminal(pod) && c.came(plan, h) {
			uids = append(uids, h.Pod.UID)
		}
	}
	slices.Sort(uids)
	return uids, leaving, nil
}

// clearing is how the space is that was made for a pod.
type clearing struct {
	taken bool   // by others
	why   string // in words
}

func (o *Options) clearing(ctx context.Context, c *crowd, plan defrag.Plan) clearing {
	where := cluster.NewPlaces()
	nodes, facts, err := o.cluster.Load(ctx, cluster.Selection{Names: []string{plan.Node}, Where: where})
	switch {
	case err != nil:
		return clearing{why: cluster.OneLine(err)}
	case facts.PodsUnknown:
		return clearing{why: facts.WhyUnknown}
	case len(nodes) == 0:
		return clearing{why: "node " + plan.Node + " is gone"}
	}
	facts.Policy = c.policy
	waits := where.WaitFacts(o.cluster.Names, c.waits)
	here := cluster.Without(nodes[0], waits.Pod) // it may be there by now
	chance := facts.Chance(waits, here)
	if chance.Good() {
		return clearing{why: "it fits on node " + plan.Node}
	}
	leaving := slices.DeleteFunc(here.Holdings(), func(h placement.Holding) bool { return !c.leaves(h.Pod) })
	if len(leaving) > 0 {
		return clearing{why: "not ended yet: " + named(leaving)}
	}
	faster := slices.DeleteFunc(here.Holdings(), func(h placement.Holding) bool { return !c.came(plan, h) })
	if _, refusal := decide.Decide(here.Without(faster), waits.Pod, waits.Request, c.policy); chance.Fits() || refusal != nil {
		return clearing{why: "node " + plan.Node + ": " + chance.Why()}
	}
	return clearing{taken: true, why: "others were faster to take the memory on node " + plan.Node + ": " + named(faster)}
}

// leaves reports whether a pod is one that leaves the GPUs of the plan.
func (c *crowd) leaves(pod placement.PodRef) bool {
	return slices.ContainsFunc(c.leaving, func(h placement.Holding) bool { return h.Pod == pod })
}

func named(holdings []placement.Holding) string {
	var names []string
	for _, h := range holdings {
		names = append(names, h.Pod.String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// came reports whether another pod is on a GPU of the plan than that for which it was made,
// and was on no node before.
func (c *crowd) came(plan defrag.Plan, h placement.Holding) bool {
	before := c.pods[h.Pod.UID]
	return h.Pod.UID != string(c.waits.UID) && (before == nil || before.Spec.NodeName == "") && onGPUs(plan, h)
}
