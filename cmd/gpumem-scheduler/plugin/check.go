package plugin

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// Check rejects a profile that lacks an extension point of GPUMemory, or in which another plugin may bind or
// evict pods before GPUMemory. kube-scheduler calls the plugins of a point in order, until one has bound the
// pod or has found victims.
func Check(profile string, plugins *config.Plugins) error {
	var errs []error
	for _, point := range []struct {
		name string
		set  config.PluginSet
		harm string // by plugins that come before GPUMemory; empty: none
	}{
		{"preEnqueue", plugins.PreEnqueue, ""},
		{"preFilter", plugins.PreFilter, ""},
		{"filter", plugins.Filter, ""},
		{"postFilter", plugins.PostFilter, "evict more pods than necessary"},
		{"preScore", plugins.PreScore, ""},
		{"score", plugins.Score, ""},
		{"reserve", plugins.Reserve, ""},
		{"bind", plugins.Bind, "bind pods without a GPU"},
	} {
		ours := slices.IndexFunc(point.set.Enabled, func(p config.Plugin) bool { return p.Name == Name })
		if ours < 0 {
			errs = append(errs, fmt.Errorf("profile %s: enable %s at %s", profile, Name, point.name))
			continue
		}
		for _, other := range point.set.Enabled[:ours] {
			if point.harm != "" && other.Name != names.DynamicResources { // it evicts no pods
				errs = append(errs, fmt.Errorf("profile %s: %s comes before %s at %s and could %s: enable %s first at %s", profile, other.Name, Name, point.name, point.harm, Name, point.name))
			}
		}
	}
	return errors.Join(errs...)
}

// CheckExtenders rejects extenders that would bind pods with GPU memory, because kube-scheduler calls their
// bind before any plugin.
func (s *State) CheckExtenders(extenders []config.Extender) error {
	memory := func(r config.ExtenderManagedResource) bool {
		return r.Name == string(s.Names.GPUMem()) || r.Name == string(s.Names.GPUShares())
	}
	var errs []error
	for _, e := range extenders {
		if e.BindVerb != "" && (len(e.ManagedResources) == 0 || slices.ContainsFunc(e.ManagedResources, memory)) {
			errs = append(errs, fmt.Errorf("the extender at %s would bind pods with GPU memory, without a GPU: leave out its bindVerb, or name other managedResources", e.URLPrefix))
		}
	}
	return errors.Join(errs...)
}
