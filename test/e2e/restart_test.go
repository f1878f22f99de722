package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/stack"
)

// withdrawn returns the nodes whose inventory says that their plugin ends.
func (e *env) withdrawn() (names []string) {
	e.Helper()
	nodes, err := e.client.CoreV1().Nodes().List(e.ctx, metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	for _, node := range nodes.Items {
		if strings.Contains(node.Annotations["gpumem.dev/inventory"], `"stopped":true`) {
			names = append(names, node.Name)
		}
	}
	return names
}

// makeAnother deletes one of the test's pods that run, which its ReplicaSet
// replaces at once.
func (e *env) makeAnother() {
	e.Helper()
	for _, pod := range e.pods() {
		if ready(&pod) && pod.DeletionTimestamp == nil {
			e.delete(pod.Name, 0)
			return
		}
	}
}

// pods returns the test's pods. That none has failed is checked.
func (e *env) pods() []v1.Pod {
	e.Helper()
	list, err := e.client.CoreV1().Pods(e.namespace).List(e.ctx, metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	for _, pod := range list.Items {
		if pod.Status.Phase == v1.PodFailed {
			e.Fatalf("pod %s failed on %s: %s: %s", pod.Name, pod.Spec.NodeName, pod.Status.Reason, pod.Status.Message)
		}
	}
	return list.Items
}

// Pods are made all the time while the plugin is replaced, on one node after the
// other and on all at once. Those that find none wait for it, and none fails.
func TestNoPodFailsWhileThePluginIsReplaced(t *testing.T) {
	e := setup(t)
	sets := []string{"a", "b", "c", "d", "e", "f"}
	for _, name := range sets {
		e.replicaSet(name, e.pod(name, 2))
	}
	for _, name := range sets {
		e.runningOf(name)
	}
	for name, replace := range map[string][]string{
		"by a rollout": {"rollout", "restart", "daemonset/gpumem-device-plugin"},
		"all at once":  {"delete", "pods", "--selector=app.kubernetes.io/component=device-plugin", "--wait=false"},
	} {
		t.Run(name, func(t *testing.T) {
			before, out := e.componentIDs("gpumem-device-plugin"), make(map[string]bool)
			if _, err := suite.stack.Kubectl(e.ctx, e.cluster, append(replace, "--namespace", stack.Namespace)...); err != nil {
				t.Fatal(err)
			}
			e.eventually("every plugin is replaced", func() (bool, string) {
				for _, node := range e.withdrawn() {
					out[node] = true
				}
				e.makeAnother()
				return e.replaced(before)
			})
			if len(out) != len(withGPUs) {
				t.Errorf("of %v, these had withdrawn their inventory: %v", withGPUs, out)
			}
			for _, name := range sets {
				e.agree(e.runningOf(name), "main")
			}
			if left := e.withdrawn(); len(left) > 0 {
				t.Errorf("inventories that are withdrawn still: %v", left)
			}
			e.pods()
		})
	}
}

// replaced reports whether other plugins are ready than were before.
func (e *env) replaced(before map[string]string) (bool, string) {
	e.Helper()
	after := e.componentIDs("gpumem-device-plugin")
	replaced := len(after) == len(before)
	for pod, id := range after {
		replaced = replaced && before[pod] == "" && id != ""
	}
	return replaced, fmt.Sprint(after)
}

// A plugin that is deleted by force still serves when the next one starts, and cannot
// write to the API server any more. The kubelet drops who is registered when it ends.
func TestAPluginIsFollowedByOneThatOffersWhenDeletedByForce(t *testing.T) {
	e := setup(t)
	for round := range 4 {
		before := e.componentIDs("gpumem-device-plugin")
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "delete", "pods", "--selector=app.kubernetes.io/component=device-plugin",
			"--force", "--grace-period=0", "--namespace", stack.Namespace); err != nil {
			t.Fatal(err)
		}
		e.eventually("every plugin is replaced", func() (bool, string) { return e.replaced(before) })
		for _, node := range []string{"node1", "node2"} {
			name := fmt.Sprintf("%s-%d", node, round)
			e.create(e.pod(name, 1, onNode(node)))
			e.running(name)
			e.delete(name, 0)
			e.gone(name)
		}
	}
}

// A plugin that registers again with a kubelet that has restarted takes nothing
// back: pods are bound to the node all the while.
func TestAKubeletThatRestartsWithdrawsNothing(t *testing.T) {
	e := setup(t)
	if err := e.cluster.Restart(e.ctx, "kubelet@node1"); err != nil {
		t.Fatal(err)
	}
	e.eventually("the plugin is registered again", func() (bool, string) {
		if left := e.withdrawn(); len(left) > 0 {
			t.Fatalf("inventories are withdrawn: %v", left)
		}
		err := e.cluster.WaitReady(e.ctx)
		return err == nil, fmt.Sprint(err)
	})
	e.create(e.pod("after", 3, onNode("node1")))
	e.running("after")
	if left := e.withdrawn(); len(left) > 0 {
		t.Errorf("inventories are withdrawn: %v", left)
	}
}
