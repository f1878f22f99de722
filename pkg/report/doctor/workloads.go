package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// gpuPresent is the label that NVIDIA's feature discovery gives nodes with GPUs.
const gpuPresent = "nvidia.com/gpu.present"

// checkDaemonSet looks at the pods of a DaemonSet: what each is on its node, and what helps
// besides its log.
func checkDaemonSet(s *State, ds *appsv1.DaemonSet, part, help string) (found []Finding) {
	object := "daemonset " + ds.Namespace + "/" + ds.Name
	if ds.Status.DesiredNumberScheduled == 0 && old(s, ds.ObjectMeta) {
		found = append(found, Finding{Error, object, "its nodeSelector, affinity and tolerations fit no node",
			"change devicePlugin.nodeSelector, .affinity or .tolerations"})
	}
	if !s.read("pods") {
		return found
	}
	pods := s.podsOf(ds.Namespace, ds.Spec.Selector)
	if ds.Status.CurrentNumberScheduled < ds.Status.DesiredNumberScheduled && len(pods) == 0 && old(s, ds.ObjectMeta) {
		found = append(found, Finding{Error, object, "none of its pods is created",
			fmt.Sprintf("kubectl -n %s describe daemonset %s; mostly Pod Security (label the namespace pod-security.kubernetes.io/enforce=privileged) or a quota for priority classes", ds.Namespace, ds.Name)})
	}
	for _, pod := range pods {
		if why := unready(&pod); why != "" && old(s, pod.ObjectMeta) && !s.down(pod.Spec.NodeName) {
			found = append(found, Finding{Error, "node " + pod.Spec.NodeName, "its " + part + " is not ready: " + why,
				fmt.Sprintf("kubectl -n %s logs %s; %s", pod.Namespace, pod.Name, help)})
		}
	}
	return found
}

// checkPlugin looks at the pods of the device plugin, and at nodes with GPUs
// that have none.
func checkPlugin(s *State, ds *appsv1.DaemonSet) []Finding {
	found := checkDaemonSet(s, ds, "device plugin", "its /readyz on port 8012 names what is missing")
	if !s.read("pods") {
		return found
	}
	has := make(map[string]bool)
	for _, pod := range s.podsOf(ds.Namespace, ds.Spec.Selector) {
		has[pod.Spec.NodeName] = true
	}
	for _, node := range s.Nodes {
		if node.Labels[gpuPresent] == "true" && !has[node.Name] && old(s, node.ObjectMeta) {
			found = append(found, Finding{Error, "node " + node.Name, "is labelled " + gpuPresent + "=true and runs no device plugin of gpumem",
				fmt.Sprintf("let devicePlugin.nodeSelector, .affinity and .tolerations fit it%s, or take the label away", taintsOf(node))})
		}
	}
	return found
}

