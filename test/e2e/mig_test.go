package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/fakenvml"
	"github.com/gpumem/gpumem/test/stack"
)

// What a seventh of the simulated A100 has for programs, and what a context takes of it.
const (
	seventhMiB, seventhContextMiB = 4852, 46
	seventh                       = 4 // GiB that it offers
)

// offers waits until the node offers so much.
func (m *machine) offers(units int64) {
	m.Helper()
	m.eventually(fmt.Sprintf("%s offers %d", m.node, units), func() (bool, string) {
		node, err := m.client.CoreV1().Nodes().Get(m.ctx, m.node, metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		has := node.Status.Allocatable[gpuMem]
		return has.Value() == units, has.String()
	})
}

// took waits until a program has taken what it can get, and checks that it is so much of so much.
func (m *machine) tookOf(pod string, mib, total int64) {
	m.Helper()
	if l := m.took(pod, "main", 1)[0]; l.AllocatedMiB != mib || l.TotalMiB != total {
		m.Errorf("pod %s took %d of %d MiB, want %d of %d", pod, l.AllocatedMiB, l.TotalMiB, mib, total)
	}
}

// TestInstancesAreGPUs: an A100 in seven parts next to a T4, on a node next to others with whole GPUs, in
// GiB and in shares.
func TestInstancesAreGPUs(t *testing.T) {
	e := setup(t)
	m := newMachine(e)
	sliced := fakenvml.A100InSevenths("node1-a100")
	m.gpus = fakenvml.NewMachine(sliced, fakenvml.T4("node1-0"))
	m.setGPUs()
	m.offers(t4)
	label := func(value string) {
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "label", "node", "node2", "--overwrite", e.domain+"/api"+value); err != nil {
			t.Error(err)
		}
	}
	e.atEnd(func() { label("-") })
	label("=shares")
	image, err := e.cluster.GreedyImageFile()
	if err == nil {
		err = e.cluster.LoadImage(e.ctx, image, m.node)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.startRuntime()
	e.upgrade("devicePlugin.mig=true", "shares.enabled=true")
	m.offers(7*seventh + t4)

	onPart := func(name string, units int64, more ...func(*v1.Pod)) string {
		t.Helper()
		e.create(e.pod(name, units, append(more, annotated("gpu-model", "*MIG 1g.5gb"))...))
		given := e.assigned(e.isOn(name, m.node))
		if len(given) != 1 || !strings.HasPrefix(given[0], "MIG-") {
			t.Fatalf("pod %s is assigned %v", name, given)
		}
		return given[0]
	}
	takes := func(units int64) func(*v1.Pod) { return containers(nil, greedy("main", units, "-hold")) }
	e.apply("mig.yaml")
	if given := e.assigned(e.isOn("on-an-instance", m.node)); len(given) != 1 || !strings.HasPrefix(given[0], "MIG-") {
		t.Errorf("the sample is on %v", given)
	}
	e.delete("on-an-instance", 0)
	e.gone("on-an-instance")
	first := onPart("first", 1, takes(1))
	m.tookOf("first", (seventhMiB-seventhContextMiB)/stepMiB*stepMiB, seventhMiB) // the GPU's hardware limits it to its part
	if second := onPart("second", 3); second != first {
		t.Errorf("pods of 1 and 3 GiB are on %s and %s: one part has as much", first, second)
	}
	e.wantEnvironment("second", map[string]string{"NVIDIA_VISIBLE_DEVICES": first, "GPUMEM_LIMIT_MIB": "3072"})
	third := onPart("third", 2)
	if third == first {
		t.Errorf("a part of %d GiB has pods of 1, 2 and 3", seventh)
	}
	e.create(e.pod("both", 2, annotated("gpu-count", "2"), annotated("gpu-model", "*MIG*")))
	e.pending("both", "needs 2 GPUs; the matching GPUs here are MIG instances, and a program can use only one")
	e.create(e.pod("of-gib", 14, onNode(m.node)))
	if got := e.assigned(e.running("of-gib")); len(got) != 1 || got[0] != m.gpus.GPUs[1].UUID {
		t.Errorf("a pod of 14 GiB is on %v, want the T4", got)
	}
	e.create(e.pod("of-shares", 0, asking(v1.ResourceName(e.domain+"/gpu-share"), 3)))
	e.isOn("of-shares", "node2")
	if out, err := suite.stack.Inspect(e.ctx, e.cluster, "gpus"); err != nil || strings.Count(out, "MIG 1g.5gb") != 7 || !strings.Contains(out, "3/10") {
		t.Errorf("%v\n%s", err, out)
	}

	t.Run("a part that goes", func(*testing.T) {
		all := m.gpus.GPUs[0].MIGDevices
		var left []fakenvml.MIG
		for _, d := range all {
			if d.UUID != third {
				left = append(left, d)
			}
		}
		m.gpus.GPUs[0].MIGDevices = left
		m.setGPUs()
		e.hasEvent("third", "GPUUnhealthy", third, "the driver no longer lists it")
		m.offers(6*seventh + t4)
		m.gpus.GPUs[0].MIGDevices = all
		m.setGPUs()
		m.offers(7*seventh + t4)
	})
	for _, name := range []string{"first", "second", "third", "both", "of-gib"} {
		e.delete(name, 0)
		e.gone(name)
	}
	t.Run("with a daemon of MPS for each", func(t *testing.T) {
		m.startMPS("devicePlugin.mig=true")
		m.level("mps", "kernel: the driver is")
		onPart("limited", 2, annotated("enforcement", "mps"), takes(2))
		m.tookOf("limited", (2*unitMiB-seventhContextMiB)/stepMiB*stepMiB, seventhMiB)
		part := onPart("client", 2, annotated("enforcement", "mps"))
		e.wantEnvironment("client", map[string]string{"CUDA_MPS_PIPE_DIRECTORY": "/run/gpumem/mps/" + part + "/pipe", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2048M"})
		e.create(e.pod("on-t4", 2, onNode(m.node), annotated("gpu-model", "*T4"), annotated("enforcement", "mps"), takes(2)))
		e.running("on-t4")
		m.tookOf("on-t4", taken(2*unitMiB, true), t4MiB)
		if out, err := suite.stack.Inspect(e.ctx, e.cluster, "-d", m.node); err != nil || !strings.Contains(out, "mps (kernel: the driver is") {
			t.Errorf("%v\n%s", err, out)
		}
		if got := len(m.processes(stack.MPSStandIn, nil)); got != 8 {
			t.Errorf("%d daemons, want one of each part and one of the T4", got)
		}
	})
	for _, name := range []string{"limited", "client", "on-t4", "of-shares"} { // the values are taken back
		e.delete(name, 0)
		e.gone(name)
	}
}
