package trim

import (
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Trimmer trims pods, nodes and PodDisruptionBudgets. Many pods have equal requests, and a resource list
// with one entry takes as much memory as one with eight. So pods share these lists, and nodes share the
// keys of their labels.
type Trimmer struct {
	names   api.Names
	cpus    shared[int64, *v1.ResourceRequirements] // by millicores
	amounts shared[amounts, v1.ResourceList]
	keys    shared[string, string]
}

// New returns a trimmer.
func New(names api.Names) *Trimmer { return &Trimmer{names: names} }

// Node trims a node. A node with GPU memory also keeps the fields that package nodefilter reads.
func (t *Trimmer) Node(node *v1.Node) *v1.Node {
	small := &v1.Node{ObjectMeta: t.meta(node.ObjectMeta), Spec: v1.NodeSpec{Unschedulable: node.Spec.Unschedulable}}
	for _, name := range []v1.ResourceName{v1.ResourceCPU, t.names.GPUMem(), t.names.GPUShares(), t.names.GPUCore()} {
		if amount, ok := node.Status.Allocatable[name]; ok {
			if small.Status.Allocatable == nil {
				small.Status.Allocatable = make(v1.ResourceList)
			}
			small.Status.Allocatable[name] = amount
		}
	}
	if _, ok := node.Annotations[t.names.Inventory()]; !ok {
		return small
	}
	small.Status.Conditions = api.NodeConditions(node)
	for _, taint := range node.Spec.Taints {
		small.Spec.Taints = append(small.Spec.Taints, v1.Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect})
	}
	if len(node.Labels) > 0 {
		small.Labels = make(map[string]string, len(node.Labels))
	}
	for key, value := range node.Labels {
		small.Labels[t.keys.get(key, func() string { return key })] = value
	}
	return small
}

// amounts are a container's requests for gpumem's resources. The booleans report whether the container
// names the resource.
type amounts struct {
	memory, shares, cores          resource.Quantity
	hasMemory, hasShares, hasCores bool
}

// Pod trims a pod to the fields that package api reads. A pod that requests GPU memory keeps its
// placement and its constraints. Other pods keep only their node and their CPU.
func (t *Trimmer) Pod(pod *v1.Pod) *v1.Pod {
	small := &v1.Pod{
		ObjectMeta: t.meta(pod.ObjectMeta),
		Spec:       v1.PodSpec{NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority},
		Status: v1.PodStatus{
			Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, NominatedNodeName: pod.Status.NominatedNodeName,
			Conditions: api.Conditions(pod),
		},
	}
	if cpu := api.CPU(pod); cpu != 0 {
		small.Spec.Resources = t.cpus.get(cpu, func() *v1.ResourceRequirements {
			return &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI)}}
		})
	}
	if !t.names.Holds(pod) {
		small.Annotations = nil
		return small
	}
	small.Labels = pod.Labels // for the selectors of PodDisruptionBudgets
	if pod.Spec.NodeName == "" {
		waiting(small, pod)
	}
	small.Spec.InitContainers = t.containers(pod.Spec.InitContainers)
	small.Spec.Containers = t.containers(pod.Spec.Containers)
	return small
}

// waiting adds the fields of an unbound pod that select its nodes, its scheduler and its controller: see
// package nodefilter.
func waiting(small, pod *v1.Pod) {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		small.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	small.Spec.SchedulerName, small.Spec.SchedulingGates = pod.Spec.SchedulerName, pod.Spec.SchedulingGates
	small.Spec.NodeSelector, small.Spec.Tolerations = pod.Spec.NodeSelector, pod.Spec.Tolerations
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		small.Spec.Affinity = &v1.Affinity{NodeAffinity: a.NodeAffinity}
	}
}

// containers returns the containers that name a resource of gpumem, with only these resources. The
// trimmed pod has the total CPU of all containers.
func (t *Trimmer) containers(containers []v1.Container) (out []v1.Container) {
	for _, c := range containers {
		a := amounts{}
		a.memory, a.hasMemory = named(c, t.names.GPUMem())
		a.shares, a.hasShares = named(c, t.names.GPUShares())
		a.cores, a.hasCores = named(c, t.names.GPUCore())
		if a.hasMemory || a.hasShares || a.hasCores {
			limits := t.amounts.get(a, func() v1.ResourceList { return t.list(a) })
			out = append(out, v1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: v1.ResourceRequirements{Limits: limits}})
		}
	}
	return out
}

// named returns a container's amount of an extended resource: the limit, which the kubelet uses, or else
// the request.
func named(c v1.Container, name v1.ResourceName) (resource.Quantity, bool) {
	if q, ok := c.Resources.Limits[name]; ok {
		return q, true
	}
	q, ok := c.Resources.Requests[name]
	return q, ok
}

func (t *Trimmer) list(a amounts) v1.ResourceList {
	out := make(v1.ResourceList)
	if a.hasMemory {
		out[t.names.GPUMem()] = a.memory
	}
	if a.hasShares {
		out[t.names.GPUShares()] = a.shares
	}
	if a.hasCores {
		out[t.names.GPUCore()] = a.cores
	}
	return out
}

// Budget trims a PodDisruptionBudget to its selector and its remaining disruptions.
func (t *Trimmer) Budget(budget *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: t.meta(budget.ObjectMeta),
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: budget.Spec.Selector},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: budget.Status.DisruptionsAllowed, DisruptedPods: budget.Status.DisruptedPods},
	}
}

func (t *Trimmer) meta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	small := metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ResourceVersion: meta.ResourceVersion, CreationTimestamp: meta.CreationTimestamp,
		DeletionTimestamp: meta.DeletionTimestamp,
	}
	for key, value := range meta.Annotations {
		if strings.HasPrefix(key, t.names.Domain()+"/") || key == v1.MirrorPodAnnotationKey {
			if small.Annotations == nil {
				small.Annotations = make(map[string]string)
			}
			small.Annotations[key] = value
		}
	}
	return small
}

// shared stores one instance of each value that many objects have, by key.
type shared[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]V
}

// mostShared limits the number of stored values. At the limit, get drops all of them.
const mostShared = 1000

func (s *shared[K, V]) get(key K, value func() V) V {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.values[key]; ok {
		return v
	}
	if s.values == nil || len(s.values) == mostShared {
		s.values = make(map[K]V)
	}
	v := value()
	s.values[key] = v
	return v
}
