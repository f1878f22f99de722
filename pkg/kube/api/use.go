package api

import (
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Usage is the GPU memory that a pod uses, as recorded by its node's device plugin.
type Usage struct {
	UsedMiB int64     `json:"usedMiB"`
	PeakMiB int64     `json:"peakMiB"` // maximum since the device plugin started
	Time    time.Time `json:"time"`
}

// EncodeUsage returns the value of the annotation Used.
func EncodeUsage(use Usage) (string, error) {
	data, err := json.Marshal(use)
	return string(data), err
}

// ParseUsage parses the recorded use of a pod. It returns false if none is recorded.
func (n Names) ParseUsage(pod *v1.Pod) (use Usage, ok bool) {
	value, has := pod.Annotations[n.Used()]
	if !has || json.Unmarshal([]byte(value), &use) != nil || use.UsedMiB < 0 || use.PeakMiB < 0 {
		return Usage{}, false
	}
	return use, true
}
