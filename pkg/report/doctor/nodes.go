package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/cordons"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// eachInventory calls check for every node with a readable inventory, and returns all findings.
func (s *State) eachInventory(check func(node *v1.Node, inv gpu.Inventory) findings) (result findings) {
	for i := range s.Nodes {
		if _, has := s.Nodes[i].Annotations[s.Names.Inventory()]; !has {
			continue
		}
		if inv, err := s.Names.InventoryOf(&s.Nodes[i]); err == nil {
			result = append(result, check(&s.Nodes[i], inv)...)
		}
	}
	return result
}

func checkNodes(s *State, inst installation) (result findings) {
	if inst.plugin == nil {
		return nil
	}
	spec := inst.plugin.Spec.Template.Spec
	unit, noUnit := strconv.ParseInt(Flag(spec, "unit-mib", "1024"), 10, 64)
	level, noLevel := api.ParseEnforcement(Flag(spec, "enforcement", "auto"))
	for i := range s.Nodes {
		node := &s.Nodes[i]
		object := "node " + node.Name
		_, has := node.Annotations[s.Names.Inventory()]
		if down := api.NotReady(node); down != nil && (has || mayHaveGPU(inst.plugin, node)) {
			result.add(Error, object, "kubectl describe node "+node.Name+" shows the reason; its GPUs take no new pods until it is Ready", "is NotReady: %s", joinMessage(down.Reason, down.Message))
		}
		if !has {
			continue
		}
		inv, err := s.Names.InventoryOf(node)
		if err != nil {
			result.add(Error, object, "restart its device plugin, which writes it again; if that does not help, plugin and scheduler are of incompatible versions", "its inventory cannot be read: %s", oneLine(err))
			continue
		}
		if noUnit == nil && unit > 0 && inv.UnitMiB != unit && len(inv.Devices) > 0 && !inv.InShares() {
			result.add(Error, object, "drain the node, or restore unitMiB; without pods on the node, this ends with the update of the DaemonSet",
				"has units of %d MiB, and the installation has unitMiB %d: it takes no new pods", inv.UnitMiB, unit)
		}
		if noLevel == nil && len(inv.Devices) > 0 && !inv.Enforcement.AtLeast(level) {
			result.add(Error, object, "meet the requirements of that level on the node (docs/limits.md), or set a weaker one",
				"enforces the level %s, and devicePlugin.enforcement is %s%s", levelName(inv.Enforcement), level, because(inv.Weaker))
		}
	}
	return result
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

func checkResource(s *State, inst installation) findings {
	if inst.plugin == nil || !s.read("nodes") {
		return nil
	}
	result := s.eachInventory(func(node *v1.Node, inv gpu.Inventory) findings {
		return append(s.checkAllocatable(node, inv), checkLabel(s, inst.plugin, node, inv)...)
	})
	return append(result, checkSilent(s, inst.plugin)...)
}

// checkAllocatable compares the units that the kubelet offers with those that the device plugin lists.
func (s *State) checkAllocatable(node *v1.Node, inv gpu.Inventory) (result findings) {
	listed := int64(0)
	for _, d := range inv.Devices {
		if d.Advertised() {
			listed += int64(d.Allocatable)
		}
	}
	resource := s.Names.Offered(inv.InShares())
	allocatable := node.Status.Allocatable[resource]
	if allocatable.Value() == listed {
		return nil
	}
	result.add(Warning, "node "+node.Name, "", "its kubelet offers %d of %s, and its device plugin %d", allocatable.Value(), resource, listed)
	return result
}

// checkLabel compares the resource that a node offers with the resource that its label selects.
func checkLabel(s *State, ds *appsv1.DaemonSet, node *v1.Node, inv gpu.Inventory) (result findings) {
	label := s.Names.API() + "=" + api.InShares
	labelled := node.Labels[s.Names.API()] == api.InShares
	switch {
	case len(inv.Devices) == 0 || labelled == inv.InShares() || inv.Devices[0].Status.ByClaims:
	case labelled && Flag(ds.Spec.Template.Spec, "shares", "false") != "true":
		result.add(Warning, "node "+node.Name, "helm upgrade the release with --reset-then-reuse-values --set shares.enabled=true, or remove the label",
			"has the label %s, which has no effect: shares are off", label)
	default:
		offered := s.Names.Offered(inv.InShares())
		result.add(Warning, "node "+node.Name, "wait until no pod of the node requests "+string(offered)+", or restore the label",
			"offers %s, and its label %s selects another resource: it takes no new pods until its present ones have ended", offered, s.Names.API())
	}
	return result
}

// checkSilent finds device plugins that run and offer nothing. The plugin runs on every Linux node
// unless the chart's values select other nodes, and it is ready on nodes without a GPU. So checkSilent
// reports a node only if something indicates a GPU there: see mayHaveGPU.
func checkSilent(s *State, ds *appsv1.DaemonSet) (result findings) {
	const usual = "usually the driver is not at devicePlugin.driverRoot (/run/nvidia/driver with the GPU Operator), " +
		"or only NVIDIA's runtime passes its devices (devicePlugin.runtimeClassName=nvidia): docs/troubleshooting.md#a-node-with-a-gpu-offers-nothing"
	running := s.running(ds)
	mayHave := slices.DeleteFunc(slices.Sorted(maps.Keys(running)), func(name string) bool {
		node := s.node(name)
		return node == nil || !mayHaveGPU(ds, node)
	})
	if !s.offered() {
		if !old(s, ds.ObjectMeta) {
			return nil
		}
		source := "daemonset/" + ds.Name // kubectl shows the log of any of its pods
		if len(mayHave) > 0 {
			source = running[mayHave[0]]
		}
		wrong := "no node offers " + string(s.Names.GPUMem())
		if len(running) > 0 {
			wrong += fmt.Sprintf(", and the device plugin runs on %d: it finds no GPU that it may offer", len(running))
		}
		result.add(Error, "cluster", fmt.Sprintf("kubectl -n %s logs %s shows the reason; %s", ds.Namespace, source, usual), "%s", wrong)
		return result
	}
	for _, name := range mayHave {
		if inv, err := s.Names.InventoryOf(s.node(name)); err == nil && inv.Allocatable() == 0 {
			result.add(Warning, "node "+name, fmt.Sprintf("kubectl -n %s logs %s shows the reason; %s", ds.Namespace, running[name], usual),
				"its device plugin runs and offers nothing: it finds no GPU that it may offer")
		}
	}
	return result
}

// offered reports whether some node offers GPU memory. An unreadable inventory counts as an offer.
func (s *State) offered() bool {
	return slices.ContainsFunc(s.Nodes, func(node v1.Node) bool {
		inv, err := s.Names.InventoryOf(&node)
		return err != nil || inv.Allocatable() > 0
	})
}

// running returns the names of the plugin's pods that are ready and have reached MinAge, by node.
func (s *State) running(ds *appsv1.DaemonSet) map[string]string {
	names := make(map[string]string)
	for _, pod := range s.podsOf(ds.Namespace, ds.Spec.Selector) {
		if unready(&pod) == "" && old(s, pod.ObjectMeta) {
			names[pod.Spec.NodeName] = pod.Name
		}
	}
	return names
}

// mayHaveGPU reports whether something indicates that a node has a GPU: the label gpuPresent, the node condition
// api.GPUsHealthy from the time of an earlier GPU, or a nodeSelector or affinity of the DaemonSet.
func mayHaveGPU(ds *appsv1.DaemonSet, node *v1.Node) bool {
	spec := ds.Spec.Template.Spec
	chosen := spec.Affinity != nil
	for key := range spec.NodeSelector {
		chosen = chosen || key != v1.LabelOSStable
	}
	had := slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == api.GPUsHealthy })
	return chosen || had || node.Labels[gpuPresent] == "true"
}

