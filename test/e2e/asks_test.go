package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// onDGX puts a pod on the node with eight linked GPUs, which other tests are
// kept from by a taint.
func onDGX(pod *v1.Pod) {
	onNode("node3")(pod)
	pod.Spec.Tolerations = []v1.Toleration{{Key: "nvidia.com/gpu", Operator: v1.TolerationOpExists}}
}

// cored makes every container of a pod that asks for memory ask for cores too.
func cored(percent int64) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for _, c := range list {
				if c.Resources.Limits != nil {
					c.Resources.Limits["gpumem.dev/gpu-core"] = *resource.NewQuantity(percent, resource.DecimalSI)
				}
			}
		}
	}
}

// indexesOf returns the indexes of a pod's GPUs, as annotation, kubelet and
// environment name them.
func (e *env) indexesOf(name, container string) []int {
	e.Helper()
	e.running(name)
	uuids := e.agree(name, container)
	var out []int
	for _, n := range e.inspect().Nodes {
		for _, g := range n.GPUs {
			if slices.Contains(uuids, g.UUID) {
				out = append(out, g.Index)
			}
		}
	}
	return out
}

func (e *env) wantIndexes(name string, want ...int) {
	e.Helper()
	if diff := cmp.Diff(want, e.indexesOf(name, "main")); diff != "" {
		e.Errorf("GPUs of %s (-want +got):\n%s", name, diff)
	}
}

func TestTwoGPUsForOnePod(t *testing.T) {
	e := setup(t)
	e.apply("two-gpus.yaml")
	pod := e.running("two-gpus")
	uuids := e.agree("two-gpus", "sample")
	if len(uuids) != 2 {
		t.Fatalf("it is on %v, want two GPUs", uuids)
	}
	env := e.environment("two-gpus", "sample")
	if env["GPUMEM_LIMIT_MIB"] != "3072" || env["GPUMEM_GPU_INDEX"] != "0,1" {
		t.Errorf("granted %q MiB of GPUs %q, want 3072 of 0,1", env["GPUMEM_LIMIT_MIB"], env["GPUMEM_GPU_INDEX"])
	}
	for _, uuid := range uuids {
		if got := e.books()[pod.Spec.NodeName][uuid]; got != 3 {
			t.Errorf("%d units of %s are booked, want 3", got, uuid)
		}
	}
	e.create(e.pod("uneven", 5, annotated("gpu-count", "2")))
	e.pending("uneven", `annotation gpumem.dev/gpu-count: "2": container "main" asks for 5, which does not divide evenly over 2 GPUs`)
}

func TestWholeGPUsBesideSharedOnes(t *testing.T) {
	e := setup(t)
	e.apply("whole-gpus.yaml")
	node := e.running("whole-gpus").Spec.NodeName
	if got := e.agree("whole-gpus", "sample"); len(got) != 2 {
		t.Errorf("it is on %v, want two GPUs", got)
	}
	e.create(e.pod("beside", 1, onNode(node)))
	e.pending("beside", bySum("needs 1 GiB on one GPU; free: GPU0 occupied, GPU1 occupied"))
	// On a node with more GPUs, others share those that are left.
	e.create(e.pod("alone", 2, onDGX, annotated("policy", "exclusive"), annotated("gpu-count", "2")))
	e.wantIndexes("alone", 0, 3)
	for _, name := range []string{"sharing-a", "sharing-b"} {
		e.create(e.pod(name, 3, onDGX))
		e.wantIndexes(name, 1)
	}
}

