package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A pod that can never be placed says in its event what to change, and does no
// harm to others, whatever its priority.
func TestPodsThatCanNeverBePlacedSayWhatToChange(t *testing.T) {
	e := setup(t)
	var fillers []*v1.Pod
	for _, node := range []string{"node1", "node2"} {
		e.create(e.pod("filler-"+node, 6, onNode(node), e.ofPriority(-10)))
		fillers = append(fillers, e.running("filler-"+node))
	}
	e.apply("mistakes.yaml") // of priority 0
	e.createWith("unreadable", 3, "gpu-count", "two")
	for name, want := range map[string]string{
		"too-large":     "1 node(s) unfit: the pod needs 85 GiB on one GPU; the largest that qualifies here has 79 GiB: ask for less",
		"too-many-gpus": "2 node(s) unfit: the pod needs 1 GiB on each of 3 GPUs; large enough here: 2: ask for fewer GPUs, or for less on each",
		"no-such-model": "1 node(s) unfit: the pod wants a GPU that matches H100*; this node has Tesla T4: change gpu-model",
		"unreadable":    `annotation gpumem.dev/gpu-count: "two": want a number of GPUs from 1 to 64`,
	} {
		e.eventually("pod "+name+" says what is wrong with it", func() (bool, string) {
			events := strings.Join(e.events(name), "\n")
			return strings.Contains(events, "FailedScheduling: 0/4 nodes are available: ") && strings.Contains(events, want) &&
				strings.Contains(events, "4 Preemption is not helpful for scheduling") && !strings.Contains(events, "or for more GPUs"), events
		})
	}
	e.untouched(fillers...)
}
