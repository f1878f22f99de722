package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A node that offers its GPUs in tenths, next to one that offers GiB: who asks for the one goes to the one,
// what a share is depends on its GPU, and a node changes its kind once no pod holds what it offered.
func TestSharesNextToGiB(t *testing.T) {
	e := setup(t)
	e.domain = otherDomain
	label := func(value any) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{otherDomain + "/api": value}}})
		if err == nil {
			_, err = e.client.CoreV1().Nodes().Patch(context.Background(), "node2", types.MergePatchType, patch, metav1.PatchOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	e.Cleanup(func() { // after the check that setup registers
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		label(nil)
		e.uninstall(ctx, other, otherNamespace, otherDomain)
	})
	label("shares")
	if _, err := suite.stack.InstallAs(e.ctx, e.cluster, other, otherNamespace, "scheduler.schedulerName="+otherScheduler, "resourceDomain="+otherDomain, "shares.enabled=true"); err != nil {
		t.Fatal(err)
	}
	ofShares := func(name string, shares int64) *v1.Pod {
		return e.pod(name, 0, asking(otherDomain+"/gpu-share", shares), func(pod *v1.Pod) { pod.Spec.SchedulerName = otherScheduler })
	}
	e.create(ofShares("many", 11))
	e.pending("many", "needs 11 shares on one GPU; the largest that qualifies here has 10 shares")
	e.delete("many", 0)
	e.create(e.ofOther("gib", 3))
	e.create(ofShares("three", 3))
	e.create(ofShares("whole", 10))
	e.isOn("gib", "node1")
	for name, shares := range map[string]int64{"three": 3, "whole": 10} {
		pod := e.isOn(name, "node2")
		env := e.environment(name, "main")
		want := fmt.Sprint(shares * e.shareMiB("node2", e.assigned(pod)[0]))
		if env["NVIDIA_VISIBLE_DEVICES"] != e.assigned(pod)[0] || env["GPUMEM_LIMIT_MIB"] != want {
			t.Errorf("%s sees GPU %s with %s MiB, want %s with %s", name, env["NVIDIA_VISIBLE_DEVICES"], env["GPUMEM_LIMIT_MIB"], e.assigned(pod)[0], want)
		}
	}
	both := ofShares("both", 3)
	both.Spec.Containers[0].Resources.Limits[otherDomain+"/gpu-mem"] = both.Spec.Containers[0].Resources.Limits[otherDomain+"/gpu-share"]
	if _, err := e.client.CoreV1().Pods(e.namespace).Create(e.ctx, both, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), "the pod asks for "+otherDomain+"/gpu-share") {
		t.Errorf("a pod that asks for both: %v", err)
	}
	out, err := suite.stack.Inspect(e.ctx, e.cluster, "nodes", "--resource-domain", otherDomain, "--gpumem-namespace", otherNamespace)
	if err != nil || !strings.Contains(out, "3/10") || !strings.Contains(out, "10/10") || !strings.Contains(out, "13/20s") {
		t.Errorf("%v\n%s", err, out)
	}

	t.Run("a node with pods keeps its kind", func(*testing.T) {
		label(nil)
		e.restartPluginOf("node2")
		e.eventually("the node says that it goes on", func() (bool, string) {
			said := e.nodeEvents("node2")
			return strings.Contains(said, "the node keeps serving "+otherDomain+"/gpu-share") && strings.Contains(said, e.namespace+"/three"), said
		})
		e.isOn("three", "node2")
	})
	t.Run("takes no more of it, and has another once they have ended", func(*testing.T) {
		e.create(ofShares("late", 1))
		e.pending("late", "device plugin")
		e.delete("late", 0)
		e.delete("three", 0)
		e.delete("whole", 0)
		e.gone("three")
		e.gone("whole")
		e.create(e.ofOther("large", 40))
		e.isOn("large", "node2")
	})
	e.delete("large", 0)
	e.delete("gib", 0)
	e.gone("large")
	e.gone("gib")
}

// isOn returns a pod once it runs, on this node.
func (e *env) isOn(name, node string) *v1.Pod {
	e.Helper()
	pod := e.running(name)
	if pod.Spec.NodeName != node {
		e.Errorf("pod %s is on %s, want %s", name, pod.Spec.NodeName, node)
	}
	return pod
}

// shareMiB returns how much a share of a GPU is, as its node says.
func (e *env) shareMiB(node, uuid string) int64 {
	e.Helper()
	object, err := e.client.CoreV1().Nodes().Get(e.ctx, node, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	var inventory struct {
		GPUs []struct {
			UUID     string
			ShareMiB int64
		}
	}
	if err := json.Unmarshal([]byte(object.Annotations[e.domain+"/inventory"]), &inventory); err != nil {
		e.Fatal(err)
	}
	for _, g := range inventory.GPUs {
		if g.UUID == uuid && g.ShareMiB > 1000 {
			return g.ShareMiB
		}
	}
	e.Fatalf("node %s offers no shares of GPU %s: %s", node, uuid, object.Annotations[e.domain+"/inventory"])
	return 0
}

// restartPluginOf replaces the device plugin's pod of a node, and waits for the next.
func (e *env) restartPluginOf(node string) {
	e.Helper()
	selector := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=device-plugin", FieldSelector: "spec.nodeName=" + node}
	plugins := e.client.CoreV1().Pods(otherNamespace)
	list, err := plugins.List(e.ctx, selector)
	if err != nil || len(list.Items) != 1 {
		e.Fatal(len(list.Items), err)
	}
	was := list.Items[0]
	if err := plugins.Delete(e.ctx, was.Name, metav1.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
	e.eventually("there is another plugin on "+node, func() (bool, string) {
		list, err := plugins.List(e.ctx, selector)
		return err == nil && slices.ContainsFunc(list.Items, func(pod v1.Pod) bool { return pod.UID != was.UID && ready(&pod) }), fmt.Sprint(err)
	})
}