func TestLinkedGPUsAreTakenTogether(t *testing.T) {
	e := setup(t)
	whole := func(name string, n int) {
		e.create(e.pod(name, int64(n), onDGX, annotated("policy", "exclusive"), annotated("gpu-count", fmt.Sprint(n))))
	}
	whole("pair", 2)
	e.wantIndexes("pair", 0, 3) // two NVLinks, one NUMA node
	whole("quad", 4)
	e.wantIndexes("quad", 4, 5, 6, 7) // all linked to each other
	whole("second-pair", 2)
	e.wantIndexes("second-pair", 1, 2)
	text, err := suite.stack.Inspect(e.ctx, e.cluster, "--details", "-o", "wide", "node3")
	if err != nil || !strings.Contains(text, "1×1,2×1,3×2,4×2") {
		t.Errorf("inspect does not show the NVLinks of GPU 0: %v\n%s", err, text)
	}
}

// slots returns how many IDs of a resource a container holds, by the GPU that
// they name.
func (e *env) slots(node, pod, container, name string) map[string]int {
	e.Helper()
	list, err := e.cluster.PodResources(e.ctx, node)
	if err != nil {
		e.Fatal(err)
	}
	out := make(map[string]int)
	for _, p := range list.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				if p.GetNamespace() == e.namespace && p.GetName() == pod && c.GetName() == container && d.GetResourceName() == name {
					for _, id := range d.GetDeviceIds() {
						out[id[:8]]++
					}
				}
			}
		}
	}
	return out
}

// sameGPU checks that a container's memory and cores are of the pod's one GPU.
func (e *env) sameGPU(name, container string, units, percent int) {
	e.Helper()
	node := e.running(name).Spec.NodeName
	gpu := strings.TrimPrefix(e.agree(name, container)[0], "GPU-")[:8]
	if diff := cmp.Diff(map[string]int{gpu: units}, e.slots(node, name, container, gpuMem)); diff != "" {
		e.Errorf("memory of %s/%s (-want +got):\n%s", name, container, diff)
	}
	if diff := cmp.Diff(map[string]int{gpu: percent}, e.slots(node, name, container, "gpumem.dev/gpu-core")); diff != "" {
		e.Errorf("cores of %s/%s (-want +got):\n%s", name, container, diff)
	}
	if got := e.environment(name, container)["GPUMEM_CORE_PERCENT"]; got != fmt.Sprint(percent) {
		e.Errorf("%s/%s was told of %q %% of cores, want %d", name, container, got, percent)
	}
}

func TestJobsOfSixtyPerCentNeverMeet(t *testing.T) {
	e := setup(t)
	e.apply("cores.yaml")
	for _, name := range []string{"cores-a", "cores-b"} {
		e.sameGPU(name, "sample", 3, 60)
	}
	if a, b := e.agree("cores-a", "sample"), e.agree("cores-b", "sample"); a[0] == b[0] {
		t.Errorf("both are on %s", a[0])
	}
	for _, name := range []string{"cores-a", "cores-b"} {
		e.delete(name, 0)
		e.gone(name)
	}
	for _, name := range []string{"first", "second"} {
		e.create(e.pod(name, 2, onNode("node1"), cored(60)))
		e.sameGPU(name, "main", 2, 60)
	}
	// 80 % are left of the node, and on no GPU more than 40 %.
	e.create(e.pod("third", 2, onNode("node1"), cored(60)))
	e.pending("third", "needs 2 GiB and 60 per cent of cores on one GPU; free: GPU0 12 and 40 per cent of cores, GPU1 12 and 40 per cent of cores (24 and 80 per cent of cores in all, fragmented)")
	e.create(e.pod("small", 2, onNode("node1"), cored(40)))
	e.sameGPU("small", "main", 2, 40)
	text, err := suite.stack.Inspect(e.ctx, e.cluster, "--details", "node1")
	if err != nil || !strings.Contains(text, "GPU-CORE(%)") || !strings.Contains(text, "100/100") || !strings.Contains(text, "60/100") {
		t.Errorf("inspect does not show 100 and 60 of 100 %%: %v\n%s", err, text)
	}
	e.delete("first", 0)
	e.sameGPU("third", "main", 2, 60)
}

