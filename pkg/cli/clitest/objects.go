package clitest

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// The builders that tests of other parts use too.
var (
	Names     = kubetest.Names
	UUID      = kubetest.UUID
	Inventory = kubetest.Inventory
	Node      = kubetest.Node
	Pod       = kubetest.Pod
)

// With changes a pod.
func With(pod *v1.Pod, change func(*v1.Pod)) *v1.Pod {
	change(pod)
	return pod
}

// Changed changes a node.
func Changed(node *v1.Node, change func(*v1.Node)) *v1.Node {
	change(node)
	return node
}

// Sicken makes a GPU of a node unhealthy.
func Sicken(t *testing.T, node *v1.Node, index int) {
	t.Helper()
	inv, err := Names(t).InventoryOf(node)
	if err != nil {
		t.Fatal(err)
	}
	inv.Devices[index].Status = gpu.Unhealthy("XID 79")
	kubetest.SetInventory(t, node, inv)
}

// Controlled gives a pod a controller.
func Controlled(kind string) func(*v1.Pod) {
	yes := true
	return func(pod *v1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: "owner", Controller: &yes}}
	}
}

// OwnedBy gives a pod a controller with a UID.
func OwnedBy(kind string, pod *v1.Pod) *v1.Pod {
	controls := true
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", UID: types.UID("uid-" + kind), Controller: &controls}}
	return pod
}

// OddCluster has one of everything that a cluster may surprise with.
func OddCluster(t testing.TB) []runtime.Object {
	names := Names(t)
	sick := Inventory("gpu-a", 16, 80)
	sick.Devices[1].Status = gpu.Unhealthy("XID 79")
	unread := Node(t, "gpu-bad", gpu.Inventory{})
	unread.Annotations = map[string]string{names.Inventory(): "{broken"}
	cordoned := Node(t, "gpu-c", Inventory("gpu-c", 80))
	cordoned.Spec.Unschedulable = true
	now := metav1.NewTime(time.Unix(1700000000, 0))
	return []runtime.Object{
		ExtenderDeployment("gpumem-system", "gpumem.dev", "binpack"),
		Node(t, "gpu-a", sick), unread, cordoned, Node(t, "cpu-1", gpu.Inventory{}), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}},

		Pod(t, "ml/train", "gpu-a", 10, UUID("gpu-a", 0)),
		With(Pod(t, "ml/leaving", "gpu-a", 12, UUID("gpu-a", 0)), func(p *v1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} }),
		Pod(t, "ml/pair", "gpu-a", 8, UUID("gpu-a", 0), UUID("gpu-a", 1)),
		With(Pod(t, "ml/done", "gpu-a", 9, UUID("gpu-a", 1)), func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }),
		With(Pod(t, "web/failed", "gpu-a", 9, UUID("gpu-a", 1)), func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }),
		With(Pod(t, "web/broken", "gpu-a", 2), func(p *v1.Pod) { p.Annotations[names.Assignment()] = `{"v":9}` }),
		Pod(t, "web/moved", "gpu-a", 1, "GPU-gone"),
		With(Pod(t, "web/new", "gpu-c", 4), func(p *v1.Pod) { p.Status.Phase = "" }),
		Pod(t, "web/stranded", "gpu-bad", 3, UUID("gpu-bad", 0)),
		Pod(t, "web/ghost", "deleted-node", 3, "GPU-x"),
		Pod(t, "web/nothing", "gpu-c", 0),
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "plain"}, Spec: v1.PodSpec{NodeName: "gpu-a"}},

		Pod(t, "ml/huge", "", 100),
		With(Pod(t, "web/odd", "", 4), func(p *v1.Pod) { p.Annotations[names.Count()] = "two" }),
		Pod(t, "web/zero", "", 0),
	}
}

// SchedulerConfig is that of the kube-scheduler that the chart brings.
func SchedulerConfig() *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpumem-system", Name: "gpumem-scheduler", Labels: map[string]string{"app.kubernetes.io/part-of": "gpumem"}},
		Data: map[string]string{"config.yaml": `
profiles: [{schedulerName: gpumem-scheduler}]
extenders: [{managedResources: [{name: gpumem.dev/gpu-mem, ignoredByScheduler: false}]}]`},
	}
}

// Forbid lets no one list objects of a kind.
func Forbid(client *fake.Clientset, what string) {
	client.PrependReactor("list", what, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(v1.Resource(what), "", fmt.Errorf("ask your administrator"))
	})
}

// OnlyIn lets the user read what is in one namespace, and nothing else: as a RoleBinding to the
// ClusterRole view does.
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
