package plugin

import (
	"testing"

	"go.uber.org/zap"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

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
