package plugin

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// Check rejects a profile that lacks an extension point of GPUMemory, or in which DefaultBinder or
// DefaultPreemption comes before GPUMemory. Such a profile could bind pods without a GPU, or evict
// more pods than necessary. Check does not look for other plugins that bind or evict.
func Check(profile string, plugins *config.Plugins) error {
	points := []struct {
		name  string
		set   config.PluginSet
		later string // plugin that must come after GPUMemory
	}{
		{"preEnqueue", plugins.PreEnqueue, ""},
		{"preFilter", plugins.PreFilter, ""},
		{"filter", plugins.Filter, ""},
		{"postFilter", plugins.PostFilter, names.DefaultPreemption},
		{"preScore", plugins.PreScore, ""},
		{"score", plugins.Score, ""},
		{"reserve", plugins.Reserve, ""},
		{"bind", plugins.Bind, names.DefaultBinder},
	}
	var errs []error
	for _, point := range points {
		index := func(name string) int {
			return slices.IndexFunc(point.set.Enabled, func(p config.Plugin) bool { return p.Name == name })
		}
		ours, other := index(Name), index(point.later)
		switch {
		case ours < 0:
			errs = append(errs, fmt.Errorf("profile %s: enable %s at %s", profile, Name, point.name))
		case other >= 0 && other < ours:
			errs = append(errs, fmt.Errorf("profile %s: %s comes before %s at %s: disable it there, and enable it again after", profile, point.later, Name, point.name))
		}
	}
	return errors.Join(errs...)
}

// CheckExtenders rejects extenders that would bind pods with GPU memory, because kube-scheduler calls their
// bind before any plugin.
func (s *State) CheckExtenders(extenders []config.Extender) error {
	ours := func(r config.ExtenderManagedResource) bool {
		return r.Name == string(s.conf.Names.GPUMem()) || r.Name == string(s.conf.Names.GPUShares())
	}
	var errs []error
	for _, e := range extenders {
		if e.BindVerb != "" && (len(e.ManagedResources) == 0 || slices.ContainsFunc(e.ManagedResources, ours)) {
			errs = append(errs, fmt.Errorf("the extender at %s would bind pods with GPU memory, without a GPU: leave out its bindVerb, or name other managedResources", e.URLPrefix))
		}
	}
	return errors.Join(errs...)
}
