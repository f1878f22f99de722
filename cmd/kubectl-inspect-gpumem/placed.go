package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/placement"
)

// whyThere says of a bound pod who has placed it.
func (o *options) whyThere(ctx context.Context, pod *v1.Pod) string {
	scheduler := cmp.Or(pod.Spec.SchedulerName, v1.DefaultSchedulerName)
	a, err := o.names.AssignmentOf(pod)
	switch {
	case err != nil:
		return "is on a node, and which GPU it has cannot be read: " + oneLine(err)
	case a.None():
		return "is on a node, and has no GPU yet: no scheduler of gpumem has placed it, and the node's device plugin has not either"
	}
	asking := schedulers(ctx, o.client, o.names)
	theirs := len(asking) > 0 && !slices.Contains(asking, scheduler)
	there := "is on a node, where scheduler " + scheduler + " has put it"
	if a.ByNode || theirs {
		there = "is on a node that was chosen without asking gpumem, " + past(asking, scheduler) + ": the node's device plugin chose the GPU"
	}
	if theirs {
		there += "; pods with schedulerName " + strings.Join(asking, " or ") + " go where there is room on one GPU"
	}
	return there
}

// preferred says which GPUs a placed pod likes better than what it has on its node, and how
// they are now; empty: there are none.
func preferred(pod inspect.WaitFacts, own placement.Node, a placement.Assignment, nodes []placement.Node, facts inspect.Facts) string {
	better := func(d placement.Device) bool {
		return slices.ContainsFunc(own.Devices, func(has placement.Device) bool {
			return slices.Contains(a.Devices(), has.UUID) && pod.Request.Prefers(d, has)
		})
	}
	var best inspect.Chance
	for _, n := range nodes {
		only := slices.DeleteFunc(slices.Clone(n.Devices), func(d placement.Device) bool { return !better(d) })
		if len(only) == 0 {
			continue
		}
		chance := facts.Chance(pod, n.Only(only...))
		if !chance.KeptOff && (best.Node.Name == "" || chance.Compare(best) < 0) {
			best = chance
		}
	}
	if best.Node.Name == "" {
		return ""
	}
	now := best.Why()
	if best.Good() {
		now = "there is room; a pod that is placed is not moved"
	}
	return fmt.Sprintf("%s on %s; now: %s", best.Node.Devices[0].Model, best.Node.Name, now)
}

// past says what may have chosen a pod's node past the schedulers that ask gpumem.
func past(asking []string, scheduler string) string {
	if slices.Contains(asking, scheduler) {
		return "by spec.nodeName"
	}
	return "by spec.nodeName, or by scheduler " + scheduler
}

// why says why a pod has ended, where its status tells.
func why(pod *v1.Pod) string {
	var words []string
	for _, s := range []string{pod.Status.Reason, pod.Status.Message} {
		if s != "" {
			words = append(words, s)
		}
	}
	if len(words) == 0 {
		return ""
	}
	return ": " + strings.Join(words, ": ")
}

// refused is the reason of pods that the kubelet of their node did not admit.
const refused = "UnexpectedAdmissionError"

// advice says of a pod that was refused who had chosen its node, and what to do. It is
// empty for pods that have ended otherwise.
func (o *options) advice(ctx context.Context, pod *v1.Pod) string {
	const more = "docs/troubleshooting.md#a-pod-fails-with-unexpectedadmissionerror says what the message means"
	if pod.Status.Reason != refused {
		return ""
	}
	scheduler := cmp.Or(pod.Spec.SchedulerName, v1.DefaultSchedulerName)
	if a, err := o.names.AssignmentOf(pod); err == nil && !a.None() {
		return fmt.Sprintf("scheduler %s had chosen the node and the GPU: delete the pod, and create it anew where no controller does; %s", scheduler, more)
	}
	asking := schedulers(ctx, o.client, o.names)
	ours := cmp.Or(strings.Join(asking, " or "), "that of gpumem's scheduler")
	return fmt.Sprintf("the node was chosen without asking gpumem, %s: create the pod anew without nodeName, its schedulerName being %s; %s", past(asking, scheduler), ours, more)
}
