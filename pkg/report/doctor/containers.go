package doctor

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// crashLoop is the kubelet's reason while it waits to restart a container.
const crashLoop = "CrashLoopBackOff"

// Trouble describes the first container of a pod that has failed, or that waits for another reason than
// an ordinary start, with the kubelet's reason and message. It returns "" if there is no such container.
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

// trouble returns why a container does not run; empty if it runs, starts, or has succeeded.
func trouble(c v1.ContainerStatus) string {
	if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
		return "has ended: " + exit(t)
	}
	w := c.State.Waiting
	if w == nil || slices.Contains([]string{"", "PodInitializing", "ContainerCreating"}, w.Reason) {
		return ""
	}
	why := "waits: " + joinMessage(w.Reason, w.Message)
	if t := c.LastTerminationState.Terminated; t != nil && w.Reason == crashLoop {
		why += "; it has ended before: " + exit(t)
	}
	return why
}

func exit(t *v1.ContainerStateTerminated) string {
	return joinMessage(fmt.Sprintf("%s, exit code %d", t.Reason, t.ExitCode), t.Message)
}

// joinMessage joins a reason and its message, on one line of bounded length.
func joinMessage(reason, message string) string {
	const maxMessage = 300 // characters
	if message = strings.Join(strings.Fields(message), " "); message == "" {
		return reason
	}
	if runes := []rune(message); len(runes) > maxMessage {
		message = string(runes[:maxMessage]) + "…"
	}
	return reason + ": " + message
}
