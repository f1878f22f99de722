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

// A pod that names its GPUs itself, or is privileged, can reach past its grant:
// nothing in a node keeps it from that. What it asked for is counted and written
// of it all the same, so that others are not placed on what it holds.
func TestPodsThatReachPastTheirGrantAreCounted(t *testing.T) {
	e := setup(t)
	e.create(e.pod("names-all", 3, onNode("node1"), func(pod *v1.Pod) {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, v1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"})
	}))
	e.create(e.pod("privileged", 3, onNode("node1"), func(pod *v1.Pod) {
		pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: new(true)}
	}))
	want := make(map[string]int64) // by GPU
	node := ""
	for _, name := range []string{"names-all", "privileged"} {
		pod := e.running(name)
		uuids := e.agree(name)
		if len(uuids) != 1 || len(e.held(pod.Spec.NodeName)[e.namespace+"/"+name+"/main"]) != 3 {
			t.Fatalf("%s is written to be on %v, want one GPU, and 3 slots of it held", name, uuids)
		}
		want[uuids[0]] += 3
		node = pod.Spec.NodeName
	}
	for uuid, units := range want {
		if got := e.books()[node][uuid]; got != units {
			t.Errorf("the books have %d units of %s, want %d", got, uuid, units)
		}
	}
	if got := e.environment("names-all", "main")["NVIDIA_VISIBLE_DEVICES"]; got != "all" {
		t.Errorf("the container that names its GPUs sees %q", got)
	}
	e.agree("privileged", "main")
}
