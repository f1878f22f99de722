package api

import (
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Use is the GPU memory that a pod uses, as its node's device plugin last recorded it.
type Use struct {
	UsedMiB int64     `json:"usedMiB"`
	PeakMiB int64     `json:"peakMiB"` // the most since the device plugin started
	Time    time.Time `json:"time"`
}

// EncodeUse returns the value of the annotation Used.
func EncodeUse(use Use) (string, error) {
	data, err := json.Marshal(use)
	return string(data), err
}

// UseOf reads the use that is recorded on a pod. It is not ok if there is none.
func (n Names) UseOf(pod *v1.Pod) (use Use, ok bool) {
	value, has := pod.Annotations[n.Used()]
	if !has || json.Unmarshal([]byte(value), &use) != nil || use.UsedMiB < 0 || use.PeakMiB < 0 {
		return Use{}, false
	}
	return use, true
}
