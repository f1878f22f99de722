package doctor

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Labels of the chart.
const (
	partOfLabel = "app.kubernetes.io/part-of"
	component   = "app.kubernetes.io/component"
	instance    = "app.kubernetes.io/instance"
	version     = "app.kubernetes.io/version"
)

// install is the remedy for missing workloads, also of an existing release.
const install = "helm upgrade --install gpumem charts/gpumem --namespace gpumem-system --create-namespace, with the values of an existing release (-f). If the release is in another namespace, name it with --gpumem-namespace"

// An installation is one release of the chart.
type installation struct {
	plugin    *appsv1.DaemonSet
	second    *appsv1.DaemonSet // another device plugin of the same domain; nil if there is none
	domains   []string          // resource domains of other device plugins
	mps       *appsv1.DaemonSet // nil if MPS is off
	scheduler *appsv1.Deployment
	config    *v1.ConfigMap // of the chart's kube-scheduler; nil if the cluster's own kube-scheduler calls gpumem-extender
}

// bundled reports whether the release runs its own kube-scheduler.
func (i installation) bundled() bool {
	return i.scheduler != nil && i.scheduler.Labels[component] == "scheduler"
}

// object names the DaemonSet of the device plugin.
func (i installation) object() string { return "daemonset " + namespacedName(i.plugin.ObjectMeta) }

// schedulers returns the names of the schedulers that call gpumem; none if the chart did not configure
// kube-scheduler.
func (i installation) schedulers(names api.Names) []string {
	if i.config == nil {
		return nil
	}
	return Schedulers(names.GPUMem(), []v1.ConfigMap{*i.config})
}

// findInstallation returns the installation of the requested domain.
func findInstallation(s *State) (inst installation) {
	if !s.read("daemonsets", "deployments") {
		return inst
	}
	inst.findPlugin(s)
	for i := range s.DaemonSets {
		ds := &s.DaemonSets[i]
		if inst.plugin != nil && ds.Namespace == inst.plugin.Namespace && ds.Labels[instance] == inst.plugin.Labels[instance] && ds.Labels[component] == "mps" {
			inst.mps = ds
		}
	}
	for i := range s.Deployments {
		d := &s.Deployments[i]
		if d.Labels[partOfLabel] == "gpumem" && Flag(d.Spec.Template.Spec, "resource-domain", "") == s.Names.Domain() {
			inst.scheduler = d
		}
	}
	for i := range s.ConfigMaps {
		if c := &s.ConfigMaps[i]; inst.scheduler != nil && c.Namespace == inst.scheduler.Namespace && c.Name == inst.scheduler.Name {
			inst.config = c
		}
	}
	return inst
}

// findPlugin finds the device plugin of the requested domain, and records the domains of other device
// plugins.
func (i *installation) findPlugin(s *State) {
	for n := range s.DaemonSets {
		ds := &s.DaemonSets[n]
		if ds.Labels[partOfLabel] != "gpumem" || ds.Labels[component] != "device-plugin" {
			continue
		}
		switch domain := Flag(ds.Spec.Template.Spec, "resource-domain", api.DefaultDomain); {
		case domain != s.Names.Domain():
			i.domains = append(i.domains, domain)
		case i.plugin != nil:
			i.second = ds
		default:
			i.plugin = ds
		}
	}
}

func checkInstalled(s *State, inst installation) (result findings) {
	if !s.read("daemonsets", "deployments") {
		return nil
	}
	if inst.plugin == nil {
		fix := ""
		if len(inst.domains) > 0 {
			fix = fmt.Sprintf("ask about an installed domain: --resource-domain=%s; or install this one", strings.Join(inst.domains, " or "))
		}
		result.add(Error, "cluster", fix, "no device plugin for %s is installed", s.Names.Domain())
	}
	if inst.second != nil {
		result.add(Error, "daemonset "+namespacedName(inst.second.ObjectMeta), "uninstall one of the two releases",
			"is a second device plugin for %s, next to %s: both offer the same GPUs", s.Names.Domain(), namespacedName(inst.plugin.ObjectMeta))
	}
	if inst.scheduler == nil {
		result.add(Error, "cluster", "", "no scheduler for %s is installed: nothing places pods on GPUs", s.Names.Domain())
	}
	return result
}

// Flag returns the value of a flag of gpumem's containers in a pod. Parameter otherwise is the result if no
// container sets the flag.
func Flag(spec v1.PodSpec, name, otherwise string) string {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if !strings.HasPrefix(c.Name, "gpumem-") {
			continue
		}
		for _, arg := range c.Args {
			if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
				otherwise = value
			}
		}
	}
	return otherwise
}
