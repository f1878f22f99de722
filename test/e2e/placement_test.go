package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The demo's nodes: node1 has two T4 of 14 usable GiB each, node2 an A100 of 79
// and a T4. What the driver keeps for itself is not offered.
const (
	t4   = 14
	a100 = 79
	v100 = 15 // eight of them on node3
)

func TestNodesOfferTheSumOfTheirOwnGPUs(t *testing.T) {
	e := setup(t)
	want := map[string]int64{"node1": t4 + t4, "node2": a100 + t4, "node3": 8 * v100}
	for _, n := range e.inspect().Nodes {
		var units int64
		for _, g := range n.GPUs {
			units += g.Capacity.Units
		}
		if units != want[n.Name] {
			t.Errorf("%s has %d units on its GPUs, want %d", n.Name, units, want[n.Name])
		}
	}
	for name, units := range want {
		e.eventually(name+" offers the units to kube-scheduler", func() (bool, string) {
			node, err := e.client.CoreV1().Nodes().Get(e.ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			q := node.Status.Allocatable[gpuMem]
			return q.Value() == units, q.String()
		})
	}
}

func TestThreeSmallPodsShareOneGPU(t *testing.T) {
	e := setup(t)
	var seen []string
	for i := range 3 {
		e.create(e.pod(fmt.Sprint("small-", i), 3))
	}
	for i := range 3 {
		name := fmt.Sprint("small-", i)
		e.running(name)
		seen = append(seen, e.agree(name, "main")...)
		env := e.environment(name, "main")
		want := map[string]string{
			"GPUMEM_LIMIT_MIB": "3072", "GPUMEM_GPU_MIB": "15360", "GPUMEM_FRACTION": "0.1900",
			"GPUMEM_GPU_UUID": seen[i], "GPUMEM_ENFORCEMENT": "advisory",
		}
		for key, value := range want {
			if env[key] != value {
				t.Errorf("%s: %s=%q, want %q", name, key, env[key], value)
			}
		}
	}
	if seen[0] != seen[1] || seen[1] != seen[2] {
		t.Errorf("the pods are on %v, want one GPU", seen)
	}
	e.checkLabels("small-0", map[string]string{"model": "Tesla-T4", "percent": "21", "speed": "5"})
}

// checkLabels waits until a pod has these labels of its assignment, by what follows "assigned-".
func (e *env) checkLabels(name string, want map[string]string) {
	e.Helper()
	e.eventually(name+" is labelled", func() (bool, string) {
		pod, err := e.client.CoreV1().Pods(e.namespace).Get(e.ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		got := make(map[string]string)
		for key, value := range pod.Labels {
			if name, ok := strings.CutPrefix(key, "gpumem.dev/assigned-"); ok {
				got[name] = value
			}
		}
		return maps.Equal(got, want), fmt.Sprint(got)
	})
}

func TestFreeMemoryOfTwoGPUsDoesNotAddUp(t *testing.T) {
	e := setup(t)
	for _, name := range []string{"filler-a", "filler-b"} {
		e.create(e.pod(name, t4-2, onNode("node1")))
		e.running(name)
	}
	e.create(e.pod("wants-3", 3, onNode("node1")))
	e.pending("wants-3", "needs 3 GiB on one GPU; free: GPU0 2, GPU1 2 (4 in all, fragmented)")
	e.create(e.pod("wants-2", 2, onNode("node1")))
	e.running("wants-2")
}

func TestALargePodGoesToTheLargeGPUAndAnotherWaits(t *testing.T) {
	e := setup(t)
	e.create(e.pod("forty", 40))
	pod := e.running("forty")
	if diff := cmp.Diff([]string{e.gpu("node2", 0)}, e.agree("forty", "main")); diff != "" || pod.Spec.NodeName != "node2" {
		t.Errorf("on %s; GPUs (-want +got):\n%s", pod.Spec.NodeName, diff)
	}
	e.create(e.pod("fifty", 50))
	e.pending("fifty", "needs 50 GiB on one GPU; free: GPU0 39, GPU1 14 (53 in all, fragmented)")
	e.create(e.pod("sixty", 60))
	e.pending("sixty", bySum("needs 60 GiB on one GPU; free: GPU0 39, GPU1 14 (53 GiB in all)"))
	e.delete("fifty", 0)
	e.delete("forty", 0)
	e.running("sixty")
}

func TestContainersOfOnePodShareItsGPU(t *testing.T) {
	e := setup(t)
	always := v1.ContainerRestartPolicyAlways
	e.create(e.pod("mixed", 0, func(pod *v1.Pod) {
		sidecar := sample("sidecar", 1)
		sidecar.RestartPolicy = &always
		pod.Spec.InitContainers = []v1.Container{sidecar, sample("prepare", 3, "-exit-after=100ms")}
		pod.Spec.Containers = []v1.Container{sample("one", 1), sample("two", 2), sample("none", 0)}
	}))
	pod := e.running("mixed")
	uuids := e.agree("mixed", "sidecar", "one", "two")
	if len(uuids) != 1 {
		t.Fatalf("on %v, want one GPU", uuids)
	}
	if got := e.environment("mixed", "prepare")["NVIDIA_VISIBLE_DEVICES"]; got != uuids[0] {
		t.Errorf("the init container saw %q, want %q", got, uuids[0])
	}
	if got := e.books()[pod.Spec.NodeName][uuids[0]]; got != 4 {
		t.Errorf("the books have %d units for it, want 4", got)
	}
	ids := make(map[string]bool)
	for container, list := range e.held(pod.Spec.NodeName) {
		for _, id := range list {
			if ids[id] {
				t.Errorf("slot %s of %s is held twice", id, container)
			}
			ids[id] = true
		}
	}
	if len(ids) != 4 {
		t.Errorf("the kubelet has given %d slots, want 4: %v", len(ids), ids)
	}
	text, err := e.client.CoreV1().Pods(e.namespace).GetLogs("mixed", &v1.PodLogOptions{Container: "none"}).DoRaw(e.ctx)
	if err != nil || len(text) != 0 {
		t.Errorf("the container without GPU printed %q (%v), want nothing", text, err)
	}
	e.apply("sidecar.yaml")
	e.running("sidecar")
	if uuids := e.agree("sidecar", "metrics", "load", "serve"); len(uuids) != 1 {
		t.Errorf("the sample is on %v, want one GPU", uuids)
	}
}

func TestEqualPodsAdmittedInTheOtherOrderThanBound(t *testing.T) {
	e := setup(t)
	// The kubelet drops what pods held that are gone only when it admits the next
	// one, and after a restart it would count them still.
	e.create(e.pod("sweeper", 1, onNode("node1")))
	e.running("sweeper")
	e.delete("sweeper", 0)
	e.gone("sweeper")
	gated := func(pod *v1.Pod) { pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "test/later"}} }
	// Created first, so that the kubelet admits it first; bound second.
	first := e.create(e.pod("first", 8, onNode("node1"), annotated("policy", "spread"), gated))
	e.eventually("a second has passed, for creation times have whole seconds", func() (bool, string) {
		later := e.create(e.pod("second", 8, onNode("node1"), annotated("policy", "spread"), gated))
		if later.CreationTimestamp.After(first.CreationTimestamp.Time) {
			return true, ""
		}
		e.delete("second", 0)
		e.gone("second")
		return false, "the same second"
	})
	if err := e.cluster.Kill(e.ctx, "kubelet@node1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"second", "first"} {
		e.ungate(name)
		e.eventually(name+" is bound", func() (bool, string) {
			pod := e.get(name)
			return pod.Spec.NodeName != "", waitsBecause(pod)
		})
	}
	if err := e.cluster.StartProcess("kubelet@node1"); err != nil {
		t.Fatal(err)
	}
	if err := e.cluster.WaitReady(e.ctx); err != nil {
		t.Fatal(err)
	}
	e.running("first")
	e.running("second")
	a, b := e.agree("first", "main"), e.agree("second", "main")
	if a[0] == b[0] {
		t.Errorf("both are on %s, want a GPU each", a[0])
	}
	e.eventually("the books have 8 units of each GPU", func() (bool, string) {
		books := e.books()["node1"]
		return books[a[0]] == 8 && books[b[0]] == 8, fmt.Sprint(books)
	})
}

