package api

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// maxAmount bounds what one container can ask for, so that sums of them cannot
// overflow. It is far beyond any GPU in any unit.
const maxAmount = 1 << 40

// maxCount bounds the number of GPUs that a pod can ask for.
const maxCount = 64

// A list of globs is bounded: it is matched against every GPU of the cluster.
const (
	maxGlobs     = 32
	maxGlobBytes = 1024 // of all together
)

// Ref names a pod.
func Ref(pod *v1.Pod) placement.PodRef {
	return placement.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
}

// Terminal reports whether all containers of the pod have ended for good. A
// pod that is being deleted is not terminal: its containers may still run.
func Terminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// Rejected reports whether the kubelet did not admit the pod, which is final.
func Rejected(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodFailed && pod.Status.Reason == "UnexpectedAdmissionError"
}

// Considered reports whether a scheduler has said anything of the pod: every one
// writes this condition when it finds no node, and a Binding does. The kubelet does when it has
// admitted the pod.
func Considered(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled })
}

// FitsNowhere reports whether a scheduler has looked for a node for the pod and found none.
func FitsNowhere(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return unscheduled(c) && c.Reason == v1.PodReasonUnschedulable })
}

// Unscheduled returns the scheduler's message about a pod that it could not place, and whether there is such a pod condition.
func Unscheduled(pod *v1.Pod) (message string, ok bool) {
	at := slices.IndexFunc(pod.Status.Conditions, unscheduled)
	if at < 0 {
		return "", false
	}
	return pod.Status.Conditions[at].Message, true
}

func unscheduled(c v1.PodCondition) bool {
	return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse
}

