package api

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Preferences returns the names of kube-scheduler's plugins that score nodes by preferences in the pod's
// spec: affinity, anti-affinity and soft spreading. It returns none if the spec has no such preference.
func Preferences(pod *v1.Pod) (plugins []string) {
	if a := pod.Spec.Affinity; a != nil {
		if n := a.NodeAffinity; n != nil && len(n.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			plugins = append(plugins, "NodeAffinity")
		}
		with, without := a.PodAffinity, a.PodAntiAffinity
		if with != nil && len(with.PreferredDuringSchedulingIgnoredDuringExecution) > 0 || without != nil && len(without.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
			plugins = append(plugins, "InterPodAffinity")
		}
	}
	if slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c v1.TopologySpreadConstraint) bool { return c.WhenUnsatisfiable == v1.ScheduleAnyway }) {
		plugins = append(plugins, "PodTopologySpread")
	}
	return plugins
}
