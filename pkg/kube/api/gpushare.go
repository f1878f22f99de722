package api

import (
	"bytes"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// gpushareDomain is the resource domain of gpushare (github.com/AliyunContainerService). With this
// domain, gpumem accepts gpushare's manifests.
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
		if m.FieldsV1 == nil {
			return false
		}
		fields, err := m.FieldsV1.MarshalJSON() // in Kubernetes 1.35 there is no other way that 1.37 has too
		return err == nil && bytes.Contains(fields, []byte("f:ALIYUN_COM_GPU_MEM_ASSUME_TIME"))
	})
}
