package controller

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/api"
)

// trim returns an informer's transform function that keeps of objects only
// what gpumem reads.
func trim(names api.Names) toolscache.TransformFunc {
	return func(obj any) (any, error) {
		switch o := obj.(type) {
		case *v1.Pod:
			return trimPod(names, o), nil
		case *v1.Node:
			small := &v1.Node{ObjectMeta: trimMeta(names, o.ObjectMeta)}
			if cpu, ok := o.Status.Allocatable[v1.ResourceCPU]; ok {
				small.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: cpu}
			}
			return small, nil
		case *policyv1.PodDisruptionBudget:
			return &policyv1.PodDisruptionBudget{
				ObjectMeta: trimMeta(names, o.ObjectMeta),
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: o.Spec.Selector},
				Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: o.Status.DisruptionsAllowed, DisruptedPods: o.Status.DisruptedPods},
			}, nil
		default:
			return obj, nil
		}
	}
}

func trimPod(names api.Names, pod *v1.Pod) *v1.Pod {
	small := &v1.Pod{
		ObjectMeta: trimMeta(names, pod.ObjectMeta),
		Spec:       v1.PodSpec{NodeName: pod.Spec.NodeName, Priority: pod.Spec.Priority},
		Status: v1.PodStatus{
			Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, NominatedNodeName: pod.Status.NominatedNodeName,
		},
	}
	if !names.Holds(pod) {
		small.Annotations = nil
		if cpu := api.CPU(pod); cpu > 0 {
			sum := v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI)}
			small.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: sum}}}
		}
		return small
	}
	small.Spec.Overhead, small.Spec.Resources = pod.Spec.Overhead, pod.Spec.Resources
	small.Labels = pod.Labels // what a PodDisruptionBudget selects by
	small.Spec.InitContainers = trimContainers(pod.Spec.InitContainers)
	small.Spec.Containers = trimContainers(pod.Spec.Containers)
	return small
}

func trimContainers(containers []v1.Container) []v1.Container {
	out := make([]v1.Container, 0, len(containers))
	for _, c := range containers {
		out = append(out, v1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy})
	}
	return out
}

func trimMeta(names api.Names, meta metav1.ObjectMeta) metav1.ObjectMeta {
	small := metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID,
		ResourceVersion: meta.ResourceVersion, CreationTimestamp: meta.CreationTimestamp,
		DeletionTimestamp: meta.DeletionTimestamp,
	}
	for key, value := range meta.Annotations {
		if strings.HasPrefix(key, names.Domain()+"/") {
			if small.Annotations == nil {
				small.Annotations = make(map[string]string)
			}
			small.Annotations[key] = value
		}
	}
	return small
}