// Ready reports whether the pod has the condition Ready.
func Ready(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

// Admitted reports whether the kubelet has admitted the pod, or refused it. The
// kubelet sets the start time with the first status that it writes, which it
// does after admission.
func Admitted(pod *v1.Pod) bool {
	return pod.Status.StartTime != nil || Terminal(pod)
}

// Believed reports whether what is written of where a pod is may be the work of a scheduler or of
// the device plugin. Of a pod that its owner sent to a node it is not, until the kubelet has
// admitted it: see the package comment.
func Believed(pod *v1.Pod) bool {
	return Admitted(pod) || Considered(pod)
}

// Conditions returns what Holding, Nomination, FitsNowhere and Disruption read of a pod's.
func Conditions(pod *v1.Pod) (out []v1.PodCondition) {
	for _, c := range pod.Status.Conditions {
		switch {
		case reserves(c):
			out = append(out, c)
		case c.Type == v1.PodScheduled && !Admitted(pod): // without the message, which may be long
			out = append(out, v1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
		case disrupts(c):
			out = append(out, v1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
		}
	}
	return out
}

// Disruption returns the reason why Kubernetes terminates the pod, such as PreemptionByScheduler, or "".
func Disruption(pod *v1.Pod) string {
	if at := slices.IndexFunc(pod.Status.Conditions, disrupts); at >= 0 {
		return pod.Status.Conditions[at].Reason
	}
	return ""
}

func disrupts(c v1.PodCondition) bool {
	return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue
}

// Priority returns the pod's priority as admission has set it.
func Priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// Nomination returns the node that a waiting pod is to come to once others have
// left it for the pod, or nothing: as kube-scheduler says, which has them leave,
// or its Reservation. A Reservation names the GPUs, with the pod's share in at, and ends by
// itself at until. kube-scheduler takes its own nominations back.
func Nomination(pod *v1.Pod, req placement.Request, now time.Time) (node string, at placement.Assignment, until time.Time) {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return "", at, until
	}
	node = pod.Status.NominatedNodeName
	kept, ends, ok := ReservationOf(pod, now)
	if !ok || node != "" && node != kept.Node {
		return node, at, until
	}
	if len(kept.GPUs) != req.GPUs() {
		return kept.Node, at, ends
	}
	for _, id := range kept.GPUs {
		at.Shares = append(at.Shares, placement.Share{Device: id})
	}
	return kept.Node, at.WithShares(req), ends
}

// CPU returns what a pod requests of its node's CPU, in millicores, as
// kube-scheduler counts it.
func CPU(pod *v1.Pod) int64 {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	return requests.Cpu().MilliValue()
}

// Holds reports whether any container of the pod asks for GPU memory, in shares or by the amount, with
// whatever amount but 0. That is what a LimitRange gives to those that ask for none.
func (n Names) Holds(pod *v1.Pod) bool {
	return asksFor(pod, n.GPUMem()) || asksFor(pod, n.GPUShares())
}

// HoldsHere is Holds on a node that offers shares, or amounts: of the other its kubelet gives nothing.
func (n Names) HoldsHere(pod *v1.Pod, inShares bool) bool { return asksFor(pod, n.Offered(inShares)) }

func asksFor(pod *v1.Pod, name v1.ResourceName) bool {
	asks := func(c v1.Container) bool {
		limit, request := c.Resources.Limits[name], c.Resources.Requests[name]
		return !limit.IsZero() || !request.IsZero()
	}
	return slices.ContainsFunc(pod.Spec.InitContainers, asks) || slices.ContainsFunc(pod.Spec.Containers, asks)
}

// Asks is Holds of pods that are on no node yet: one that asks for what no pod gets
// without GPU memory, as cores, waits too, and Request says why.
func (n Names) Asks(pod *v1.Pod) bool {
	switch {
	case n.Holds(pod):
		return true
	case pod.Spec.NodeName != "":
		return false
	default:
		_, err := n.Request(pod)
		return err != nil
	}
}

// Request reads what a pod asks for. It is empty for a pod that asks for no
// GPU memory. The error says what in the pod cannot be read.
func (n Names) Request(pod *v1.Pod) (placement.Request, error) {
	r, err := n.read(pod)
	if err != nil {
		return placement.Request{}, err
	}
	return r, nil
}

// read reads what a pod asks for. What can be read is good even with an error, which is the
// first.
func (n Names) read(pod *v1.Pod) (placement.Request, error) {
	r, err := n.amounts(pod)
	if r.Empty() {
		return r, err
	}
	if bad := n.readAnnotations(&r, pod); err == nil {
		err = bad
	}
	return r, err
}

// amounts reads what the containers ask for, the pod's CPU and its priority. What can be
// read of them is good even with an error, which is the first. One that asks for both resources counts by
// the amount of memory.
func (n Names) amounts(pod *v1.Pod) (_ placement.Request, err error) {
	var containers []placement.Container
	inShares := n.HoldsHere(pod, true)
	if inShares && n.HoldsHere(pod, false) {
		inShares, err = false, fmt.Errorf("it asks for both %s and %s: ask for one of them", n.GPUMem(), n.GPUShares())
	}
	add := func(c v1.Container, kind placement.ContainerKind) {
		asks, e := n.amountsOf(c, inShares)
		if asks.Units > 0 {
			asks.Kind = kind
			containers = append(containers, asks)
		}
		if err == nil {
			err = e
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c, placement.Sidecar)
		} else {
			add(c, placement.Init)
		}
	}
	for _, c := range pod.Spec.Containers {
		add(c, placement.App)
	}
	return placement.Request{Containers: placement.NewContainers(containers...), InShares: inShares && len(containers) > 0, Priority: Priority(pod), CPU: CPU(pod)}, err
}

// amountsOf reads what a container asks for: no units where that cannot be read, no cores where
// those cannot.
func (n Names) amountsOf(c v1.Container, inShares bool) (placement.Container, error) {
	units, err := amountOf(c, n.Offered(inShares))
	if err != nil {
		return placement.Container{}, err
	}
	cores, err := amountOf(c, n.GPUCore())
	switch {
	case err != nil:
	case inShares && cores > 0:
		cores, err = 0, fmt.Errorf("container %q: %s has its part of the cores: take %s away", c.Name, n.GPUShares(), n.GPUCore())
	case units == 0 && cores > 0:
		err = fmt.Errorf("container %q: %s needs %s too", c.Name, n.GPUCore(), n.GPUMem())
	}
	return placement.Container{Name: c.Name, Units: gpu.Units(units), Cores: int(cores)}, err
}

// amountOf returns the limit, which the kubelet counts, or else the request: a whole number.
func amountOf(c v1.Container, name v1.ResourceName) (int64, error) {
	q, ok := c.Resources.Limits[name]
	if !ok {
		q = c.Resources.Requests[name] // 0 where it names none
	}
	value := q.Value() // rounded up, and 0 where no int64 is as large
	switch {
	case value == 0 && !q.IsZero(), value > maxAmount, q.CmpInt64(value) != 0: // in this order: to compare 1e999999 is to write it out
		return 0, fmt.Errorf("container %q: %s is %s, want a whole number up to %d", c.Name, name, q.String(), int64(maxAmount))
	case value < 0:
		return 0, fmt.Errorf("container %q: %s is %s, want 0 or more", c.Name, name, q.String())
	}
	return value, nil
}

// divisible names the amounts next to one that divide evenly over a number of GPUs.
func divisible(amount, count int64) string {
	below := amount / count * count
	if below == 0 {
		return strconv.FormatInt(count, 10)
	}
	return fmt.Sprintf("%d or %d", below, uint64(below)+uint64(count))
}

func readCount(s string, containers []placement.Container) (int, error) {
	count, err := strconv.Atoi(s)
	if err != nil || count < 1 || count > maxCount {
		return 0, fmt.Errorf("%q: want a number of GPUs from 1 to %d", s, maxCount)
	}
	for _, c := range containers {
		if int64(c.Units)%int64(count) != 0 {
			return 0, fmt.Errorf("%q: container %q asks for %d, which does not divide evenly over %d GPUs: ask for %s", s, c.Name, c.Units, count, divisible(int64(c.Units), int64(count)))
		}
		if c.Cores%count != 0 {
			return 0, fmt.Errorf("%q: container %q asks for %d per cent of cores, which do not divide evenly over %d GPUs: ask for %s", s, c.Name, c.Cores, count, divisible(int64(c.Cores), int64(count)))
		}
	}
	if count == 1 {
		return 1, nil
	}
	units := func(c placement.Container) int64 { return int64(c.Units) }
	cores := func(c placement.Container) int64 { return int64(c.Cores) }
	const why = "that the init containers before it leave, and the kubelet would not take them evenly of"
	const fix = ": ask for %d there, or for less in those"
	if c, left := wasteful(containers, units); left > 0 {
		return 0, fmt.Errorf("%q: container %q asks for %d units, fewer than the %d "+why+" %d GPUs"+fix, s, c.Name, c.Units, left, count, left)
	}
	if c, left := wasteful(containers, cores); left > 0 {
		return 0, fmt.Errorf("%q: container %q asks for %d per cent of cores, less than the %d per cent "+why+" %d GPUs"+fix, s, c.Name, c.Cores, left, count, left)
	}
	return count, nil
}

// wasteful returns the first container that asks for less than what the init
// containers before it leave to it, and how much that is. The kubelet takes
// such a container's slots from theirs at random
// (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager, devicesToAllocate), which
// does no harm while they are all of one GPU.
func wasteful(containers []placement.Container, amount func(placement.Container) int64) (placement.Container, int64) {
	var left int64
	for _, c := range containers {
		n := amount(c)
		if n == 0 {
			continue // the kubelet does not ask for it
		}
		if n < left {
			return c, left
		}
		left = 0
		if c.Kind == placement.Init {
			left = n
		}
	}
	return placement.Container{}, 0
}

// readPolicy reads a pod's policy by its name.
func readPolicy(s string) (placement.Policy, error) {
	if p := placement.Policy(s); p.Known() {
		return p, nil
	}
	return "", fmt.Errorf("policy %q: want %s", s, placement.JoinPolicies(placement.Policies()))
}

func readPreference(s string) (placement.Preference, error) {
	switch p := placement.Preference(s); p {
	case placement.Fastest, placement.Cheapest:
		return p, nil
	}
	return "", fmt.Errorf("%q: want fastest or cheapest", s)
}

func readGlobs(s string) (placement.Globs, error) {
	if len(s) > maxGlobBytes {
		return "", fmt.Errorf("a list of globs of %d bytes, want %d at most", len(s), maxGlobBytes)
	}
	if n := strings.Count(s, ",") + 1; n > maxGlobs {
		return "", fmt.Errorf("a list of %d globs, want %d at most", n, maxGlobs)
	}
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if !placement.ValidGlob(strings.TrimPrefix(part, "!")) {
			return "", fmt.Errorf("%q: want a list of globs, like A100*,!A100-SXM4-80GB", s)
		}
		out = append(out, part)
	}
	return placement.NewGlobs(out...), nil
}

