package doctor

import (
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/gpu"
)

// checkNodes looks at what nodes say that they offer.
func checkNodes(s *State, ds *appsv1.DaemonSet) (found []Finding) {
	if !s.read("nodes") {
		return nil
	}
	unit, err := strconv.ParseInt(flagOf(ds.Spec.Template.Spec, "unit-mib", "1024"), 10, 64)
	if err != nil {
		unit = 0
	}
	asked := gpu.Enforcement(flagOf(ds.Spec.Template.Spec, "enforcement", "auto"))
	with := 0
	for i := range s.Nodes {
		node := &s.Nodes[i]
		if _, ok := node.Annotations[s.Names.Inventory()]; !ok {
			continue
		}
		with++
		object := "node " + node.Name
		inv, err := s.Names.InventoryOf(node)
		if err != nil {
			found = append(found, Finding{Error, object, "its inventory cannot be read: " + oneLine(err),
				"restart its device plugin, which writes it anew; if that does not help, plugin and extender are of versions that do not fit"})
			continue
		}
		found = append(found, checkInventory(s, object, node, inv)...)
		if unit > 0 && inv.UnitMiB != unit && len(inv.Devices) > 0 {
			found = append(found, Finding{Error, object, fmt.Sprintf("counts units of %d MiB, and the DaemonSet says %d: a pod gets another amount there than elsewhere", inv.UnitMiB, unit),
				"let the update of the DaemonSet come to its end: kubectl -n " + ds.Namespace + " rollout status daemonset/" + ds.Name})
		}
		if level, err := gpu.ParseEnforcement(string(asked)); err == nil && len(inv.Devices) > 0 && !inv.Enforcement.AtLeast(level) {
			found = append(found, Finding{Error, object, fmt.Sprintf("holds containers to their grants at the level %s, and devicePlugin.enforcement asks for %s%s", levelName(inv.Enforcement), level, because(inv.Weaker)),
				"give the node what that level needs (docs/limits.md), or ask for less"})
		}
	}
	if with == 0 && old(s, ds.ObjectMeta) {
		found = append(found, Finding{Error, "cluster", "no node offers " + string(s.Names.GPUMem()),
			fmt.Sprintf("kubectl -n %s logs daemonset/%s says for each node why", ds.Namespace, ds.Name)})
	}
	return found
}

func levelName(e gpu.Enforcement) gpu.Enforcement {
	if e == "" {
		return gpu.EnforcementAdvisory
	}
	return e
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// checkInventory compares what a node's plugin has written with what the kubelet
// reports, and tells of GPUs that are out.
func checkInventory(s *State, object string, node *v1.Node, inv gpu.Inventory) (found []Finding) {
	var healthy int64
	for _, d := range inv.Devices {
		if d.Healthy {
			healthy += int64(d.Capacity)
			continue
		}
		found = append(found, Finding{Warning, object, fmt.Sprintf("GPU %d (%s) is unhealthy%s", d.Index, d.UUID, because(d.Unhealthy)),
			"it takes no new pods and comes back by itself after three good probes; nvidia-smi on the node shows what the driver says"})
	}
	allocatable := node.Status.Allocatable[s.Names.GPUMem()]
	if got := allocatable.Value(); got != healthy {
		found = append(found, Finding{Warning, object, fmt.Sprintf("its kubelet offers %d of %s, and its device plugin %d", got, s.Names.GPUMem(), healthy),
			"this passes within a minute of a restart; where it does not, the plugin's /readyz on port 8012 says what keeps it from the kubelet"})
	}
	nvidia := node.Status.Allocatable["nvidia.com/gpu"]
	if nvidia.Value() > 0 && healthy > 0 {
		found = append(found, Finding{Warning, object, fmt.Sprintf("offers %d nvidia.com/gpu beside %s: unless they are other GPUs, both give the same ones away", nvidia.Value(), s.Names.GPUMem()),
			"split the GPUs between the two plugins (devicePlugin.devices and NVIDIA's own setting), or keep one of them from the node"})
	}
	return found
}
