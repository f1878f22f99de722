package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
)

// gpushareDomain is the domain under which gpumem stands in for gpushare
// (github.com/AliyunContainerService): it then also speaks gpushare's
// annotations, environment, routes and node capacity, so that what was written
// for gpushare goes on working.
const gpushareDomain = "aliyun.com"

// What gpushare calls things, as annotations of a pod and in the environment of
// its containers. Amounts are in units.
const (
	GPUShareIndex     = "ALIYUN_COM_GPU_MEM_IDX"         // index of the GPU
	GPUSharePod       = "ALIYUN_COM_GPU_MEM_POD"         // what the pod asks for
	GPUShareContainer = "ALIYUN_COM_GPU_MEM_CONTAINER"   // what the container asks for; environment only
	GPUShareDevice    = "ALIYUN_COM_GPU_MEM_DEV"         // all of the GPU's memory
	gpushareAssigned  = "ALIYUN_COM_GPU_MEM_ASSIGNED"    // "false" at first, "true" once the kubelet has admitted the pod
	gpushareAssumed   = "ALIYUN_COM_GPU_MEM_ASSUME_TIME" // when it was bound, in ns since 1970

	// gpushareAllocation is of gpushare's successor inside a scheduler
	// framework: {"<container>":{"<index>":<units>}}.
	gpushareAllocation = "scheduler.framework.gpushare.allocation"
)

// GPUShare reports whether the names are gpushare's.
func (n Names) GPUShare() bool { return n.domain == gpushareDomain }

// GPUCount is the capacity in which a node of gpushare counts its GPUs. No pod
// asks for it.
func (n Names) GPUCount() v1.ResourceName { return v1.ResourceName(n.domain + "/gpu-count") }

// Reads reports whether an annotation is one that gpumem reads.
func (n Names) Reads(key string) bool {
	if n.GPUShare() && slices.Contains([]string{GPUShareIndex, gpushareAssigned, gpushareAllocation}, key) {
		return true
	}
	return strings.HasPrefix(key, n.domain+"/")
}

// GPUShareIndexes returns the indexes of the GPUs that gpushare's scheduler
// chose for a pod, in order: none where it chose none, and where what it wrote
// cannot be read.
func (n Names) GPUShareIndexes(pod *v1.Pod) []int {
	if !n.GPUShare() {
		return nil
	}
	if !believed(pod) {
		return nil
	}
	if index, err := strconv.Atoi(pod.Annotations[GPUShareIndex]); err == nil && index >= 0 {
		return []int{index}
	}
	var allocation map[string]map[int]int64
	if json.Unmarshal([]byte(pod.Annotations[gpushareAllocation]), &allocation) != nil {
		return nil
	}
	indexes := make(map[int]bool)
	for _, byIndex := range allocation {
		for index := range byIndex {
			if index < 0 {
				return nil
			}
			indexes[index] = true
		}
	}
	return slices.Sorted(maps.Keys(indexes))
}

// GPUShareWaits reports whether gpushare's annotations say that the kubelet has
// not admitted the pod yet.
func (n Names) GPUShareWaits(pod *v1.Pod) bool {
	return n.GPUShare() && pod.Annotations[gpushareAssigned] == "false"
}

// GPUShareAnnotations returns what gpushare would write of an assignment to
// GPUs of a node, or nothing under other names than gpushare's. The time is left
// out when it is zero.
func (n Names) GPUShareAnnotations(a placement.Assignment, on placement.Node, assumed time.Time, assigned bool) map[string]string {
	if !n.GPUShare() {
		return nil
	}
	var total gpu.Units
	device := placement.Device{}
	byIndex := make(map[int]gpu.Units)
	for _, s := range a.Shares {
		total += s.Units
		for _, d := range on.Devices {
			if d.UUID == s.Device {
				byIndex[d.Index], device = s.Units, d
			}
		}
	}
	out := map[string]string{
		GPUSharePod:      strconv.FormatInt(int64(total), 10),
		GPUShareDevice:   strconv.FormatInt(int64(gpu.UnitsIn(device.MemoryMiB, 0, on.UnitMiB)), 10),
		gpushareAssigned: strconv.FormatBool(assigned),
	}
	if !assumed.IsZero() {
		out[gpushareAssumed] = strconv.FormatInt(assumed.UnixNano(), 10)
	}
	if len(byIndex) == 1 {
		out[GPUShareIndex] = strconv.Itoa(device.Index)
		return out
	}
	// Its tools add up the containers of a pod, so one may stand for all.
	if allocation, err := json.Marshal(map[string]map[int]gpu.Units{"0": byIndex}); err == nil {
		out[gpushareAllocation] = string(allocation)
	}
	return out
}