func TestAPodThatIsBeingDeletedKeepsItsMemory(t *testing.T) {
	e := setup(t)
	const most = t4 - 6 // of a GPU: no two such pods fit on one
	e.create(e.pod("filler", most, onNode("node1")))
	e.running("filler")
	e.create(e.pod("leaving", most, onNode("node1"), func(pod *v1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = new(int64(60))
		pod.Spec.Containers[0].Args = []string{"-ignore-term"}
	}))
	leaving := e.running("leaving")
	uuid := e.agree("leaving", "main")[0]
	e.delete("leaving", 60)
	e.create(e.pod("waiting", most, onNode("node1")))
	e.pending("waiting", "free: GPU0 6, GPU1 6 (12 in all, fragmented)")
	if got := e.books()[leaving.Spec.NodeName][uuid]; got != most {
		t.Errorf("the books have %d units of the pod that is being deleted, want %d", got, most)
	}
	if e.get("leaving").DeletionTimestamp == nil || e.get("waiting").Spec.NodeName != "" {
		t.Error("want the one terminating and the other waiting")
	}
	e.delete("leaving", 1) // cuts the grace short
	e.gone("leaving")
	e.running("waiting")
	if got := e.agree("waiting", "main")[0]; got != uuid {
		t.Errorf("it is on %s, want %s, which has become free", got, uuid)
	}
}