// The kubelet asks for the two resources of a container in the order of a map:
// of so many pods at once, with containers of every kind, some come in either.
func TestMemoryAndCoresOfManyPods(t *testing.T) {
	e := setup(t)
	always := v1.ContainerRestartPolicyAlways
	const pods = 8
	for i := range pods {
		e.create(e.pod(fmt.Sprint("many-", i), 2, onDGX, func(pod *v1.Pod) {
			pod.Spec.InitContainers = []v1.Container{sample("prepare", 1, "-exit-after=10ms"), sample("side", 1)}
			pod.Spec.InitContainers[1].RestartPolicy = &always
		}, cored(20)))
	}
	for i := range pods {
		e.sameGPU(fmt.Sprint("many-", i), "main", 2, 20)
		e.sameGPU(fmt.Sprint("many-", i), "side", 1, 20)
	}
	for _, n := range e.inspect().Nodes {
		for _, g := range n.GPUs {
			if g.RequestedCores > 100 {
				t.Errorf("GPU %d of %s has %d%% of its cores taken", g.Index, n.Name, g.RequestedCores)
			}
		}
	}
	// Cores alone are no request, and the pod says so.
	e.create(e.pod("cores-alone", 0, onDGX, asking("gpumem.dev/gpu-core", 10)))
	e.pending("cores-alone", `container "main": gpumem.dev/gpu-core needs gpumem.dev/gpu-mem too`)
}

func TestChoosingAmongModelsAndNeighbours(t *testing.T) {
	e := setup(t)
	e.apply("choose-gpu.yaml")
	models := make(map[string]string)
	for _, n := range e.inspect().Nodes {
		for _, g := range n.GPUs {
			models[g.UUID] = g.Model
		}
	}
	on := make(map[string]string)
	for _, name := range []string{"of-a-model", "fastest", "cheapest", "together-a", "together-b", "apart-a", "apart-b", "spread", "not-that-one"} {
		e.running(name)
		on[name] = e.agree(name, "sample")[0]
	}
	for name, want := range map[string]string{"of-a-model": "NVIDIA A100-SXM4-80GB", "fastest": "NVIDIA A100-SXM4-80GB", "cheapest": "Tesla T4"} {
		if got := models[on[name]]; got != want {
			t.Errorf("%s is on a %s, want a %s", name, got, want)
		}
	}
	if on["together-a"] != on["together-b"] {
		t.Errorf("the group is on %s and %s", on["together-a"], on["together-b"])
	}
	if on["apart-a"] == on["apart-b"] {
		t.Errorf("the exclusive group is on one GPU, %s", on["apart-a"])
	}
	if t.Failed() {
		t.Log(suite.stack.Inspect(e.ctx, e.cluster))
	}
	for name := range on { // so that there is a place on each GPU of node1
		e.delete(name, 0)
		e.gone(name)
	}
	first := e.gpu("node1", 0)
	e.create(e.pod("not-there", 1, onNode("node1"), annotated("gpu-uuid", "GPU-*,!"+first)))
	e.wantIndexes("not-there", 1)
	e.create(e.pod("no-t4", 1, onNode("node1"), annotated("gpu-model", "!*T4")))
	e.pending("no-t4", "wants a GPU that matches !*T4; this node has Tesla T4")
	e.create(e.pod("apart-c", 1, onNode("node1"), annotated("exclusive-group", "a")))
	e.create(e.pod("apart-d", 1, onNode("node1"), annotated("exclusive-group", "a")))
	e.running("apart-c")
	e.running("apart-d")
	e.create(e.pod("apart-e", 1, onNode("node1"), annotated("exclusive-group", "a")))
	e.pending("apart-e", `apart from exclusive-group "a"; free: GPU0 occupied, GPU1 occupied`)
	e.createWith("newest", 1, "gpu-model-preference", "newest")
	e.pending("newest", `annotation gpumem.dev/gpu-model-preference: "newest": want fastest or cheapest`)
}
