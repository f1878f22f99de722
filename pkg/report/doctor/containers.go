package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/kube/api"
)

// crashLoop is the reason with which the kubelet waits before it starts a container again.
const crashLoop = "CrashLoopBackOff"

// Trouble says in a line which container of a pod, the first, waits for something that
// does not just take its time, or has failed, with the kubelet's reason and message.
// It is empty where there is none.
func Trouble(pod *v1.Pod) string {
	for _, c := range containersOf(pod) {
		if why := trouble(c); why != "" {
			return "container " + c.Name + " " + why
		}
	}
	return ""
}

func containersOf(pod *v1.Pod) []v1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// trouble says why a container does not run as it should, or nothing.
func trouble(c v1.ContainerStatus) string {
	if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
		return "has ended: " + exit(t)
	}
	w := c.State.Waiting
	if w == nil || slices.Contains([]string{"", "PodInitializing", "ContainerCreating"}, w.Reason) {
		return ""
	}
	why := "waits: " + said(w.Reason, w.Message)
	if t := c.LastTerminationState.Terminated; t != nil && w.Reason == crashLoop {
		why += "; it has ended before: " + exit(t)
	}
	return why
}

func exit(t *v1.ContainerStateTerminated) string {
	return said(fmt.Sprintf("%s, exit code %d", t.Reason, t.ExitCode), t.Message)
}

// said is a reason with its message, which may have many lines, and be long.
func said(reason, message string) string {
	const shown = 300 // characters
	if message = strings.Join(strings.Fields(message), " "); message == "" {
		return reason
	}
	if runes := []rune(message); len(runes) > shown {
		message = string(runes[:shown]) + "…"
	}
	return reason + ": " + message
}

// checkStarts looks at pods on nodes with a container that cannot be created or started.
// Pods that are refused for one reason, a Deployment's say, are one finding.
func checkStarts(s *State) (found []Finding) {
	refused := make(map[string][]*v1.Pod) // by what is said, without their names in it
	for i := range s.Pods {
		pod := &s.Pods[i]
		if why := unstartable(pod); why != "" && s.Names.Asks(pod) && !api.Terminal(pod) && pod.DeletionTimestamp == nil && old(s, pod.ObjectMeta) {
			why = strings.ReplaceAll(why, nameOf(pod), "")
			refused[why] = append(refused[why], pod)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		var names []string
		for _, pod := range refused[why] {
			names = append(names, nameOf(pod))
		}
		first := refused[why][0]
		found = append(found, Finding{Warning, podsNamed(names), unstartable(first),
			fmt.Sprintf("kubectl -n %s describe pod %s shows its events; what gpumem refuses is in docs/troubleshooting.md#a-pod-on-its-node-does-not-start", first.Namespace, first.Name)})
	}
	return found
}

// unstartable says which container of a pod is refused by the kubelet, the runtime or a
// hook of it, or by a device plugin, and why. What is a pod's own, an image that is not
// there or a program that fails, is not meant.
func unstartable(pod *v1.Pod) string {
	for _, c := range containersOf(pod) {
		if why := startError(c); why != "" {
			return "container " + c.Name + " does not start: " + why
		}
	}
	return ""
}

func startError(c v1.ContainerStatus) string {
	w, before := c.State.Waiting, c.LastTerminationState.Terminated
	switch {
	case w == nil:
		return ""
	case slices.Contains([]string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}, w.Reason):
		return said(w.Reason, w.Message)
	case w.Reason == crashLoop && before != nil && before.Reason == "StartError": // containerd's, of what never ran
		return said(before.Reason, before.Message)
	default:
		return ""
	}
}
