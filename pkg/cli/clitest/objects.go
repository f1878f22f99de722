package clitest

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// Sicken marks a GPU of a node as unhealthy.
func Sicken(t *testing.T, node *v1.Node, index int) {
	t.Helper()
	inv, err := kubetest.Names(t).InventoryOf(node)
	if err != nil {
		t.Fatal(err)
	}
	inv.Devices[index].Status = gpu.Unhealthy("XID 79")
	kubetest.SetInventory(t, node, inv)
}

// OddCluster returns the objects of a cluster with every kind of unusual node and pod.
func OddCluster(t testing.TB) []runtime.Object {
	names := kubetest.Names(t)
	sick := kubetest.Inventory("gpu-a", 16, 80)
	sick.Devices[1].Status = gpu.Unhealthy("XID 79")
	unread := kubetest.Node(t, "gpu-bad", gpu.Inventory{})
	unread.Annotations = map[string]string{names.Inventory(): "{broken"}
	cordoned := kubetest.Node(t, "gpu-c", kubetest.Inventory("gpu-c", 80))
	cordoned.Spec.Unschedulable = true
	now := metav1.NewTime(time.Unix(1700000000, 0))
	return []runtime.Object{
		ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"),
		kubetest.Node(t, "gpu-a", sick), unread, cordoned, kubetest.Node(t, "cpu-1", gpu.Inventory{}), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}},

		kubetest.Pod(t, "ml/train", "gpu-a", 10, kubetest.UUID("gpu-a", 0)),
		kubetest.With(kubetest.Pod(t, "ml/leaving", "gpu-a", 12, kubetest.UUID("gpu-a", 0)), func(p *v1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} }),
		kubetest.Pod(t, "ml/pair", "gpu-a", 8, kubetest.UUID("gpu-a", 0), kubetest.UUID("gpu-a", 1)),
		kubetest.With(kubetest.Pod(t, "ml/done", "gpu-a", 9, kubetest.UUID("gpu-a", 1)), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }),
		kubetest.With(kubetest.Pod(t, "web/failed", "gpu-a", 9, kubetest.UUID("gpu-a", 1)), func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }),
		kubetest.With(kubetest.Pod(t, "web/broken", "gpu-a", 2), func(p *v1.Pod) { p.Annotations[names.Assignment()] = `{"v":9}` }),
		kubetest.Pod(t, "web/moved", "gpu-a", 1, "GPU-gone"),
		kubetest.With(kubetest.Pod(t, "web/new", "gpu-c", 4), func(p *v1.Pod) { p.Status.Phase = "" }),
		kubetest.Pod(t, "web/stranded", "gpu-bad", 3, kubetest.UUID("gpu-bad", 0)),
		kubetest.Pod(t, "web/ghost", "deleted-node", 3, "GPU-x"),
		kubetest.Pod(t, "web/nothing", "gpu-c", 0),
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "plain"}, Spec: v1.PodSpec{NodeName: "gpu-a"}},

		kubetest.Pod(t, "ml/huge", "", 100),
		kubetest.With(kubetest.Pod(t, "web/odd", "", 4), func(p *v1.Pod) { p.Annotations[names.Count()] = "two" }),
		kubetest.Pod(t, "web/zero", "", 0),
	}
}

// SchedulerConfig returns the configuration of the chart's kube-scheduler.
func SchedulerConfig() *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpumem-system", Name: "gpumem-scheduler", Labels: map[string]string{"app.kubernetes.io/part-of": "gpumem"}},
		Data: map[string]string{"config.yaml": `
profiles: [{schedulerName: gpumem-scheduler}]
extenders: [{managedResources: [{name: gpumem.dev/gpu-mem, ignoredByScheduler: false}]}]`},
	}
}

// Forbid makes a fake client refuse to list a resource.
func Forbid(client *fake.Clientset, what string) {
	client.PrependReactor("list", what, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource(what), "", fmt.Errorf("ask your administrator"))
	})
}

// OnlyIn limits a fake client to the objects of one namespace, like a RoleBinding to the ClusterRole
// view.
func OnlyIn(client *fake.Clientset, namespace string) {
	client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() == namespace {
			return false, nil, nil
		}
		return true, nil, forbidden(a)
	})
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		return a.GetNamespace() != namespace, nil, forbidden(a)
	})
}

func forbidden(a clienttesting.Action) error {
	return apierrors.NewForbidden(a.GetResource().GroupResource(), "", fmt.Errorf("ask your administrator"))
}
