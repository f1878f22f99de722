package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/fakenvml"
)

func TestKillingEachPartChangesNothingThatRuns(t *testing.T) {
	e := setup(t)
	names := []string{"steady-a", "steady-b", "steady-c"}
	for i, name := range names {
		e.create(e.pod(name, int64(4+i)))
	}
	containers := make(map[string]map[string]string)
	gpus := make(map[string][]string)
	for _, name := range names {
		containers[name] = containerIDs(e.running(name))
		gpus[name] = e.agree(name, "main")
	}
	books := e.books()
	for _, part := range []struct {
		name string
		kill func()
	}{
		{"scheduler", func() { e.killContainers(suite.stack.Decider()) }},
		{"device plugin", func() { e.killContainers("gpumem-device-plugin") }},
		{"kubelet", func() {
			for _, node := range e.cluster.Nodes() {
				if err := e.cluster.Restart(e.ctx, "kubelet@"+node); err != nil {
					t.Fatal(err)
				}
			}
			if err := e.cluster.WaitReady(e.ctx); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(part.name, func(t *testing.T) {
			part.kill()
			// A new pod gets the room that is left, and no other.
			name := "after-" + map[string]string{"scheduler": "a", "device plugin": "b", "kubelet": "c"}[part.name]
			e.create(e.pod(name, 5))
			e.running(name)
			e.agree(name, "main")
			e.delete(name, 0)
			e.gone(name)
			e.eventually("the books are as before", func() (bool, string) {
				diff := cmp.Diff(books, e.books())
				return diff == "", diff
			})
			for _, name := range names {
				if diff := cmp.Diff(containers[name], containerIDs(e.get(name))); diff != "" {
					t.Errorf("containers of %s (-before +after):\n%s", name, diff)
				}
				if diff := cmp.Diff(gpus[name], e.agree(name, "main")); diff != "" {
					t.Errorf("GPUs of %s (-before +after):\n%s", name, diff)
				}
			}
		})
	}
}

func TestBrokenAnnotationsStopNothing(t *testing.T) {
	e := setup(t)
	e.create(e.pod("victim", 3, onNode("node1")))
	e.running("victim")
	before := e.agree("victim", "main")
	e.patchPod("victim", assignment, `{"v":1,"gpus":"all of them"`)
	// The plugin knows better than the annotation, and writes it again.
	if diff := cmp.Diff(before, e.agreeOnce("victim")); diff != "" {
		t.Errorf("GPUs (-before +after):\n%s", diff)
	}
	e.createWith("forged", 3, "assignment", `{"v":1,"unitMiB":1024,"gpus":[{"uuid":"GPU-none","index":7,"units":1}]}`)
	e.running("forged")
	e.agree("forged", "main")

	node, err := e.client.CoreV1().Nodes().Get(e.ctx, "node1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	good := node.Annotations["gpumem.dev/inventory"]
	e.patchNode("node1", "gpumem.dev/inventory", "{broken")
	e.eventually("the plugin has repaired the inventory", func() (bool, string) {
		node, err := e.client.CoreV1().Nodes().Get(e.ctx, "node1", metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		return node.Annotations["gpumem.dev/inventory"] == good, node.Annotations["gpumem.dev/inventory"]
	})
	e.create(e.pod("after", 3, onNode("node1")))
	e.running("after")
}

func TestOddRequestsWaitWithAReason(t *testing.T) {
	e := setup(t)
	for _, tc := range []struct {
		name   string
		pod    *v1.Pod
		reason string
	}{
		{"as large as the policy of the API server lets it be", e.pod("enormous", 1_000_000), bySum("the largest that qualifies here has 79 GiB: gpu-mem counts units of 1 GiB: ask for 977 if you meant MiB")},
		{"larger than any GPU", e.pod("large", a100+1), "the largest that qualifies here has 79 GiB: ask for less"},
	} {
		t.Run(tc.name, func(*testing.T) {
			e.create(tc.pod)
			e.pending(tc.pod.Name, tc.reason)
			if said := waitsBecause(e.get(tc.pod.Name)); strings.Contains(said, "or for more GPUs") {
				t.Errorf("no number of GPUs would do here: %s", said)
			}
		})
	}
	t.Run("what was written when the policy of the API server had looked", func(*testing.T) {
		e.createWith("count", 4, "gpu-count", "two")
		e.createWith("policy", 4, "policy", "best")
		e.pending("count", `annotation gpumem.dev/gpu-count: "two": want a number of GPUs from 1 to 64`)
		e.pending("policy", `annotation gpumem.dev/policy: policy "best": want binpack, spread or exclusive`)
	})
	for _, amount := range []string{"-3", "1.5", "500m", "1000001", "1125899906842624"} {
		pod := e.pod("refused", 1)
		pod.Spec.Containers[0].Resources.Limits[gpuMem] = resource.MustParse(amount)
		if _, err := e.client.CoreV1().Pods(e.namespace).Create(e.ctx, pod, metav1.CreateOptions{}); err == nil {
			t.Errorf("the API server took a pod of %s units", amount)
		}
	}
}

func TestAGPUThatVanishesIsNotOfferedAnyMore(t *testing.T) {
	e := setup(t)
	e.create(e.pod("survivor", 3, onNode("node1"), annotated("gpu-uuid", e.gpu("node1", 0))))
	e.running("survivor")
	lost := e.gpu("node1", 1)

	machine := fakenvml.NewMachine(fakenvml.T4("node1-0"), fakenvml.T4("node1-1"))
	setGPUs := func(state fakenvml.State) {
		t.Helper()
		machine.GPUs[1].State = state
		description, err := json.Marshal(machine)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.cluster.SetGPUs("node1", description); err != nil {
			t.Fatal(err)
		}
	}
	offered := func(want int64, healthy bool) {
		t.Helper()
		e.eventually(fmt.Sprintf("node1 offers %d units", want), func() (bool, string) {
			node, err := e.client.CoreV1().Nodes().Get(e.ctx, "node1", metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			q := node.Status.Allocatable[gpuMem]
			for _, n := range e.inspect().Nodes {
				for _, g := range n.GPUs {
					if g.UUID == lost && g.Healthy != healthy {
						return false, fmt.Sprintf("healthy %t: %s", g.Healthy, g.Unhealthy)
					}
				}
			}
			return q.Value() == want, q.String()
		})
	}
	setGPUs(fakenvml.Lost)
	e.atEnd(func() { setGPUs(fakenvml.OK); offered(2*t4, true) })
	offered(t4, false)
	e.create(e.pod("wants-it", 5, onNode("node1"), annotated("gpu-uuid", lost)))
	e.pending("wants-it", "GPU1 unhealthy")
	e.agree("survivor", "main")

	setGPUs(fakenvml.OK)
	offered(2*t4, true)
	e.running("wants-it")
	if got := e.agree("wants-it", "main")[0]; got != lost {
		t.Errorf("on %s, want %s, which came back", got, lost)
	}
}

// patchPod writes an annotation of a pod as who repairs it by hand: by way of the status.
func (e *env) patchPod(name, key, value string) {
	e.Helper()
	if _, err := e.client.CoreV1().Pods(e.namespace).Patch(e.ctx, name, types.MergePatchType, annotation(key, value), metav1.PatchOptions{}, "status"); err != nil {
		e.Fatal(err)
	}
}

func (e *env) patchNode(name, key, value string) {
	e.Helper()
	if _, err := e.client.CoreV1().Nodes().Patch(e.ctx, name, types.MergePatchType, annotation(key, value), metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
}

func annotation(key, value string) []byte {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	if err != nil {
		panic(err) // cannot be: strings in maps
	}
	return patch
}

// agreeOnce waits until the annotation of a pod can be read again and agrees
// with the kubelet.
func (e *env) agreeOnce(name string) []string {
	e.Helper()
	e.eventually("the annotation of "+name+" has been written again", func() (bool, string) {
		value := e.get(name).Annotations[assignment]
		return json.Valid([]byte(value)), value
	})
	return e.agree(name, "main")
}
