package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// gpuPresent is the label that NVIDIA's feature discovery adds to nodes with GPUs.
const gpuPresent = "nvidia.com/gpu.present"

// gpuDriver is the label, with the value "true", of nodes whose driver the GPU Operator runs in a
// container.
const gpuDriver = "nvidia.com/gpu.deploy.driver"

func checkDaemonSets(s *State, inst installation) (result findings) {
	if inst.plugin != nil {
		result = checkDaemonSet(s, inst.plugin, "device plugin", "its /readyz on port 8012 names the missing part")
	}
	if inst.mps != nil {
		result = append(result, checkDaemonSet(s, inst.mps, "MPS daemon", "until it works, the node has neither of the levels mps and kernel (docs/limits.md)")...)
	}
	return result
}

func checkDaemonSet(s *State, ds *appsv1.DaemonSet, part, help string) (result findings) {
	object := "daemonset " + namespacedName(ds.ObjectMeta)
	if ds.Status.DesiredNumberScheduled == 0 && old(s, ds.ObjectMeta) {
		result.add(Error, object, "change devicePlugin.nodeSelector, .affinity or .tolerations", "its nodeSelector, affinity and tolerations fit no node")
	}
	if !s.hasAllPods() {
		return result
	}
	pods := s.podsOf(ds.Namespace, ds.Spec.Selector)
	if ds.Status.CurrentNumberScheduled < ds.Status.DesiredNumberScheduled && len(pods) == 0 && old(s, ds.ObjectMeta) {
		result.add(Error, object, "", "none of its pods was created")
	}
	for _, pod := range pods {
		if causes := unready(&pod); causes != "" && old(s, pod.ObjectMeta) && !s.isNodeDown(pod.Spec.NodeName) {
			result.add(Error, "node "+pod.Spec.NodeName, fmt.Sprintf("kubectl -n %s logs %s; %s", pod.Namespace, pod.Name, help), "its %s is not ready: %s", part, causes)
		}
	}
	return result
}

func checkGPUNodes(s *State, inst installation) (result findings) {
	if inst.plugin == nil || !s.hasAllPods() {
		return nil
	}
	has := make(map[string]bool)
	for _, pod := range s.podsOf(inst.plugin.Namespace, inst.plugin.Spec.Selector) {
		has[pod.Spec.NodeName] = true
	}
	for _, node := range s.Nodes {
		if node.Labels[gpuPresent] == "true" && !has[node.Name] && old(s, node.ObjectMeta) && !servedByNVIDIA(node, inst.plugin) {
			result.addMissingPlugin(node, inst.plugin)
		}
	}
	result.addUnloadBlockers(s, inst)
	return result
}

// servedByNVIDIA reports whether a node belongs to the part of a fleet that keeps NVIDIA's device plugin: the
// node offers nvidia.com/gpu, and the nodeSelector of gpumem's device plugin excludes the node.
func servedByNVIDIA(node v1.Node, plugin *appsv1.DaemonSet) bool {
	selector := maps.Clone(plugin.Spec.Template.Spec.NodeSelector)
	delete(selector, api.GPUClients) // addMissingPlugin reports this label
	offered := node.Status.Allocatable["nvidia.com/gpu"]
	return !offered.IsZero() && !labels.SelectorFromSet(selector).Matches(labels.Set(node.Labels))
}

// addMissingPlugin explains why a node with GPUs runs no device plugin.
func (f *findings) addMissingPlugin(node v1.Node, plugin *appsv1.DaemonSet) {
	const waitForDriver = "wait until the Operator has loaded the driver; docs/runbooks.md#a-driver-upgrade shows how to find the programs that keep it waiting"
	const update = "update the GPU Operator to 26.7 or newer, which sets the label, or remove it from devicePlugin.nodeSelector"
	object := "node " + node.Name
	_, selects := plugin.Spec.Template.Spec.NodeSelector[api.GPUClients]
	label, labelled := node.Labels[api.GPUClients]
	switch {
	case selects && !labelled:
		f.add(Error, object, update, "has no label %s, which devicePlugin.nodeSelector selects: it runs no device plugin of gpumem", api.GPUClients)
	case selects && api.GPUClientsStopped(&node):
		f.add(Warning, object, waitForDriver, "runs no device plugin of gpumem: the GPU Operator keeps users of the driver off the node (%s=%s)", api.GPUClients, label)
	default:
		f.add(Error, object, "", "has the label %s=true and runs no device plugin of gpumem%s", gpuPresent, renderTaints(node))
	}
}

// addUnloadBlockers reports the DaemonSets that prevent the GPU Operator from unloading the driver of a node.
func (f *findings) addUnloadBlockers(s *State, inst installation) {
	i := slices.IndexFunc(s.Nodes, func(node v1.Node) bool {
		_, stops := node.Labels[api.GPUClients]
		return stops && node.Labels[gpuDriver] == "true"
	})
	if i < 0 {
		return
	}
	for _, ds := range []*appsv1.DaemonSet{inst.plugin, inst.mps} {
		if ds != nil && ds.Spec.Template.Spec.NodeSelector[api.GPUClients] != "true" {
			f.add(Warning, "daemonset "+namespacedName(ds.ObjectMeta), "set "+api.GPUClients+`: "true" in devicePlugin.nodeSelector, as charts/gpumem/ci/gpu-operator-values.yaml does`,
				"does not select nodes by the label %s: the GPU Operator cannot unload the driver of node %s for an upgrade", api.GPUClients, s.Nodes[i].Name)
		}
	}
}

