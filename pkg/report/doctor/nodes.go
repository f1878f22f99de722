package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/cordons"
	"github.com/gpumem/gpumem/pkg/kube/reasons"
)

// checkNodes looks at what nodes say that they offer.
func checkNodes(s *State, ds *appsv1.DaemonSet) (found []Finding) {
	if !s.read("nodes") {
		return nil
	}
	unit, noUnit := strconv.ParseInt(Flag(ds.Spec.Template.Spec, "unit-mib", "1024"), 10, 64)
	asked := gpu.Enforcement(Flag(ds.Spec.Template.Spec, "enforcement", "auto"))
	on := s.holders()
	for i := range s.Nodes {
		node := &s.Nodes[i]
		object := "node " + node.Name
		_, has := node.Annotations[s.Names.Inventory()]
		if down := api.NotReady(node); down != nil && (has || mayHaveGPU(ds, node)) {
			found = append(found, Finding{Error, object, "is NotReady: " + said(down.Reason, down.Message),
				"kubectl describe node " + node.Name + " says more; its GPUs take no new pods until it is back"})
		}
		if !has {
			continue
		}
		inv, err := s.Names.InventoryOf(node)
		if err != nil {
			found = append(found, Finding{Error, object, "its inventory cannot be read: " + oneLine(err),
				"restart its device plugin, which writes it again; if that does not help, plugin and extender are of versions that do not fit"})
			continue
		}
		found = append(found, checkInventory(s, object, node, inv, s.tenants(node.Name, inv, on[node.Name]))...)
		found = append(found, checkSlices(s, object, node, inv)...)
		found = append(found, checkUnits(s, ds, object, node, inv)...)
		if noUnit == nil && unit > 0 && inv.UnitMiB != unit && len(inv.Devices) > 0 && !inv.InShares() {
			found = append(found, Finding{Error, object, fmt.Sprintf("counts units of %d MiB, and the DaemonSet says %d: a pod gets another amount there than elsewhere", inv.UnitMiB, unit),
				"let the update of the DaemonSet come to its end: kubectl -n " + ds.Namespace + " rollout status daemonset/" + ds.Name})
		}
		if level, err := api.ParseEnforcement(string(asked)); err == nil && len(inv.Devices) > 0 && !inv.Enforcement.AtLeast(level) {
			found = append(found, Finding{Error, object, fmt.Sprintf("holds containers to their grants at the level %s, and devicePlugin.enforcement asks for %s%s", levelName(inv.Enforcement), level, because(inv.Weaker)),
				"give the node what that level needs (docs/limits.md), or ask for less"})
		}
	}
	return append(found, checkSilent(s, ds)...)
}

// checkUnits compares in what a node offers its GPUs with what its label says.
func checkUnits(s *State, ds *appsv1.DaemonSet, object string, node *v1.Node, inv gpu.Inventory) []Finding {
	label := s.Names.API() + "=" + api.InShares
	labelled := node.Labels[s.Names.API()] == api.InShares
	switch {
	case len(inv.Devices) == 0 || labelled == inv.InShares() || inv.Devices[0].Status.ByClaims:
		return nil
	case labelled && Flag(ds.Spec.Template.Spec, "shares", "false") != "true":
		return []Finding{{Warning, object, "has the label " + label + ", which has no effect: shares are off",
			"helm upgrade the release with --reset-then-reuse-values --set shares.enabled=true, or take the label away"}}
	default:
		return []Finding{{Warning, object, fmt.Sprintf("offers %s, and its label %s says otherwise: it takes no new pods until those that are there have ended", s.Names.Offered(inv.InShares()), s.Names.API()),
			"wait until no pod of the node asks for " + string(s.Names.Offered(inv.InShares())) + ", or take the label back"}}
	}
}

// checkSilent looks at plugins that run and offer nothing. The plugin runs on
// every Linux node unless values say otherwise, and is ready on those without a
// GPU: one alone is spoken of where something says that there is a GPU.
func checkSilent(s *State, ds *appsv1.DaemonSet) (found []Finding) {
	const usual = "mostly the driver is not where devicePlugin.driverRoot says (/run/nvidia/driver with the GPU Operator), " +
		"or its devices come with NVIDIA's runtime alone (devicePlugin.runtimeClassName=nvidia): docs/troubleshooting.md#a-node-with-a-gpu-offers-nothing"
	if !s.offered() {
		if !old(s, ds.ObjectMeta) {
			return nil
		}
		wrong := "no node offers " + string(s.Names.GPUMem())
		if n := len(s.running(ds)); n > 0 {
			wrong += fmt.Sprintf(", and the device plugin runs on %d: it finds no GPU that it may offer", n)
		}
		return []Finding{{Error, "cluster", wrong,
			fmt.Sprintf("kubectl -n %s logs %s says why; %s", ds.Namespace, logsOf(s, ds), usual)}}
	}
	for name, pod := range s.running(ds) {
		node := s.node(name)
		if node == nil || !mayHaveGPU(ds, node) {
			continue
		}
		if inv, err := s.Names.InventoryOf(node); err == nil && inv.Allocatable() == 0 {
			found = append(found, Finding{Warning, "node " + name, "its device plugin runs and offers nothing: it finds no GPU that it may offer",
				fmt.Sprintf("kubectl -n %s logs %s says why; %s", ds.Namespace, pod, usual)})
		}
	}
	return found
}