func taintsOf(node v1.Node) string {
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

// checkScheduler looks at the pods of the extender.
func checkScheduler(s *State, in installation) (found []Finding) {
	d := in.scheduler
	object := "deployment " + d.Namespace + "/" + d.Name
	wanted := int32(1)
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	var why []string
	for _, pod := range s.podsOf(d.Namespace, d.Spec.Selector) {
		if reason := unready(&pod); reason != "" && old(s, pod.ObjectMeta) {
			if s.down(pod.Spec.NodeName) {
				reason = "is on node " + pod.Spec.NodeName + ", which is NotReady"
			}
			why = append(why, pod.Name+" "+reason)
		}
	}
	slices.Sort(why)
	fix := fmt.Sprintf("kubectl -n %s describe deployment %s; kubectl -n %s logs deployment/%s", d.Namespace, d.Name, d.Namespace, d.Name)
	scale := fmt.Sprintf("kubectl -n %s scale deployment %s --replicas=2 helps now; see that the chart's value scheduler.replicas is 2 too, or the next helm upgrade undoes it", d.Namespace, d.Name)
	switch ready := d.Status.ReadyReplicas; {
	case !old(s, d.ObjectMeta):
	case wanted == 0:
		found = append(found, Finding{Error, object, "has no replicas: no pod is placed on a GPU", scale})
	case ready == 0:
		found = append(found, Finding{Error, object, withReasons("none of its pods is ready: no pod is placed on a GPU", why), fix})
	case in.bundled() && ready < wanted:
		found = append(found, Finding{Warning, object, withReasons(fmt.Sprintf("%d of %d pods are ready", ready, wanted), why), fix})
	case !in.bundled() && ready > 1:
		found = append(found, Finding{Error, object, fmt.Sprintf("%d pods are ready, and only the one that leads may be: each gives away what the other has not seen", ready),
			"let all run with --leader-elect and one Lease, as the chart has it"})
	}
	if wanted == 1 {
		found = append(found, Finding{Warning, object, "has one replica: while it is being replaced, no pod is placed on a GPU", scale})
	}
	return found
}

func withReasons(wrong string, why []string) string {
	return strings.Join(append([]string{wrong}, why...), "; ")
}

// checkKubeScheduler looks at the kube-scheduler that the chart brings.
func checkKubeScheduler(s *State, in installation) (found []Finding) {
	if !in.bundled() {
		return nil
	}
	object := "deployment " + in.scheduler.Namespace + "/" + in.scheduler.Name
	if in.config == nil && s.read("configmaps") {
		found = append(found, Finding{Error, object, "its kube-scheduler has no configuration: the ConfigMap of the same name is gone", "helm upgrade the release"})
	}
	if in.config != nil && len(profiles(in.config)) == 0 {
		found = append(found, Finding{Error, object, "its kube-scheduler has no profile: no pod can name it", "helm upgrade the release with scheduler.schedulerName set"})
	}
	for _, c := range in.scheduler.Spec.Template.Spec.Containers {
		if c.Name != "kube-scheduler" || s.ServerVersion == "" {
			continue
		}
		_, tag, _ := strings.Cut(c.Image[strings.LastIndex(c.Image, "/")+1:], ":")
		theirs, server := minor(tag), minor(s.ServerVersion)
		switch {
		case theirs < 0 || server < 0 || theirs == server:
		case theirs > server:
			found = append(found, Finding{Error, object, fmt.Sprintf("its kube-scheduler is %s, newer than the API server, %s", tag, s.ServerVersion),
				"helm upgrade the release: its kube-scheduler then is the cluster's version (or set scheduler.image.tag)"})
		default:
			found = append(found, Finding{Warning, object, fmt.Sprintf("its kube-scheduler is %s, older than the API server, %s", tag, s.ServerVersion),
				"helm upgrade the release: its kube-scheduler then is the cluster's version (or set scheduler.image.tag)"})
		}
	}
	return found
}

// checkSampling looks whether a kube-scheduler leaves out nodes when it asks: by what the
// extenders remember of the last hour, for one that is not the chart's has its settings
// where nothing here can read them.
func checkSampling(s *State, in installation) []Finding {
	for _, pod := range s.Decided {
		for _, d := range pod.Decisions {
			if d.Sampled && s.Now.Sub(d.Time) < time.Hour {
				return []Finding{{
					Warning, "deployment " + in.scheduler.Namespace + "/" + in.scheduler.Name,
					fmt.Sprintf("about pod %s/%s kube-scheduler asked for %d nodes and left out the others: such a pod may be tried several times before it is bound", pod.Namespace, pod.Name, d.Asked),
					"set percentageOfNodesToScore: 100 in the profile of kube-scheduler that pods with GPU memory name (docs/existing-scheduler.md)",
				}}
			}
		}
	}
	return nil
}

// profiles returns the scheduler names that a configuration serves.
func profiles(config *v1.ConfigMap) (names []string) {
	var c struct {
		Profiles []struct{ SchedulerName string }
	}
	if err := yaml.Unmarshal([]byte(config.Data["config.yaml"]), &c); err != nil {
		return nil
	}
	for _, p := range c.Profiles {
		if p.SchedulerName != "" {
			names = append(names, p.SchedulerName)
		}
	}
	return names
}

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

// unready says why a pod is not ready, or nothing.
func unready(pod *v1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodReady && c.Status == v1.ConditionTrue || pod.DeletionTimestamp != nil {
			return ""
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
			return "waits for a node: " + c.Message
		}
	}
	for _, c := range containersOf(pod) {
		if why := trouble(c); why != "" {
			return c.Name + " " + why
		}
		if !c.Ready && c.State.Running != nil {
			return c.Name + " runs and is not ready"
		}
	}
	return "is in phase " + string(pod.Status.Phase)
}

