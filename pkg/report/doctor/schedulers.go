package doctor

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Schedulers returns the names of the schedulers that ask gpumem about this
// resource, by the configurations of kube-scheduler among the ConfigMaps. It is
// empty where kube-scheduler is not the chart's.
func Schedulers(resource v1.ResourceName, configs []v1.ConfigMap) (names []string) {
	for i := range configs {
		if asks(&configs[i], resource) {
			names = append(names, profiles(&configs[i])...)
		}
	}
	return names
}

// asks reports whether a configuration has an extender for the resource.
func asks(config *v1.ConfigMap, resource v1.ResourceName) bool {
	type managed struct{ Name v1.ResourceName }
	var c struct {
		Extenders []struct{ ManagedResources []managed }
	}
	if err := yaml.Unmarshal([]byte(config.Data["config.yaml"]), &c); err != nil {
		return false
	}
	for _, e := range c.Extenders {
		if slices.Contains(e.ManagedResources, managed{resource}) {
			return true
		}
	}
	return false
}