// logsOf names a pod of the plugin on a node that may have a GPU, the first by node.
// Where none is known it names the DaemonSet: kubectl shows any pod's log.
func logsOf(s *State, ds *appsv1.DaemonSet) string {
	running := s.running(ds)
	for _, name := range slices.Sorted(maps.Keys(running)) {
		if node := s.node(name); node != nil && mayHaveGPU(ds, node) {
			return running[name]
		}
	}
	return "daemonset/" + ds.Name
}

// offered reports whether some node offers anything, as far as is known.
func (s *State) offered() bool {
	return !s.read("nodes") || slices.ContainsFunc(s.Nodes, func(node v1.Node) bool {
		inv, err := s.Names.InventoryOf(&node)
		return err != nil || inv.Allocatable() > 0
	})
}

// running returns the pods of the plugin that have been ready for a while, by
// their nodes.
func (s *State) running(ds *appsv1.DaemonSet) map[string]string {
	names := make(map[string]string)
	for _, pod := range s.podsOf(ds.Namespace, ds.Spec.Selector) {
		if unready(&pod) == "" && old(s, pod.ObjectMeta) {
			names[pod.Spec.NodeName] = pod.Name
		}
	}
	return names
}

// mayHaveGPU reports whether something says that a node has a GPU: its label,
// that it had one, or that the plugin is for chosen nodes only.
func mayHaveGPU(ds *appsv1.DaemonSet, node *v1.Node) bool {
	spec := ds.Spec.Template.Spec
	chosen := spec.Affinity != nil
	for key := range spec.NodeSelector {
		chosen = chosen || key != v1.LabelOSStable
	}
	had := slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == api.GPUsHealthy })
	return chosen || had || node.Labels[gpuPresent] == "true"
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
func checkInventory(s *State, object string, node *v1.Node, inv gpu.Inventory, on map[gpu.UUID]tenants) (found []Finding) {
	healthy := int64(0) // units that the kubelet is offered
	for _, d := range inv.Devices {
		pods := on[d.UUID]
		if d.Advertised() {
			healthy += int64(d.Allocatable)
		}
		if !d.Status.Open() {
			found = append(found, out(node, d, cordons.Of(s.Names, node)[d.UUID], pods))
		}
		if d.Status.Works() && pods.units > d.Allocatable {
			found = append(found, Finding{Warning, object,
				fmt.Sprintf("GPU %d (%s) is over-committed: it offers %s, and its pods hold %s", d.Index, d.UUID, reasons.Amount(d.Allocatable, inv.UnitMiB), reasons.Amount(pods.units, inv.UnitMiB)),
				"it offers less than it did, mostly by a larger devicePlugin.reserveMiB, and takes no new pods until enough of these are gone. " +
					"To kube-scheduler what is too much counts against the node's other GPUs: " + pods.off(node.Name, d.Index)})
		}
	}
	for _, id := range s.Names.CordonedGPUs(node) {
		if _, known := inv.Device(id); !known && len(inv.Devices) > 0 {
			found = append(found, Finding{Note, object, fmt.Sprintf("annotation %s names %s, which is the UUID of no GPU here: it cordons none", s.Names.Cordoned(), id),
				"take it out, unless that GPU is to come back; kubectl inspect gpumem cordon writes UUIDs"})
		}
	}
	resource := s.Names.Offered(inv.InShares())
	allocatable := node.Status.Allocatable[resource]
	if got := allocatable.Value(); got != healthy {
		found = append(found, Finding{Warning, object, fmt.Sprintf("its kubelet offers %d of %s, and its device plugin %d", got, resource, healthy),
			"this passes within a minute of a restart, or of a GPU that fails; where it does not, the plugin's /readyz on port 8012 says what keeps it from the kubelet, and deleting the plugin's pod on the node has the next one register"})
	}
	nvidia := node.Status.Allocatable["nvidia.com/gpu"]
	if nvidia.Value() > 0 && healthy > 0 {
		found = append(found, Finding{Warning, object, fmt.Sprintf("offers %d nvidia.com/gpu as well as %s: unless they are other GPUs, both give the same ones away", nvidia.Value(), resource),
			"split the GPUs between the two plugins (devicePlugin.devices and NVIDIA's own setting), or keep one of them from the node"})
	}
	return found
}