// down reports whether a node is known not to be ready: of its pods nothing new is known.
func (s *State) down(nodeName string) bool {
	node := s.node(nodeName)
	return node != nil && api.NotReady(node) != nil
}

// old reports whether an object is older than what passes by itself.
func old(s *State, object metav1.ObjectMeta) bool {
	return s.Now.Sub(object.CreationTimestamp.Time) >= Settle
}

// checkPods looks at pods that ask for GPU memory.
func checkPods(s *State, in installation) (found []Finding) {
	if !s.read("pods") {
		return nil
	}
	offered := s.offered() && !in.gone(s)
	var lost, bypassed []string // lost: while nothing is offered
	served := served(in)
	for i := range s.Pods {
		pod := &s.Pods[i]
		if api.Terminal(pod) || !old(s, pod.ObjectMeta) {
			continue
		}
		object := "pod " + nameOf(pod)
		found = append(found, checkResources(s, object, pod)...)
		if !s.Names.Asks(pod) {
			continue
		}
		for _, key := range s.Names.Unknown(pod) {
			found = append(found, Finding{Warning, object, "has annotation " + key + ", which gpumem does not know: it has no effect", Correct(s.Names, key)})
		}
		if pod.Spec.NodeName == "" {
			found = append(found, checkWaiting(s, in, object, pod)...)
			continue
		}
		switch misplaced := checkAssignment(s, object, pod); {
		case s.Names.PlacedByGPUShare(pod):
			found = append(found, Finding{Error, object, "was placed by gpushare: gpumem offers no GPU of node " + pod.Spec.NodeName + " while it runs",
				"kubectl drain " + pod.Spec.NodeName + " --ignore-daemonsets --delete-emptydir-data (docs/migrating-from-gpushare.md)"})
		case len(misplaced) > 0 && !offered:
			lost = append(lost, nameOf(pod))
		default:
			found = append(found, misplaced...)
			if s.bypasses(served, pod) {
				bypassed = append(bypassed, nameOf(pod))
			}
		}
	}
	return slices.Concat(found,
		about(bypassed, Warning, "no scheduler that asks gpumem chose the node: one that knows the sum of its GPUs alone may choose one where such a pod then fails", haveAsked(served)),
		about(s.rejected(served), Warning, "the kubelet rejected the pod: its scheduler does not ask gpumem which nodes have a GPU with enough free memory", haveAsked(served)+"; then delete what failed"),
		checkLost(s, in, lost), checkUnseen(s, in), checkStarts(s), checkCores(s, in))
}

// rejected returns the pods with GPU memory that the kubelet rejected after a scheduler that does not
// ask gpumem had placed them.
func (s *State) rejected(served []string) (names []string) {
	for i := range s.Pods {
		pod := &s.Pods[i]
		if api.Rejected(pod) && s.Names.Asks(pod) && old(s, pod.ObjectMeta) && s.bypasses(served, pod) {
			names = append(names, nameOf(pod))
		}
	}
	return names
}

// Correct says what to do about an annotation of a pod that has no effect.
func Correct(names api.Names, key string) string {
	if slices.Contains([]string{string(names.GPUMem()), string(names.GPUShares()), string(names.GPUCore())}, key) {
		return "it is a resource: ask for it among the limits of a container, and take the annotation away"
	}
	return "correct its name, or take it away"
}