func readGroup(namespace, name string) (placement.Group, error) {
	if name == "" {
		return placement.Group{}, fmt.Errorf("%q: want a name", name)
	}
	return placement.Group{Namespace: namespace, Name: name}, nil
}

// Holding reads a bound pod for the cache. How much the pod holds is taken from
// its spec, which cannot change; of its annotations counts what can be read.
// A policy of a placed pod that cannot be read counts as exclusive, which it may
// have been. An assignment that cannot be read counts as none, and so does one that no
// scheduler can have written. One that says what the kubelet has given stands above the number of
// GPUs that the pod asks for. The error names what could not be read, and the holding is good all
// the same.
func (n Names) Holding(pod *v1.Pod) (placement.Holding, error) {
	h := placement.Holding{Pod: Ref(pod), Admitted: Admitted(pod), Terminating: pod.DeletionTimestamp != nil}
	if pod.Status.StartTime != nil {
		h.Started = pod.Status.StartTime.Time
	}
	req, err := n.read(pod)
	h.Request = req
	var assignment placement.Assignment
	var badAssignment error
	if Believed(pod) {
		assignment, badAssignment = n.AssignmentOf(pod)
	}
	if assignment.Allocated && h.Admitted && len(assignment.Shares) != req.GPUs() {
		req.Count = len(assignment.Shares)
		h.Request = req
	}
	_, counted := pod.Annotations[n.Count()]
	switch {
	case assignment.None() || len(assignment.Shares) == req.GPUs():
	case counted && req.Count == 0:
		badAssignment = fmt.Errorf("annotation %s: it names %d GPUs, and of how many the pod asks cannot be read: until it can the pod counts on each GPU of its node", n.Assignment(), len(assignment.Shares))
	default:
		badAssignment = fmt.Errorf("annotation %s: it names %d GPUs, and the pod asks for %d (annotation %s): until they agree the pod counts on each GPU of its node", n.Assignment(), len(assignment.Shares), req.GPUs(), n.Count())
	}
	if badAssignment == nil && !req.Empty() {
		h.Assignment = assignment.WithShares(req)
	}
	if _, named := pod.Annotations[n.Policy()]; named && req.Policy == "" && !h.Assignment.None() {
		h.Request.Policy = placement.Exclusive
		err = errors.Join(err, fmt.Errorf("until annotation %s can be read no other pod comes to the GPUs of this one", n.Policy()))
	}
	return h, errors.Join(err, badAssignment)
}

// Binding returns the object that binds a pod to a node and carries its
// assignment. The API server refuses it if the pod of that name has another UID.
func (n Names) Binding(ref placement.PodRef, nodeName string, a placement.Assignment, on placement.Node) (*v1.Binding, error) {
	annotations, err := n.AssignmentAnnotations(a, on)
	binding := PlainBinding(ref, nodeName)
	binding.Annotations = annotations
	return binding, err
}

// PlainBinding returns the object that binds a pod without GPU memory.
func PlainBinding(ref placement.PodRef, nodeName string) *v1.Binding {
	return &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(ref.UID)},
		Target:     v1.ObjectReference{Kind: "Node", Name: nodeName},
	}
}
