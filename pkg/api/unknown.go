package api

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Unknown returns the annotations of a pod that are of the domain and mean
// nothing to gpumem: misspelt, or of another version.
func (n Names) Unknown(pod *v1.Pod) (keys []string) {
	known := []string{
		n.Count(), n.Policy(), n.Model(), n.UUID(), n.ModelPreference(), n.Group(), n.ExclusiveGroup(), n.EnforcementLevel(),
		n.Assignment(), n.Index(),
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		if strings.HasPrefix(key, n.domain+"/") && !slices.Contains(known, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
