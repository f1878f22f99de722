package api

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gpushareDomain is the resource domain of gpushare (github.com/AliyunContainerService), whose manifests
// gpumem runs under that domain.
const gpushareDomain = "aliyun.com"

// PlacedByGPUShare reports whether gpushare's extender placed the pod. Version 0.2 of gpumem wrote the same
// annotations on its own pods. It did so by the Binding, which the managed fields do not record, while
// gpushare's extender updates the pod: only then they contain the annotation with the time. A pod
// that requests no GPU memory has no GPU, whatever its annotations. The chart has the same rule
// (templates/validation/values.yaml).
func (n Names) PlacedByGPUShare(pod *v1.Pod) bool {
	_, indexed := pod.Annotations["ALIYUN_COM_GPU_MEM_IDX"]
	_, allocated := pod.Annotations["scheduler.framework.gpushare.allocation"]
	if n.domain != gpushareDomain || pod.Spec.NodeName == "" || !indexed && !allocated || !asksFor(pod, n.GPUMem()) {
		return false
	}
	_, assigned := pod.Annotations[n.Assignment()]
	return !assigned || slices.ContainsFunc(pod.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		return m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), "f:ALIYUN_COM_GPU_MEM_ASSUME_TIME")
	})
}