// checkResources looks at what a pod waits for that no node offers.
func checkResources(s *State, object string, pod *v1.Pod) (found []Finding) {
	if !s.read("nodes") {
		return nil
	}
	for _, resource := range s.Names.Unoffered(pod, s.offers) {
		wrong, fix := WaitsInVain(s.Names, resource)
		found = append(found, Finding{Error, object, wrong, fix})
	}
	return found
}

// offers reports whether some node has the resource.
func (s *State) offers(resource v1.ResourceName) bool {
	return slices.ContainsFunc(s.Nodes, func(node v1.Node) bool { return api.Offers(&node, resource) })
}

// WaitsInVain says what is wrong with a pod that waits for a resource that gpumem does not
// know and no node offers, and what to do.
func WaitsInVain(names api.Names, resource v1.ResourceName) (wrong, fix string) {
	meant := fmt.Sprintf("ask for %s where it is made", names.GPUMem())
	if _, base, _ := strings.Cut(string(resource), "/"); strings.Contains(base, "core") {
		meant = fmt.Sprintf("ask for %s, and %s, where it is made", names.GPUCore(), names.GPUMem())
	}
	return fmt.Sprintf("asks for %s, which no node offers: gpumem does not know it", resource), meant
}

// bypasses reports whether the node of a pod was chosen without asking gpumem; served
// are the names of schedulers that ask it, where they are known.
func (s *State) bypasses(served []string, pod *v1.Pod) bool {
	a, err := s.Names.AssignmentOf(pod)
	if err == nil && !a.None() {
		return a.ByNode // whatever its scheduler is called by now
	}
	return len(served) > 0 && !slices.Contains(served, pod.Spec.SchedulerName)
}

// haveAsked says how pods come to be placed by a scheduler that asks.
func haveAsked(served []string) string {
	if len(served) == 0 {
		return "leave spec.nodeName empty where they are made; where it is, their scheduler does not ask gpumem: docs/existing-scheduler.md"
	}
	return "set spec.schedulerName to " + strings.Join(served, " or ") + ", and leave spec.nodeName empty, where they are made"
}

// gone reports whether there is no device plugin any more, as far as is known.
func (in installation) gone(s *State) bool {
	return in.plugin == nil && s.read("daemonsets", "deployments")
}

// checkLost looks at pods that hold what no node offers.
func checkLost(s *State, in installation, pods []string) []Finding {
	if len(pods) == 0 || in.plugin != nil && !old(s, in.plugin.ObjectMeta) {
		return nil
	}
	return []Finding{{Error, podsNamed(pods), "GPU memory is allocated that no device plugin offers",
		"once the device plugin runs and finds the GPUs, it counts these pods again; those that are not to wait for that can be deleted"}}
}

// checkAssignment looks at the GPUs of a pod that is on a node.
func checkAssignment(s *State, object string, pod *v1.Pod) []Finding {
	a, err := s.Names.AssignmentOf(pod)
	if err != nil || a.None() {
		why := "the annotation is missing"
		if err != nil {
			why = oneLine(err)
		}
		return []Finding{{Error, object, "is on node " + pod.Spec.NodeName + " and has no valid assignment: " + why,
			"the device plugin of that node writes one; where it does not, its log says why, and deleting the pod has it placed again"}}
	}
	if _, err := s.Names.Holding(pod); err != nil {
		return []Finding{{Warning, object, oneLine(err), "correct the annotation"}}
	}
	if absent := s.absent(pod.Spec.NodeName, a.Devices()); len(absent) > 0 {
		return []Finding{{Error, object, fmt.Sprintf("is assigned %s, which node %s does not offer", strings.Join(absent, " and "), pod.Spec.NodeName),
			"the log of that node's device plugin says what it finds; if the GPU is gone for good, delete the pod to have it placed again"}}
	}
	return nil
}

