package api

import (
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Use is the GPU memory that a pod uses, as recorded by its node's device plugin.
type Use struct {
	UsedMiB int64     `json:"usedMiB"`
	PeakMiB int64     `json:"peakMiB"` // maximum since the device plugin started
	Time    time.Time `json:"time"`
}

// EncodeUse returns the value of the annotation Used.
func EncodeUse(use Use) (string, error) {
	data, err := json.Marshal(use)
	return string(data), err
}

// UseOf parses the recorded use of a pod. It returns false if none is recorded.
func (n Names) UseOf(pod *v1.Pod) (use Use, ok bool) {
	value, has := pod.Annotations[n.Used()]
	if !has || json.Unmarshal([]byte(value), &use) != nil || use.UsedMiB < 0 || use.PeakMiB < 0 {
		return Use{}, false
	}
	return use, true
}
