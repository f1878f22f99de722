package doctor

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Stage is the maturity of a feature.
type Stage string

// The stages. docs/stability.md explains them.
const (
	Alpha  Stage = "alpha"
	Beta   Stage = "beta"
	Stable Stage = "stable"
)

// A Feature is a part of gpumem that users choose.
type Feature struct {
	Name    string
	Stage   Stage
	Since   string // the version in which it appeared
	Setting string // the setting that turns it on, in Markdown
	Doc     string // the page of docs/ about it

	isUsed func(*State, installation) bool // reports whether the cluster uses it; nil if its objects do not show that
}

// Features returns the table of all features.
func Features() []Feature {
	return []Feature{
		{"GPU memory of one GPU or several", Stable, "0.1.0", "`gpumem.dev/gpu-mem`, `gpu-count`", "pods.md", nil},
		{"policies, models, groups", Stable, "0.1.0", "[annotations](pods.md#annotations)", "choosing-gpus.md", nil},
		{"scheduler extender", Stable, "0.1.0", "`scheduler.mode: extender` or `existing`", "extender.md", nil},
		{"scheduler plugin", Stable, "0.2.0", "`scheduler.mode: bundled` or `plugin`", "how-it-works.md", nil},
		{"cores", Beta, "0.1.0", "`cores`", "choosing-gpus.md", pluginFlagIs("cores", "true")},
		{"labels of pods", Beta, "0.2.0", "`labelPods`", "routers.md", func(_ *State, inst installation) bool {
			return inst.scheduler != nil && set(inst.scheduler.Spec.Template.Spec, "label-pods")
		}},
		{"page", Beta, "0.1.0", "`extender.page`", "seeing.md#the-page", func(_ *State, inst installation) bool {
			return inst.scheduler != nil && set(inst.scheduler.Spec.Template.Spec, "page")
		}},
		{"level mps", Alpha, "0.1.0", "`mps.enabled`", "limits.md", func(_ *State, inst installation) bool { return inst.mps != nil }},
		{"level kernel", Alpha, "0.1.0", "driver 615 or newer", "limits.md", func(s *State, _ installation) bool { return s.enforces(gpu.EnforcementKernel) }},
		{"defrag --apply", Alpha, "0.1.0", "`kubectl inspect gpumem defrag POD --apply`", "packing.md", nil},
		{"shares", Alpha, "0.2.0", "`shares.enabled`", "shares.md", pluginFlagIs("shares", "true")},
		{"MIG instances", Alpha, "0.2.0", "`devicePlugin.mig`", "mig.md", func(_ *State, inst installation) bool {
			return inst.plugin != nil && set(inst.plugin.Spec.Template.Spec, "mig")
		}},
		{"CDI hook", Alpha, "0.2.0", "`devicePlugin.cdi.hook`", "install.md", func(_ *State, inst installation) bool {
			return inst.plugin != nil && Flag(inst.plugin.Spec.Template.Spec, "cdi-hook", "") != ""
		}},
		{"claims", Alpha, "0.2.0", "`claims.enabled`", "claims.md", func(_ *State, inst installation) bool {
			return inst.plugin != nil && set(inst.plugin.Spec.Template.Spec, "claims")
		}},
	}
}

// pluginFlagIs reports whether the device plugin has a flag with a value.
func pluginFlagIs(name, value string) func(*State, installation) bool {
	return func(_ *State, inst installation) bool {
		return inst.plugin != nil && Flag(inst.plugin.Spec.Template.Spec, name, "") == value
	}
}

// set reports whether one of gpumem's containers has a boolean flag.
func set(spec v1.PodSpec, name string) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c v1.Container) bool {
		return strings.HasPrefix(c.Name, "gpumem-") && slices.Contains(c.Args, "--"+name)
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
	for _, stage := range []Stage{Alpha, Beta} {
		var used []string
		for _, f := range Features() {
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
