package podlabels

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// ForAssignment returns the labels for an assignment on a node. A nil value means that the pod must not have the
// label, because its GPUs are of several models or the speed of one is unknown. The function returns nil if labels
// are off.
//
//	assigned-model    the name from NVML, with "-" for characters that labels cannot contain
//	assigned-percent  the pod's part of a GPU's memory, in per cent; 200 for two whole GPUs
//	assigned-speed    the speed of the model, 100 for an A100, times the pod's part of the cores, or of
//	                  the memory if the pod requests no cores
func ForAssignment(n api.Names, a placement.Assignment, node placement.Node) map[string]*string {
	if !n.LabelPods {
		return nil
	}
	prefix := n.Domain() + "/assigned-"
	out := map[string]*string{prefix + "model": nil, prefix + "percent": nil, prefix + "speed": nil}
	var models []string
	memory, speed, speedKnown := 0.0, 0.0, true
	for _, s := range a.Shares {
		i := slices.IndexFunc(node.Devices, func(d placement.Device) bool { return d.UUID == s.Device })
		if i < 0 || node.Devices[i].Allocatable < 1 {
			return out
		}
		d := &node.Devices[i]
		models = append(models, d.Model)
		part := float64(s.Units) / float64(d.Allocatable)
		memory += part
		if s.Cores > 0 {
			part = float64(s.Cores) / gpu.CoresPerDevice
		}
		speed += part * float64(d.Speed)
		speedKnown = speedKnown && d.Speed > 0
	}
	set := func(name, value string) { out[prefix+name] = &value }
	set("percent", formatWeight(100*memory))
	if speedKnown {
		set("speed", formatWeight(speed))
	}
	if models = slices.Compact(models); len(models) == 1 {
		if model := labelValue(models[0]); model != "" {
			set("model", model)
		}
	}
	return out
}

// WithValues returns the labels whose value is not nil.
func WithValues(labels map[string]*string) (set map[string]string) {
	for key, value := range labels {
		if value != nil {
			if set == nil {
				set = make(map[string]string)
			}
			set[key] = *value
		}
	}
	return set
}

// formatWeight rounds to an integer of at least 1: a weight of 0 would get no requests at all.
func formatWeight(x float64) string { return strconv.Itoa(max(1, int(math.Round(x)))) }

var notInLabels = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// labelValue converts a text to a valid label value. The value is empty if no character is allowed.
func labelValue(s string) string {
	s = strings.TrimLeft(notInLabels.ReplaceAllString(s, "-"), "_.-")
	return strings.TrimRight(s[:min(len(s), validation.LabelValueMaxLength)], "_.-")
}