func nameOf(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

// podsNamed is the object of a finding about one pod, or several.
func podsNamed(names []string) string {
	if len(names) == 1 {
		return "pod " + names[0]
	}
	return "pods " + some(names)
}

// about returns the finding about pods by name, if there are any.
func about(pods []string, severity Severity, wrong, fix string) []Finding {
	if len(pods) == 0 {
		return nil
	}
	return []Finding{{severity, podsNamed(pods), wrong, fix}}
}

// absent returns those of the GPUs that a node does not offer, as far as its
// inventory can be read.
func (s *State) absent(nodeName string, ids []gpu.UUID) (absent []string) {
	node := s.node(nodeName)
	if node == nil {
		return nil
	}
	inv, err := s.Names.InventoryOf(node)
	for _, id := range ids {
		if _, known := inv.Device(id); err == nil && !known {
			absent = append(absent, string(id))
		}
	}
	return absent
}

// checkCores looks at pods that ask for cores, or hold some, where they are off, which
// does not pass by itself. Where nothing is offered, that is not what is wrong.
func checkCores(s *State, in installation) []Finding {
	cores := s.Names.GPUCore()
	if in.plugin == nil || !s.read("nodes") || Flag(in.plugin.Spec.Template.Spec, "cores", "false") == "true" || !s.offers(s.Names.GPUMem()) && !s.offers(s.Names.GPUShares()) || s.offers(cores) {
		return nil
	}
	var waiting, placed []string
	for i := range s.Pods {
		pod := &s.Pods[i]
		switch req, err := s.Names.Request(pod); {
		case err != nil || req.Cores() == 0 || api.Terminal(pod):
		case pod.Spec.NodeName == "":
			waiting = append(waiting, nameOf(pod))
		default:
			placed = append(placed, nameOf(pod))
		}
	}
	const turnOn = "helm upgrade the release with --reset-then-reuse-values --set cores=true, or "
	return append(about(waiting, Error, fmt.Sprintf("%s is asked for, which no node offers: it is off", cores), fmt.Sprintf("%stake %s out of what creates pods", turnOn, cores)),
		about(placed, Warning, fmt.Sprintf("%s is allocated, which no node offers any more: it is off", cores),
			fmt.Sprintf("the pods run until their node restarts: %screate them again without %s", turnOn, cores))...)
}

func checkWaiting(s *State, in installation, object string, pod *v1.Pod) (found []Finding) {
	if _, err := s.Names.Request(pod); err != nil {
		found = append(found, Finding{Error, object, oneLine(err), "correct the annotation or the limit, and create the pod again"})
	}
	if served := served(in); len(served) > 0 && s.Names.Holds(pod) && !slices.Contains(served, pod.Spec.SchedulerName) {
		found = append(found, Finding{Error, object, fmt.Sprintf("asks for %s and names the scheduler %s, which does not ask gpumem", s.Names.Offered(!s.Names.HoldsHere(pod, false)), pod.Spec.SchedulerName),
			"set spec.schedulerName to " + strings.Join(served, " or ")})
	}
	return found
}

// checkUnseen looks at pods at which no scheduler has looked, though one may serve them.
func checkUnseen(s *State, in installation) []Finding {
	served, names := served(in), make(map[string][]string) // of pods, by their scheduler
	for i := range s.Pods {
		pod := &s.Pods[i]
		asks := s.Names.Asks(pod) && pod.Spec.NodeName == "" && len(pod.Spec.SchedulingGates) == 0 && old(s, pod.ObjectMeta)
		scheduler := pod.Spec.SchedulerName
		if asks && !api.Considered(pod) && (len(served) == 0 || slices.Contains(served, scheduler)) {
			names[scheduler] = append(names[scheduler], nameOf(pod))
		}
	}
	var found []Finding
	for _, scheduler := range slices.Sorted(maps.Keys(names)) {
		found = append(found, Finding{Warning, podsNamed(names[scheduler]), "no scheduler has looked at what waits: " + scheduler + " is named",
			"see whether a scheduler of that name runs and leads, or correct spec.schedulerName where they are made"})
	}
	return found
}

// served returns the scheduler names that ask gpumem, where the chart has brought
// the scheduler. With one of the cluster's own that is not known.
func served(in installation) []string {
	if in.config == nil {
		return nil
	}
	return profiles(in.config)
}

// oneLine is an error for a line of its own: joined errors have several.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
