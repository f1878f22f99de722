package doctor

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// stage is the maturity of a feature.
type stage string

// The stages. docs/stability.md explains them.
const (
	alpha  stage = "alpha"
	beta   stage = "beta"
	stable stage = "stable"
)

// A feature is a part of gpumem that users choose.
type feature struct {
	Name    string
	Stage   stage
	Since   string // the version in which it appeared
	Setting string // the setting that turns it on, in Markdown
	Doc     string // the page of docs/ about the feature

	isUsed func(*State, installation) bool // reports whether the cluster uses the feature; nil if no object shows the use
}

// features returns the table of all features.
func features() []feature {
	return []feature{
		{"GPU memory of one GPU or several", stable, "0.1.0", "`gpumem.dev/gpu-mem`, `gpu-count`", "pods.md", nil},
		{"policies, models, groups", stable, "0.1.0", "[annotations](pods.md#annotations)", "choosing-gpus.md", nil},
		{"scheduler extender", stable, "0.1.0", "`scheduler.mode: extender` or `existing`", "extender.md", nil},
		{"scheduler plugin", stable, "0.2.0", "`scheduler.mode: bundled` or `plugin`", "how-it-works.md", nil},
		{"cores", beta, "0.1.0", "`cores`", "choosing-gpus.md", pluginHas("--cores=true")},
		{"labels of pods", beta, "0.2.0", "`labelPods`", "routers.md", schedulerHas("--label-pods")},
		{"page", beta, "0.1.0", "`extender.page`", "seeing.md#the-page", schedulerHas("--page")},
		{"level mps", alpha, "0.1.0", "`mps.enabled`", "limits.md", func(_ *State, inst installation) bool { return inst.mps != nil }},
		{"level kernel", alpha, "0.1.0", "driver 615 or newer", "limits.md", func(s *State, _ installation) bool { return s.enforces(gpu.EnforcementKernel) }},
		{"defrag --apply", alpha, "0.1.0", "`kubectl inspect gpumem defrag POD --apply`", "packing.md", nil},
		{"shares", alpha, "0.2.0", "`shares.enabled`", "shares.md", pluginHas("--shares=true")},
		{"MIG instances", alpha, "0.2.0", "`devicePlugin.mig`", "mig.md", pluginHas("--mig")},
		{"CDI hook", alpha, "0.2.0", "`devicePlugin.cdi.hook`", "install.md", func(_ *State, inst installation) bool {
			return inst.plugin != nil && Flag(inst.plugin.Spec.Template.Spec, "cdi-hook", "") != ""
		}},
		{"claims", alpha, "0.2.0", "`claims.enabled`", "claims.md", pluginHas("--claims")},
	}
}

// pluginHas reports whether the device plugin has an argument.
func pluginHas(arg string) func(*State, installation) bool {
	return func(_ *State, inst installation) bool {
		return inst.plugin != nil && hasArg(inst.plugin.Spec.Template.Spec, arg)
	}
}

// schedulerHas reports whether the scheduler has an argument.
func schedulerHas(arg string) func(*State, installation) bool {
	return func(_ *State, inst installation) bool {
		return inst.scheduler != nil && hasArg(inst.scheduler.Spec.Template.Spec, arg)
	}
}

// hasArg reports whether one of gpumem's containers has an argument.
func hasArg(spec v1.PodSpec, arg string) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c v1.Container) bool {
		return strings.HasPrefix(c.Name, "gpumem-") && slices.Contains(c.Args, arg)
	})
}

// enforces reports whether a node with GPUs has an enforcement level.
func (s *State) enforces(level gpu.Enforcement) bool {
	return slices.ContainsFunc(s.Nodes, func(node v1.Node) bool {
		inv, err := s.Names.InventoryOf(&node)
		return err == nil && len(inv.Devices) > 0 && inv.Enforcement == level
	})
}

func checkFeatures(s *State, inst installation) (result findings) {
	for _, stage := range []stage{alpha, beta} {
		var used []string
		for _, f := range features() {
			if f.Stage == stage && f.isUsed != nil && f.isUsed(s, inst) {
				used = append(used, f.Name)
			}
		}
		if len(used) > 0 {
			result.add(Note, "cluster", "", "uses features of the stage %s: %s", stage, strings.Join(used, ", "))
		}
	}
	return result
}
