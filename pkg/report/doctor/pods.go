package doctor

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// checkPods reports pods of gpushare, clients of MPS protocol 3, and the number of pods with GPU memory
// that bypass gpumem's scheduler.
func checkPods(s *State, inst installation) (result findings) {
	if !s.read("pods") {
		return nil
	}
	asking := inst.schedulers(s.Names)
	var bypass []string
	var waiting, rejected int
	for i := range s.Pods {
		pod := &s.Pods[i]
		if !s.Names.Asks(pod) || api.Terminal(pod) && !api.Rejected(pod) {
			continue
		}
		if s.Names.PlacedByGPUShare(pod) {
			result.add(Error, "pod "+namespacedName(pod.ObjectMeta), "kubectl drain "+pod.Spec.NodeName+" --ignore-daemonsets --delete-emptydir-data (docs/migrating-from-gpushare.md)",
				"was placed by gpushare: gpumem offers no GPU of node %s while it runs", pod.Spec.NodeName)
			continue
		}
		if node := s.node(pod.Spec.NodeName); node != nil && !api.Terminal(pod) && s.Names.RetiredMPSClient(node, pod) {
			result.add(Error, "pod "+namespacedName(pod.ObjectMeta), "delete the pod and the MPS daemon of node "+node.Name+" before the upgrade (docs/upgrading.md#upgrade-from-02)",
				"is a client of MPS protocol 3, which gpumem no longer runs: the chart refuses the upgrade, and the pod cannot start again after it")
			continue
		}
		if !s.bypasses(inst, asking, pod) {
			continue
		}
		bypass = append(bypass, namespacedName(pod.ObjectMeta))
		switch {
		case api.Rejected(pod):
			rejected++
		case pod.Spec.NodeName == "":
			waiting++
		}
	}
	if len(bypass) == 0 {
		return result
	}
	severity := Warning
	if waiting > 0 {
		severity = Error // the schedulers of these pods assign no GPU
	}
	ours := strings.Join(asking, " or ")
	if len(asking) == 0 {
		ours = "the name of gpumem's scheduler (" + api.DefaultScheduler + " by default)"
	}
	fix := "set spec.schedulerName to " + ours + " in the template of these pods, leave spec.nodeName empty, and recreate the pods"
	result.add(severity, podsNamed(bypass), fix,
		"%d pods with GPU memory are scheduled without asking gpumem, which knows the free memory of each GPU: %d wait for a node, the kubelet rejected %d", len(bypass), waiting, rejected)
	return result
}

// bypasses reports whether a scheduler that does not call gpumem places or placed a pod. Parameter asking has
// the names of the schedulers that call gpumem; empty if unknown. If the user may not read these names, bypasses
// reports true for pods that no scheduler has considered, and for pods of the default scheduler if the release
// runs its own kube-scheduler.
func (s *State) bypasses(inst installation, asking []string, pod *v1.Pod) bool {
	if a, err := s.Names.AssignmentOf(pod); err == nil && !a.None() {
		return a.ByNode // the scheduler may have another name by now
	}
	switch name := cmp.Or(pod.Spec.SchedulerName, v1.DefaultSchedulerName); {
	case len(asking) > 0:
		return !slices.Contains(asking, name)
	case s.read("configmaps") || name == api.DefaultScheduler:
		return false
	case name == v1.DefaultSchedulerName:
		return inst.bundled()
	default:
		return pod.Spec.NodeName == "" && !api.Considered(pod) && old(s, pod.ObjectMeta)
	}
}

// podsNamed returns the object of a finding about pods.
func podsNamed(names []string) string {
	if len(names) == 1 {
		return "pod " + names[0]
	}
	return "pods " + abbreviateNames(names)
}
