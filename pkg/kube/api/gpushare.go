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
// annotations on its own pods, but with the Binding, which managed fields do not record. gpushare's extender
// updates the pod, so the managed fields contain its annotation with the time. A pod without a request for
// GPU memory has no GPU, whatever its annotations. The chart implements the same rule
// (templates/validation/values.yaml).
func (n Names) PlacedByGPUShare(pod *v1.Pod) bool {
	_, indexed := pod.Annotations["ALIYUN_COM_GPU_MEM_IDX"]
	_, allocated := pod.Annotations["scheduler.framework.gpushare.allocation"]
	if n.domain != gpushareDomain || pod.Spec.NodeName == "" || !indexed && !allocated || !requestsResource(pod, n.GPUMem()) {
		return false
	}
	_, assigned := pod.Annotations[n.Assignment()]
	return !assigned || slices.ContainsFunc(pod.ManagedFields, func(m metav1.ManagedFieldsEntry) bool {
		if m.FieldsV1 == nil {
			return false
		}
		fields, err := m.FieldsV1.MarshalJSON() // the only method that Kubernetes 1.35 and 1.37 both have
		return err == nil && bytes.Contains(fields, []byte("f:ALIYUN_COM_GPU_MEM_ASSUME_TIME"))
	})
}