func checkGPUs(s *State, _ installation) findings {
	return s.eachInventory(func(node *v1.Node, inv gpu.Inventory) (result findings) {
		object, notes := "node "+node.Name, cordons.ParseNotes(s.Names, node)
		for _, d := range placement.NewNode(node.Name, inv, s.holdings(node.Name)).Devices {
			name := fmt.Sprintf("GPU %d (%s)", d.Index, d.UUID)
			uncordon := fmt.Sprintf("kubectl inspect gpumem uncordon %s %d", node.Name, d.Index)
			cordoned := ""
			if d.Status.Cordoned {
				cordoned = ". It is also cordoned; to admit pods again, run " + uncordon
			}
			switch {
			case d.Status.OnlyCordoned():
				result.add(Warning, object, uncordon+", once it is to take pods again", "%s is %s: it takes no new pods", name, strings.TrimSpace("cordoned "+notes[d.UUID].String()))
			case d.Status.Unhealthy:
				result.add(Error, object, fmt.Sprintf("it returns after three good probes, or after a reset if it needs one (docs/runbooks.md, GPUMemoryGPUUnhealthy); nvidia-smi on the node shows the driver's report. kubectl inspect gpumem drain %s %d moves its pods, "+
					"which kube-scheduler counts against the node's other GPUs%s", node.Name, d.Index, cordoned), "%s is unhealthy%s", name, because(reasons.Causes(d.Status)))
			case !d.Status.Open():
				result.add(Warning, object, "it takes pods again once the device plugin runs there: check the plugin's pod, or why the node has none"+cordoned,
					"%s takes no new pods: %s", name, reasons.Causes(d.Status))
			}
			if d.Status.Works() && d.Requested > d.Allocatable {
				result.add(Warning, object, "", "%s is over-committed: it offers %s, less than before, and its pods have %s", name, reasons.Amount(d.Allocatable, inv.UnitMiB), reasons.Amount(d.Requested, inv.UnitMiB))
			}
		}
		for _, id := range s.Names.CordonedGPUs(node) {
			if _, known := inv.Device(id); !known && len(inv.Devices) > 0 {
				result.add(Note, object, "remove the UUID from the annotation, unless that GPU returns; kubectl inspect gpumem cordon writes UUIDs",
					"annotation %s names %s, but the node has no GPU with this UUID", s.Names.Cordoned(), id)
			}
		}
		return result
	})
}

// holdings returns the GPU memory of the pods on a node.
func (s *State) holdings(node string) (holdings []placement.Holding) {
	for i := range s.Pods {
		if pod := &s.Pods[i]; pod.Spec.NodeName == node && !api.Terminal(pod) && s.Names.Asks(pod) {
			h, _ := s.Names.Holding(pod) // a pod with a malformed assignment counts only with the kubelet's allocation; explain reports the error
			h.Assignment.Leaving = nil   // count the pod only on its new GPUs
			holdings = append(holdings, h)
		}
	}
	return holdings
}
