package gpushare

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
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// What gpushare calls things, as annotations of a pod and in the environment of
// its containers. Amounts are in units.
const (
	Index       = "ALIYUN_COM_GPU_MEM_IDX"         // index of the GPU
	Pod         = "ALIYUN_COM_GPU_MEM_POD"         // what the pod asks for
	Container   = "ALIYUN_COM_GPU_MEM_CONTAINER"   // what the container asks for; environment only
	Device      = "ALIYUN_COM_GPU_MEM_DEV"         // all of the GPU's memory
	assignedKey = "ALIYUN_COM_GPU_MEM_ASSIGNED"    // "false" at first, "true" once the kubelet has admitted the pod
	assumedKey  = "ALIYUN_COM_GPU_MEM_ASSUME_TIME" // when it was bound, in ns since 1970

	// allocationKey is of gpushare's successor inside a scheduler
	// framework: {"<container>":{"<index>":<units>}}.
	allocationKey = "scheduler.framework.gpushare.allocation"
)

// Reads reports whether an annotation is one that gpumem reads.
func Reads(n api.Names, key string) bool {
	if n.GPUShare() && slices.Contains([]string{Index, assignedKey, allocationKey}, key) {
		return true
	}
	return strings.HasPrefix(key, n.Domain()+"/")
}

// Indexes returns the indexes of the GPUs that gpushare's scheduler
// chose for a pod, in order: none where it chose none, and where what it wrote
// cannot be read.
func Indexes(n api.Names, pod *v1.Pod) []int {
	if !n.GPUShare() || !api.Believed(pod) {
		return nil
	}
	if index, err := strconv.Atoi(pod.Annotations[Index]); err == nil && index >= 0 {
		return []int{index}
	}
	var allocation map[string]map[int]int64
	if json.Unmarshal([]byte(pod.Annotations[allocationKey]), &allocation) != nil {
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

// Waits reports whether gpushare's annotations say that the kubelet has
// not admitted the pod yet.
func Waits(n api.Names, pod *v1.Pod) bool {
	return n.GPUShare() && pod.Annotations[assignedKey] == "false"
}

// Annotations returns what gpushare would write of an assignment to
// GPUs of a node, or nothing under other names than gpushare's. The time is left
// out when it is zero.
func Annotations(n api.Names, a placement.Assignment, on placement.Node, assumed time.Time, assigned bool) map[string]string {
	if !n.GPUShare() {
		return nil
	}
	var total gpu.Units
	device := placement.Device{Device: &gpu.Device{}}
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
		Pod:         strconv.FormatInt(int64(total), 10),
		Device:      strconv.FormatInt(int64(gpu.UnitsIn(device.MemoryMiB, 0, on.UnitMiB)), 10),
		assignedKey: strconv.FormatBool(assigned),
	}
	if !assumed.IsZero() {
		out[assumedKey] = strconv.FormatInt(assumed.UnixNano(), 10)
	}
	if len(byIndex) == 1 {
		out[Index] = strconv.Itoa(device.Index)
		return out
	}
	// Its tools add up the containers of a pod, so one may stand for all.
	if allocation, err := json.Marshal(map[string]map[int]gpu.Units{"0": byIndex}); err == nil {
		out[allocationKey] = string(allocation)
	}
	return out
}
