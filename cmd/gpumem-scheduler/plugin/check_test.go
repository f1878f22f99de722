package plugin

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/service"
)

// kube-scheduler calls the bind of an extender before the plugin, so the extender would bind pods without a
// GPU.
func TestExtendersThatBindAreRefused(t *testing.T) {
	gpumem, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	s := NewState(zap.NewNop(), "test", service.Config{Names: gpumem})
	of := func(names ...string) (out []config.ExtenderManagedResource) {
		for _, name := range names {
			out = append(out, config.ExtenderManagedResource{Name: name})
		}
		return out
	}
	for name, tc := range map[string]struct {
		extender config.Extender
		wantErr  bool
	}{
		"filters all pods":   {config.Extender{FilterVerb: "filter"}, false},
		"binds all pods":     {config.Extender{BindVerb: "bind"}, true},
		"binds others":       {config.Extender{BindVerb: "bind", ManagedResources: of("example.com/fpga")}, false},
		"binds ours":         {config.Extender{BindVerb: "bind", ManagedResources: of("example.com/fpga", string(gpumem.GPUMem()))}, true},
		"binds those shares": {config.Extender{BindVerb: "bind", ManagedResources: of(string(gpumem.GPUShares()))}, true},
	} {
		if err := s.CheckExtenders([]config.Extender{tc.extender}); (err != nil) != tc.wantErr {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// kube-scheduler calls the plugins of an extension point in order. A plugin that binds pods before GPUMemory
// would bind pods without a GPU, and one that evicts pods before GPUMemory may evict pods of a second GPU.
func TestCheck(t *testing.T) {
	const outOfTree = "GangBinder"
	for name, tc := range map[string]struct {
		change func(*config.Plugins, config.PluginSet)
		before string   // plugin that the change enables before GPUMemory
		want   []string // parts of the error; nil: no error
	}{
		"only GPUMemory":                          {change: func(*config.Plugins, config.PluginSet) {}},
		"DefaultBinder before bind":               {func(p *config.Plugins, set config.PluginSet) { p.Bind = set }, names.DefaultBinder, []string{names.DefaultBinder, "at bind"}},
		"an out-of-tree plugin before bind":       {func(p *config.Plugins, set config.PluginSet) { p.Bind = set }, outOfTree, []string{outOfTree, "at bind", "profile test"}},
		"DefaultPreemption before postFilter":     {func(p *config.Plugins, set config.PluginSet) { p.PostFilter = set }, names.DefaultPreemption, []string{names.DefaultPreemption, "at postFilter"}},
		"an out-of-tree plugin before postFilter": {func(p *config.Plugins, set config.PluginSet) { p.PostFilter = set }, outOfTree, []string{outOfTree, "at postFilter"}},
		"DynamicResources evicts no pod":          {func(p *config.Plugins, set config.PluginSet) { p.PostFilter = set }, names.DynamicResources, nil},
		"an out-of-tree plugin before filter":     {func(p *config.Plugins, set config.PluginSet) { p.Filter = set }, outOfTree, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ours := config.PluginSet{Enabled: []config.Plugin{{Name: Name}, {Name: names.DefaultBinder}, {Name: outOfTree}}}
			plugins := &config.Plugins{PreEnqueue: ours, PreFilter: ours, Filter: ours, PostFilter: ours, PreScore: ours, Score: ours, Reserve: ours, Bind: ours}
			tc.change(plugins, config.PluginSet{Enabled: []config.Plugin{{Name: tc.before}, {Name: Name}}})
			err := Check("test", plugins)
			if tc.want == nil && err != nil {
				t.Errorf("got error %q, want none", err)
			}
			for _, part := range tc.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("got error %v, want one that contains %q", err, part)
				}
			}
		})
	}
}