func TestAPodDeletedAndMadeAgainUnderItsNameLeaksNothing(t *testing.T) {
	e := setup(t)
	const times = 200
	for range times {
		e.create(e.pod("again", 1, onNode("node1")))
		// Whether somebody else takes it away first is no matter here.
		e.eventually("it is bound", func() (bool, string) {
			pod, err := e.client.CoreV1().Pods(e.namespace).Get(e.ctx, "again", metav1.GetOptions{})
			if err != nil {
				return apierrors.IsNotFound(err), err.Error()
			}
			return pod.Spec.NodeName != "", waitsBecause(pod)
		})
		err := e.client.CoreV1().Pods(e.namespace).Delete(e.ctx, "again", *metav1.NewDeleteOptions(0))
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		e.gone("again")
	}
	// Nothing is left of the 200, so each GPU has room for one that takes all.
	for _, name := range []string{"all-a", "all-b"} {
		e.create(e.pod(name, t4, onNode("node1")))
		e.running(name)
		e.agree(name, "main")
	}
}

func TestAPodWithANodeNameIsPlacedByThePlugin(t *testing.T) {
	e := setup(t)
	e.create(e.pod("planned", 10, onNode("node1")))
	e.running("planned")
	e.create(e.pod("bypass", 8, func(pod *v1.Pod) { pod.Spec.NodeName = "node1" }))
	e.running("bypass")
	planned, bypass := e.agree("planned", "main"), e.agree("bypass", "main")
	if planned[0] == bypass[0] {
		t.Errorf("both are on %s, which has no room for both", planned[0])
	}
	e.eventually("the books count it", func() (bool, string) {
		got := e.books()["node1"]
		return got[bypass[0]] == 8 && got[planned[0]] == 10 && len(got) == 2, fmt.Sprint(got)
	})
	e.checkLabels("bypass", map[string]string{"model": "Tesla-T4", "percent": "57", "speed": "12"})
	e.create(e.pod("too-much", 8, onNode("node1")))
	e.pending("too-much", "GPU", "fragmented")
}
