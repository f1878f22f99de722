package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/fakenvml"
)

// healthy is the condition that says whether a node's GPUs are.
const healthy = "GPUMemoryHealthy"

// condition returns the status and message of the node's condition.
func (e *env) condition(node string) string {
	n, err := e.client.CoreV1().Nodes().Get(e.ctx, node, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	for _, c := range n.Status.Conditions {
		if c.Type == healthy {
			return string(c.Status) + ": " + c.Message
		}
	}
	return "no condition " + healthy
}

// nodeEvents returns the reasons and notes of what was recorded of a node.
func (e *env) nodeEvents(node string) string {
	list, err := e.client.CoreV1().Events(metav1.NamespaceAll).List(e.ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node})
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, event := range list.Items {
		out = append(out, event.Reason+": "+event.Message)
	}
	return strings.Join(out, "\n")
}

// A GPU that reports an XID of its own is not offered any more, the node says
// why, and it comes back when it has answered well for a while. An XID of a
// program changes nothing.
func TestAGPUThatReportsAnXIDIsNotOfferedUntilItIsWell(t *testing.T) {
	e := setup(t)
	e.create(e.pod("on-it", 3, onNode("node1"), annotated("gpu-uuid", e.gpu("node1", 1))))
	e.running("on-it")
	machine := fakenvml.NewMachine(fakenvml.T4("node1-0"), fakenvml.T4("node1-1"))
	report := func(seq uint64, xid uint32) {
		machine.Events = append(machine.Events, fakenvml.Event{Seq: seq, GPU: machine.GPUs[1].UUID, Type: "xid", XID: xid})
		e.setGPUs("node1", machine)
	}
	e.atEnd(func() { e.setGPUs("node1", fakenvml.NewMachine(fakenvml.T4("node1-0"), fakenvml.T4("node1-1"))) })
	e.eventually("node1 is well", func() (bool, string) {
		c := e.condition("node1")
		return c == "True: all 2 GPUs are healthy", c
	})
	report(1, 31) // of a program
	report(2, 74)
	e.eventually("node1 says that it is not", func() (bool, string) {
		events := e.nodeEvents("node1")
		return strings.Contains(events, "GPUUnhealthy: GPU 1 ("+machine.GPUs[1].UUID+") is not healthy and takes no new pods: XID 74: NVLink error"), events
	})
	e.eventually("its pod is told", func() (bool, string) {
		events := strings.Join(e.events("on-it"), "\n")
		return strings.Contains(events, "GPUUnhealthy"), events
	})
	e.eventually("node1 is well again", func() (bool, string) {
		events, c := e.nodeEvents("node1"), e.condition("node1")
		return strings.Contains(events, "GPUHealthy: GPU 1 (") && c == "True: all 2 GPUs are healthy", c + "\n" + events
	})
	if strings.Contains(e.nodeEvents("node1"), "XID 31") {
		t.Error("an XID of a program was held against the GPU")
	}
	e.agree("on-it", "main")
}

func (e *env) setGPUs(node string, machine fakenvml.Machine) {
	e.Helper()
	description, err := json.Marshal(machine)
	if err != nil {
		e.Fatal(err)
	}
	if err := e.cluster.SetGPUs(node, description); err != nil {
		e.Fatal(err)
	}
}

// A GPU that is cordoned by hand takes no new pods, from the scheduler or past
// it, and those on it stay; draining it evicts them and nobody else.
func TestACordonedGPUIsLeftAloneAndDrained(t *testing.T) {
	e := setup(t)
	inspect := func(args ...string) string {
		t.Helper()
		out, err := suite.stack.Inspect(e.ctx, e.cluster, args...)
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	for i, name := range []string{"on-it", "beside"} {
		e.create(e.pod(name, 3, onNode("node1"), annotated("gpu-uuid", e.gpu("node1", 1-i))))
		e.running(name)
	}
	e.atEnd(func() { inspect("uncordon", "node1", "1") })
	inspect("cordon", "node1", "1", "--reason", "its fan is loud")
	e.create(e.pod("waits", 3, onNode("node1"), annotated("gpu-uuid", e.gpu("node1", 1))))
	e.pending("waits", "GPU1 cordoned")
	if out := inspect("explain", "-n", e.namespace, "waits"); !strings.Contains(out, "would fit, but GPU1 is cordoned by admin (its fan is loud): kubectl inspect gpumem uncordon node1 1") || !strings.Contains(out, "filter") {
		t.Errorf("explain does not say why, or what was decided:\n%s", out)
	}
	past := e.pod("past", 3, func(p *v1.Pod) { p.Spec.NodeName = "node1" })
	e.create(past)
	e.running("past")
	if got := e.agree("past", "main")[0]; got != e.gpu("node1", 0) {
		t.Errorf("the plugin has put a pod on %s, which is cordoned", got)
	}
	e.agree("on-it", "main")

	out := inspect("drain", "node1", "1", "--force", "--grace-period=0")
	if !strings.Contains(out, "pod/on-it evicted") || strings.Contains(out, "beside") {
		t.Errorf("drain says:\n%s", out)
	}
	e.gone("on-it")
	e.agree("beside", "main")
	inspect("uncordon", "node1", "1")
	e.running("waits")
	bound := inspect("explain", "-n", e.namespace, "waits")
	for _, want := range []string{"is on a node that scheduler gpumem-scheduler chose", "bound node1", "chosen"} {
		if !strings.Contains(bound, want) {
			t.Errorf("explain lacks %q:\n%s", want, bound)
		}
	}
	fmt.Fprintln(t.Output(), bound)
}
