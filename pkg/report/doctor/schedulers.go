package doctor

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// plugin is the name of gpumem's plugin in a configuration of kube-scheduler.
const plugin = "GPUMemory"

// Schedulers returns the names of the profiles that call gpumem, from configurations of kube-scheduler in
// ConfigMaps: profiles with gpumem's plugin, and all profiles of a configuration that has an extender for
// this resource. It returns none if the chart does not run kube-scheduler.
func Schedulers(resource v1.ResourceName, configs []v1.ConfigMap) (names []string) {
	type enabled struct {
		Enabled []struct{ Name string }
	}
	type managed struct{ Name v1.ResourceName }
	for i := range configs {
		var c struct {
			Profiles []struct {
				SchedulerName string
				Plugins       struct{ MultiPoint enabled }
			}
			Extenders []struct{ ManagedResources []managed }
		}
		if err := yaml.Unmarshal([]byte(configs[i].Data["config.yaml"]), &c); err != nil {
			continue
		}
		asked := false
		for _, e := range c.Extenders {
			asked = asked || slices.Contains(e.ManagedResources, managed{resource})
		}
		for _, p := range c.Profiles {
			if asked || slices.Contains(p.Plugins.MultiPoint.Enabled, struct{ Name string }{plugin}) {
				names = append(names, p.SchedulerName)
			}
		}
	}
	return names
}
