package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/stack"
)

// withoutGPUs is a node that has no driver. It has no taint, so pods of all tests may come there.
const withoutGPUs = "node4"

// withGPUs are the others.
var withGPUs = []string{"node1", "node2", "node3"}

// In a fleet where some nodes have no GPU, the chart is content with its defaults: the
// plugin runs there and offers nothing, nothing is wrong, pods with GPU memory wait rather
// than go there, and others run.
func TestANodeWithoutGPUs(t *testing.T) {
	e := setup(t)
	plugin := func() *v1.Pod {
		t.Helper()
		pods, err := e.client.CoreV1().Pods(stack.Namespace).List(e.ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/component=device-plugin", FieldSelector: "spec.nodeName=" + withoutGPUs,
		})
		if err != nil || len(pods.Items) != 1 || !ready(&pods.Items[0]) {
			t.Fatalf("pods of the device plugin there: %v, %v; want one that is ready", pods, err)
		}
		return &pods.Items[0]
	}
	before, schedulers := plugin(), []string{"gpumem-scheduler", v1.DefaultSchedulerName}
	node, err := e.client.CoreV1().Nodes().Get(e.ctx, withoutGPUs, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, amount := range node.Status.Allocatable {
		if strings.HasPrefix(string(name), e.domain+"/") {
			t.Errorf("it offers %s of %s, and the kubelet would fail pods that name 0 of it", amount.String(), name)
		}
	}

	t.Run("is shown as a number", func(t *testing.T) {
		table, err := suite.stack.Inspect(e.ctx, e.cluster, "-o", "wide")
		if err != nil || strings.Contains(table, withoutGPUs) || !strings.Contains(table, "1 node without GPU memory is not shown.") {
			t.Errorf("the table: %v\n%s", err, table)
		}
		if got := e.inspect().NodesWithoutInventory; got != 1 {
			t.Errorf("%d nodes without inventory, want 1", got)
		}
	})
	t.Run("is no fault", func(*testing.T) {
		// An earlier test may have restarted a device plugin that is not ready yet.
		e.eventually("doctor finds no error", func() (bool, string) {
			said, err := suite.stack.Inspect(e.ctx, e.cluster, "doctor")
			return err == nil && !strings.Contains(said, withoutGPUs), fmt.Sprint(err, said)
		})
	})
	t.Run("takes no pod with GPU memory", func(*testing.T) {
		for _, scheduler := range schedulers {
			e.create(e.pod("shares-by-"+scheduler, 1, onNode(withoutGPUs), func(pod *v1.Pod) { pod.Spec.SchedulerName = scheduler }))
			why := "Insufficient " + gpuMem
			if scheduler != v1.DefaultSchedulerName {
				why = bySum("the node offers no GPU memory")
			}
			e.pending("shares-by-"+scheduler, why)
		}
	})
	t.Run("takes others", func(t *testing.T) {
		for _, scheduler := range schedulers {
			e.create(e.pod("by-"+scheduler, 0, onNode(withoutGPUs), func(pod *v1.Pod) { pod.Spec.SchedulerName = scheduler }))
			if pod := e.running("by-" + scheduler); pod.Annotations[assignment] != "" || pod.Spec.NodeName != withoutGPUs {
				t.Errorf("%s is on %s, with the assignment %q", pod.Name, pod.Spec.NodeName, pod.Annotations[assignment])
			}
		}
	})
	t.Run("takes those that name 0 of it", func(*testing.T) {
		e.create(e.pod("names-none", 0, onNode(withoutGPUs), asking(gpuMem, 0)))
		e.running("names-none")
	})
	if diff := cmp.Diff(containerIDs(before), containerIDs(plugin())); diff != "" {
		t.Errorf("the device plugin did not go on as it was (-before +after):\n%s", diff)
	}
}