// out tells of a GPU that takes no new pods. The note is of who cordoned it, if people did.
func out(node *v1.Node, d gpu.Device, note cordons.Note, pods tenants) Finding {
	object := "node " + node.Name
	if d.Status.OnlyCordoned() {
		cordoned := strings.TrimSpace("cordoned " + note.String())
		return Finding{Warning, object, fmt.Sprintf("GPU %d (%s) is %s: it takes no new pods", d.Index, d.UUID, cordoned),
			fmt.Sprintf("kubectl inspect gpumem uncordon %s %d, once it is to take pods again", node.Name, d.Index)}
	}
	cordonedToo := ""
	if d.Status.Cordoned {
		cordonedToo = fmt.Sprintf(". It is cordoned too, and takes none then either: kubectl inspect gpumem uncordon %s %d", node.Name, d.Index)
	}
	if !d.Status.Unhealthy {
		return Finding{Warning, object, fmt.Sprintf("GPU %d (%s) takes no new pods: %s", d.Index, d.UUID, reasons.Causes(d.Status)),
			"it takes pods again once the plugin runs there: look at its pod, or at what keeps it off the node" + cordonedToo}
	}
	fix := "it takes no new pods and comes back by itself after three good probes; nvidia-smi on the node shows what the driver says" + cordonedToo
	if off := pods.off(node.Name, d.Index); off != "" {
		fix += ". To kube-scheduler the pods on it count against the node's other GPUs: " + off
	}
	return Finding{Error, object, fmt.Sprintf("GPU %d (%s) is unhealthy%s", d.Index, d.UUID, because(reasons.Causes(d.Status))), fix}
}

// tenants are the pods that hold memory of a GPU, by who makes them again.
type tenants struct {
	ofDaemonSets, controlled, alone []string
	units                           gpu.Units // that they hold of it
}

// off says how the pods come off their GPU, with a drain that does not refuse; nothing where
// there are none.
func (t tenants) off(nodeName string, index int) string {
	var how []string
	if len(t.controlled)+len(t.alone) > 0 {
		drain := fmt.Sprintf("kubectl inspect gpumem drain %s %d", nodeName, index)
		if len(t.ofDaemonSets) > 0 {
			drain += " --ignore-daemonsets"
		}
		if len(t.alone) > 0 {
			drain += " --force"
		}
		how = append(how, drain+" gives these free")
	}
	if len(t.alone) > 0 {
		how = append(how, podsNamed(t.alone)+" without a controller: gone for good then")
	}
	if len(t.ofDaemonSets) > 0 {
		how = append(how, "no drain evicts "+podsNamed(t.ofDaemonSets)+" of a DaemonSet: kubectl delete pod has each created again, on another GPU of the node if it fits on one")
	}
	return strings.Join(how, "; ")
}

// holders returns the pods that hold GPU memory, by node.
func (s *State) holders() map[string][]*v1.Pod {
	on := make(map[string][]*v1.Pod)
	for i := range s.Pods {
		if pod := &s.Pods[i]; !api.Terminal(pod) && s.Names.Asks(pod) {
			on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
		}
	}
	return on
}

// tenants returns who holds memory of each GPU of a node, as it counts to the scheduler.
func (s *State) tenants(node string, inv gpu.Inventory, pods []*v1.Pod) map[gpu.UUID]tenants {
	known, holdings := make(map[string]*v1.Pod), []placement.Holding(nil) // the first by UID
	for _, pod := range pods {
		h, _ := s.Names.Holding(pod) // what of it can be read: checkAssignment tells of the rest
		h.Assignment.Leaving = nil   // it counts where it goes
		known[h.Pod.UID], holdings = pod, append(holdings, h)
	}
	on := make(map[gpu.UUID]tenants)
	for _, d := range placement.NewNode(node, inv, holdings).Devices {
		t := tenants{units: d.Requested}
		for _, h := range d.Pods {
			switch pod := known[h.Pod.UID]; {
			case pod == nil: // it has its memory by a claim
			case metav1.GetControllerOf(pod) == nil:
				t.alone = append(t.alone, nameOf(pod))
			case metav1.GetControllerOf(pod).Kind == "DaemonSet":
				t.ofDaemonSets = append(t.ofDaemonSets, nameOf(pod))
			default:
				t.controlled = append(t.controlled, nameOf(pod))
			}
		}
		on[d.UUID] = t
	}
	return on
}
