package e2e

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// Containers of 1 and 2 GiB, a sidecar that asks for nothing and an init
// container of 3: the pod starts, on one GPU, and counts 3.
func TestInitContainersAndPlainSidecarsAddNothing(t *testing.T) {
	e := setup(t)
	always := v1.ContainerRestartPolicyAlways
	e.create(e.pod("counts-3", 0, func(pod *v1.Pod) {
		proxy := sample("proxy", 0)
		proxy.RestartPolicy = &always
		pod.Spec.InitContainers = []v1.Container{proxy, sample("prepare", 3, "-exit-after=100ms")}
		pod.Spec.Containers = []v1.Container{sample("one", 1), sample("two", 2)}
	}))
	pod := e.running("counts-3")
	uuids := e.agree("counts-3", "one", "two")
	if len(uuids) != 1 {
		t.Fatalf("on %v, want one GPU", uuids)
	}
	if got := e.books()[pod.Spec.NodeName][uuids[0]]; got != 3 {
		t.Errorf("the books have %d units for it, want 3", got)
	}
}