func renderTaints(node v1.Node) string {
	var taints []string
	for _, t := range node.Spec.Taints {
		if t.Effect != v1.TaintEffectPreferNoSchedule {
			taints = append(taints, t.ToString())
		}
	}
	if len(taints) == 0 {
		return ""
	}
	return " (its taints: " + strings.Join(taints, ", ") + ")"
}

func checkScheduler(s *State, inst installation) (result findings) {
	d := inst.scheduler
	if d == nil {
		return nil
	}
	object, replicas := "deployment "+namespacedName(d.ObjectMeta), int32(1)
	if d.Spec.Replicas != nil {
		replicas = *d.Spec.Replicas
	}
	var causes []string
	for _, pod := range s.podsOf(d.Namespace, d.Spec.Selector) {
		if reason := unready(&pod); reason != "" && old(s, pod.ObjectMeta) {
			if s.isNodeDown(pod.Spec.NodeName) {
				reason = "is on node " + pod.Spec.NodeName + ", which is NotReady"
			}
			causes = append(causes, "; "+pod.Name+" "+reason)
		}
	}
	slices.Sort(causes)
	scale := fmt.Sprintf("kubectl -n %s scale deployment %s --replicas=2, and set scheduler.replicas to 2 for the next helm upgrade", d.Namespace, d.Name)
	switch ready := d.Status.ReadyReplicas; {
	case !old(s, d.ObjectMeta):
	case replicas == 0:
		result.add(Error, object, scale, "has no replicas: no pod is placed on a GPU")
	case ready == 0:
		result.add(Error, object, "", "none of its pods is ready: no pod is placed on a GPU%s", strings.Join(causes, ""))
	case inst.bundled() && ready < replicas:
		result.add(Warning, object, "", "%d of %d pods are ready%s", ready, replicas, strings.Join(causes, ""))
	case !inst.bundled() && ready > 1:
		result.add(Error, object, "run all of them with --leader-elect and one Lease, as the chart does",
			"%d pods are ready, but only the leader may be: two ready pods allocate the same memory", ready)
	}
	if replicas == 1 {
		result.add(Warning, object, scale, "has one replica: while it is replaced, no pod is placed on a GPU")
	}
	return result
}

func checkKubeScheduler(s *State, inst installation) (result findings) {
	if !inst.bundled() {
		return nil
	}
	object := "deployment " + namespacedName(inst.scheduler.ObjectMeta)
	switch {
	case inst.config == nil && s.read("configmaps"):
		result.add(Error, object, "", "its kube-scheduler has no configuration: the ConfigMap of the same name is gone")
	case inst.config != nil && len(inst.schedulers(s.Names)) == 0:
		result.add(Error, object, "", "its kube-scheduler has no profile with gpumem's plugin: no pod can name it")
	}
	spec := inst.scheduler.Spec.Template.Spec
	for _, c := range spec.Containers {
		if c.Name == "gpumem-scheduler" && len(disabledGates(spec, "OpportunisticBatching")) > 0 {
			result.add(Warning, object, "remove it from --feature-gates of the container gpumem-scheduler",
				"its feature gate OpportunisticBatching is off: each pod takes several times the processor time")
		}
		if c.Name != "kube-scheduler" || s.ServerVersion == "" {
			continue
		}
		_, tag, _ := strings.Cut(c.Image[strings.LastIndex(c.Image, "/")+1:], ":")
		switch theirs, server := minor(tag), minor(s.ServerVersion); {
		case theirs < 0 || server < 0 || theirs == server:
		case theirs > server:
			result.add(Error, object, "", "its kube-scheduler is %s, newer than the API server, %s", tag, s.ServerVersion)
		default:
			result.add(Warning, object, "", "its kube-scheduler is %s, older than the API server, %s", tag, s.ServerVersion)
		}
	}
	return result
}

// hasAllPods reports whether the pods of all namespaces could be listed.
func (s *State) hasAllPods() bool { return s.read("pods") && s.Namespace == "" }

// podsOf returns the pods that a selector selects.
func (s *State) podsOf(namespace string, selector *metav1.LabelSelector) (pods []v1.Pod) {
	matches, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil
	}
	for _, pod := range s.Pods {
		if pod.Namespace == namespace && matches.Matches(labels.Set(pod.Labels)) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// unready returns why a pod is not ready; empty if it is ready or terminating.
func unready(pod *v1.Pod) string {
	if api.Ready(pod) || pod.DeletionTimestamp != nil {
		return ""
	}
	if message, ok := api.Unscheduled(pod); ok {
		return "waits for a node: " + message
	}
	for _, c := range containersOf(pod) {
		if causes := trouble(c); causes != "" {
			return c.Name + " " + causes
		}
		if !c.Ready && c.State.Running != nil {
			return c.Name + " runs and is not ready"
		}
	}
	return "is in phase " + string(pod.Status.Phase)
}

// isNodeDown reports whether a node is NotReady. The status of its pods is then out of date.
func (s *State) isNodeDown(nodeName string) bool {
	node := s.node(nodeName)
	return node != nil && api.NotReady(node) != nil
}
