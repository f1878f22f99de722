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

// maxAmount limits the request of one container, so that sums cannot overflow. It is far beyond any GPU in
// any unit.
const maxAmount = 1 << 40

// maxCount limits the number of GPUs that a pod can request.
const maxCount = 64

// Limits of a list of globs, which is matched against every GPU of the cluster.
const (
	maxGlobs     = 32
	maxGlobBytes = 1024 // total length
)

// Ref returns the reference to a pod.
func Ref(pod *v1.Pod) placement.PodRef {
	return placement.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
}

// Terminal reports whether all containers of the pod have ended permanently. A terminating pod is not
// terminal, because its containers may still run.
func Terminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// Rejected reports whether the kubelet refused to admit the pod. This state is final.
func Rejected(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodFailed && pod.Status.Reason == "UnexpectedAdmissionError"
}

// Considered reports whether the pod has the condition PodScheduled. A scheduler sets it when it finds no
// node, a Binding sets it, and the kubelet sets it after admission.
func Considered(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled })
}

// FitsNowhere reports whether a scheduler has tried to place the pod and found no node.
func FitsNowhere(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return unscheduled(c) && c.Reason == v1.PodReasonUnschedulable })
}

// Unscheduled returns the scheduler's message for a pod that it could not place. It returns false if
// there is none.
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

// Admitted reports whether the kubelet has admitted or refused the pod. The kubelet sets the start time in
// its first status update after admission.
func Admitted(pod *v1.Pod) bool {
	return pod.Status.StartTime != nil || Terminal(pod)
}

// Believed reports whether the pod's assignment can come from a scheduler or the device plugin. Until
// admission, the owner may have written the assignment of a pod created with a node name: see the
// package comment.
func Believed(pod *v1.Pod) bool {
	return Admitted(pod) || Considered(pod)
}

