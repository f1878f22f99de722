package api

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Unknown returns the annotations of a pod that are in the domain and unknown to gpumem: misspelt, or of
// another version.
func (n Names) Unknown(pod *v1.Pod) (keys []string) {
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		name, ours := strings.CutPrefix(key, n.domain+"/")
		if ours && !slices.ContainsFunc(annotations[:], func(a annotation) bool { return a.name == name && a.writer.onPods() }) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Unoffered returns the unknown resources of the domain that an unbound pod requests: gpumem does not
// define them, and no node offers them. Unoffered ignores gpushare's domain, in which other software has
// resources too.
func (n Names) Unoffered(pod *v1.Pod, offered func(v1.ResourceName) bool) (names []v1.ResourceName) {
	if pod.Spec.NodeName != "" || n.domain == gpushareDomain {
		return nil
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, name := range slices.Sorted(maps.Keys(c.Resources.Limits)) {
			ours := strings.HasPrefix(string(name), n.domain+"/") && !slices.Contains([]v1.ResourceName{n.GPUMem(), n.GPUShares(), n.GPUCore()}, name)
			if amount := c.Resources.Limits[name]; ours && !amount.IsZero() && !offered(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