// Conditions returns the conditions that Holding, Nomination, FitsNowhere and Disruption read.
func Conditions(pod *v1.Pod) (out []v1.PodCondition) {
	for _, c := range pod.Status.Conditions {
		switch {
		case isReservation(c):
			out = append(out, c)
		case c.Type == v1.PodScheduled && !Admitted(pod): // drop the message, which may be long
			out = append(out, v1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
		case isDisruption(c):
			out = append(out, v1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
		}
	}
	return out
}

// Disruption returns the reason why Kubernetes terminates the pod, such as PreemptionByScheduler, or "".
func Disruption(pod *v1.Pod) string {
	if at := slices.IndexFunc(pod.Status.Conditions, isDisruption); at >= 0 {
		return pod.Status.Conditions[at].Reason
	}
	return ""
}

func isDisruption(c v1.PodCondition) bool {
	return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue
}

// Priority returns the pod's priority as admission has set it.
func Priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// Nomination returns the node that is reserved for a waiting pod until other pods have left: the node that
// kube-scheduler nominated, or the node of the pod's Reservation. A Reservation also names the GPUs:
// Nomination returns them as an assignment with the pod's share. A Reservation expires, but
// kube-scheduler's nominations do not.
func Nomination(pod *v1.Pod, req placement.Request, now time.Time) (node string, assignment placement.Assignment, expires time.Time) {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return "", assignment, expires
	}
	node = pod.Status.NominatedNodeName
	reservation, expiry, ok := ReservationOf(pod, now)
	if !ok || node != "" && node != reservation.Node {
		return node, assignment, expires
	}
	if len(reservation.GPUs) != req.GPUs() {
		return reservation.Node, assignment, expiry
	}
	for _, id := range reservation.GPUs {
		assignment.Shares = append(assignment.Shares, placement.Share{Device: id})
	}
	return reservation.Node, assignment.WithShares(req), expiry
}

// CPU returns the CPU that a pod requests, in millicores, as kube-scheduler counts it.
func CPU(pod *v1.Pod) int64 {
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	return requests.Cpu().MilliValue()
}

// Holds reports whether a container of the pod requests GPU memory, in shares or units. It ignores an amount
// of 0, which a LimitRange sets on containers without a request.
func (n Names) Holds(pod *v1.Pod) bool {
	return requestsResource(pod, n.GPUMem()) || requestsResource(pod, n.GPUShares())
}

// HoldsHere reports whether the pod requests the resource that a node offers: shares or units. The
// kubelet of the node ignores the other resource.
func (n Names) HoldsHere(pod *v1.Pod, inShares bool) bool {
	return requestsResource(pod, n.Offered(inShares))
}

func requestsResource(pod *v1.Pod, name v1.ResourceName) bool {
	asks := func(c v1.Container) bool {
		limit, request := c.Resources.Limits[name], c.Resources.Requests[name]
		return !limit.IsZero() || !request.IsZero()
	}
	return slices.ContainsFunc(pod.Spec.InitContainers, asks) || slices.ContainsFunc(pod.Spec.Containers, asks)
}

// Asks reports whether an unbound pod waits for gpumem. It also returns true if Request fails, for
// example because the pod requests cores without memory: the pod waits, and the error explains the
// wait. For a bound pod, Asks equals Holds.
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

// Request parses a pod's request. It returns an empty request for a pod that requests no GPU memory. The
// error describes the first malformed value.
func (n Names) Request(pod *v1.Pod) (placement.Request, error) {
	r, err := n.read(pod)
	if err != nil {
		return placement.Request{}, err
	}
	return r, nil
}

// read parses a pod's request. It skips malformed values and returns the first error.
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

// amounts parses the requests of the containers, the pod's CPU and its priority. It skips malformed
// values and returns the first error. If a pod requests both shares and units, amounts ignores the shares.
func (n Names) amounts(pod *v1.Pod) (_ placement.Request, err error) {
	var containers []placement.Container
	inShares := n.HoldsHere(pod, true)
	if inShares && n.HoldsHere(pod, false) {
		inShares, err = false, fmt.Errorf("the pod asks for both %s and %s: ask for one of them", n.GPUMem(), n.GPUShares())
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

// amountsOf parses the request of a container. A malformed amount counts as 0.
func (n Names) amountsOf(c v1.Container, inShares bool) (placement.Container, error) {
	units, err := amountOf(c, n.Offered(inShares))
	if err != nil {
		return placement.Container{}, err
	}
	cores, err := amountOf(c, n.GPUCore())
	switch {
	case err != nil:
	case inShares && cores > 0:
		cores, err = 0, fmt.Errorf("container %q: %s includes cores: remove %s", c.Name, n.GPUShares(), n.GPUCore())
	case units == 0 && cores > 0:
		err = fmt.Errorf("container %q: %s needs %s too", c.Name, n.GPUCore(), n.GPUMem())
	}
	return placement.Container{Name: c.Name, Units: gpu.Units(units), Cores: int(cores)}, err
}

// amountOf returns a container's limit, which the kubelet uses, or else its request. The amount must be
// a whole number.
func amountOf(c v1.Container, name v1.ResourceName) (int64, error) {
	q, ok := c.Resources.Limits[name]
	if !ok {
		q = c.Resources.Requests[name] // 0 if it is missing
	}
	value := q.Value() // rounded up; 0 if it exceeds an int64
	switch {
	case value == 0 && !q.IsZero(), value > maxAmount, q.CmpInt64(value) != 0: // in this order: CmpInt64 would expand 1e999999
		return 0, fmt.Errorf("container %q: %s is %s, want a whole number up to %d", c.Name, name, q.String(), int64(maxAmount))
	case value < 0:
		return 0, fmt.Errorf("container %q: %s is %s, want 0 or more", c.Name, name, q.String())
	}
	return value, nil
}

// divisible returns the amounts next to the given amount that divide evenly over count GPUs.
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
	const why = "that its init containers leave, which the kubelet would not take evenly from"
	const fix = ": ask for %d there, or for less in the init containers"
	if c, remaining := wasteful(containers, units); remaining > 0 {
		return 0, fmt.Errorf("%q: container %q asks for %d units, fewer than the %d "+why+" %d GPUs"+fix, s, c.Name, c.Units, remaining, count, remaining)
	}
	if c, remaining := wasteful(containers, cores); remaining > 0 {
		return 0, fmt.Errorf("%q: container %q asks for %d per cent of cores, less than the %d per cent "+why+" %d GPUs"+fix, s, c.Name, c.Cores, remaining, count, remaining)
	}
	return count, nil
}

// wasteful returns the first container that requests less than the init containers before it leave to it,
// and the amount that they leave. The kubelet picks the slots of such a container at random from the
// slots of these init containers (k8s.io/kubernetes/pkg/kubelet/cm/devicemanager, devicesToAllocate). The
// random pick is harmless only if all these slots are on one GPU.
func wasteful(containers []placement.Container, amount func(placement.Container) int64) (placement.Container, int64) {
	var remaining int64
	for _, c := range containers {
		n := amount(c)
		if n == 0 {
			continue // the kubelet allocates nothing for this container
		}
		if n < remaining {
			return c, remaining
		}
		remaining = 0
		if c.Kind == placement.Init {
			remaining = n
		}
	}
	return placement.Container{}, 0
}

// readPolicy parses the name of a policy.
func readPolicy(s string) (placement.Policy, error) {
	if p := placement.Policy(s); p.IsKnown() {
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

// Holding converts a bound pod. The amounts come from its spec, which is immutable. If the kubelet's
// allocation is recorded, its number of GPUs overrides the requested number. A malformed assignment
// counts as none, and so does an assignment that no scheduler can have written. A malformed policy of a
// placed pod counts as Exclusive, because the policy may have been Exclusive at placement. The error
// describes the malformed values; the holding is valid even with an error.
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
		badAssignment = fmt.Errorf("annotation %s names %d GPUs, and the number that the pod asks for is malformed: the pod counts on each GPU of its node until it is valid", n.Assignment(), len(assignment.Shares))
	default:
		badAssignment = fmt.Errorf("annotation %s names %d GPUs, and the pod asks for %d (annotation %s): the pod counts on each GPU of its node until they agree", n.Assignment(), len(assignment.Shares), req.GPUs(), n.Count())
	}
	if badAssignment == nil && !req.Empty() {
		h.Assignment = assignment.WithShares(req)
	}
	if _, named := pod.Annotations[n.Policy()]; named && req.Policy == "" && !h.Assignment.None() {
		h.Request.Policy = placement.Exclusive
		err = errors.Join(err, fmt.Errorf("no other pod can use the GPUs of this pod until annotation %s is valid", n.Policy()))
	}
	return h, errors.Join(err, badAssignment)
}

// Binding returns the object that binds a pod to a node and carries its assignment. The API server
// rejects the Binding if the pod of that name has another UID.
func (n Names) Binding(ref placement.PodRef, nodeName string, a placement.Assignment, node placement.Node) (*v1.Binding, error) {
	annotations, err := n.AssignmentAnnotations(a, node)
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
