package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/test/stack"
)

// What the version before wrote, with nothing in it that came later, and what the
// version after may write. GPU stands for a UUID.
const (
	inventoryBefore = `{"v":1,"unitMiB":1024,"gpus":[{"uuid":"GPU","index":0,"model":"Tesla T4","memoryMiB":15360,"units":14,"healthy":true},` +
		`{"uuid":"GPU-99999999-1111-2222-3333-444455556666","index":1,"model":"Tesla T4","memoryMiB":10752,"units":10,"healthy":true}]}`
	inventoryAfter = `{"v":1,"later":{"x":[1]},"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"GPU","index":0,"model":"Tesla T4","memoryMiB":15360,"units":14,"healthy":true,"celsius":60},` +
		`{"uuid":"GPU-99999999-1111-2222-3333-444455556666","index":1,"model":"Tesla T4","memoryMiB":10752,"units":10,"healthy":true,"celsius":60}]}`
	assignmentBefore = `{"v":1,"gpus":[{"uuid":"GPU","units":3}]}`
	assignmentAfter  = `{"v":1,"later":"x","unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"GPU","index":0,"units":3,"cores":0,"slices":[7]}]}`
)

// Parts that are one minor version apart serve pods: the extender on nodes that the
// device plugin of another version describes, the device plugin with pods that the
// extender of another version has placed. The doctor says that they are apart.
func TestOneMinorVersionApart(t *testing.T) {
	e := setup(t)
	e.labelPlugin("0.3.0")
	e.atEnd(func() { e.labelPlugin(stack.Version) })
	said, err := suite.stack.Inspect(e.ctx, e.cluster, "doctor")
	if want := "device plugin has version 0.3.0, and scheduler has " + stack.Version; err != nil || !strings.Contains(said, want) {
		t.Errorf("doctor: %v, want %q:\n%s", err, want, said)
	}

	for _, version := range []struct {
		name, inventory, assignment string
		index                       int // of the GPU that its extender chose: the plugin alone would pack
	}{
		{"before", inventoryBefore, assignmentBefore, 1},
		{"after", inventoryAfter, assignmentAfter, 0},
	} {
		on, notOn, from := "on-"+version.name, "not-on-"+version.name, "from-"+version.name
		const far = "GPU-0f0e0d0c-1111-2222-3333-444455556666"
		e.node(version.name, strings.ReplaceAll(version.inventory, `"GPU"`, `"`+far+`"`))
		e.create(e.pod(on, 3, onNode(version.name), toleratesAll, annotated("gpu-uuid", far)))
		e.eventually("a pod is placed by the inventory of the version "+version.name, func() (bool, string) {
			pod := e.get(on)
			return pod.Spec.NodeName == version.name, waitsBecause(pod)
		})
		if diff := cmp.Diff([]string{far}, e.assigned(e.get(on))); diff != "" {
			t.Errorf("GPUs of pod %s (-want +got):\n%s", on, diff)
		}
		e.create(e.pod(notOn, 12, onNode(version.name), toleratesAll))
		e.pending(notOn, "needs 12 GiB on one GPU; free: GPU0 11, GPU1 10")
		e.delete(notOn, 0)

		near := e.gpu("node1", version.index)
		e.create(e.pod(from, 3, func(pod *v1.Pod) { pod.Spec.SchedulerName = "of-the-version-" + version.name }))
		err := e.client.CoreV1().Pods(e.namespace).Bind(e.ctx, &v1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: from, Annotations: map[string]string{assignment: strings.ReplaceAll(version.assignment, `"GPU"`, `"`+near+`"`)}},
			Target:     v1.ObjectReference{Kind: "Node", Name: "node1"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		e.running(from)
		if got := e.agree(from, "main"); !slices.Equal(got, []string{near}) {
			t.Errorf("pod %s has %v, want %s", from, got, near)
		}
	}
}

// node makes a node that has no kubelet, with what a device plugin wrote of it.
func (e *env) node(name, inventory string) {
	e.Helper()
	resources := v1.ResourceList{
		gpuMem: resource.MustParse("24"), v1.ResourcePods: resource.MustParse("9"), v1.ResourceCPU: resource.MustParse("9"), v1.ResourceMemory: resource.MustParse("9Gi"),
	}
	_, err := e.client.CoreV1().Nodes().Create(e.ctx, &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}, Annotations: map[string]string{"gpumem.dev/inventory": inventory}},
		Status:     v1.NodeStatus{Capacity: resources, Allocatable: resources},
	}, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	e.atEnd(func() {
		now := int64(0)
		pods := metav1.ListOptions{FieldSelector: "spec.nodeName=" + name}
		if err := e.client.CoreV1().Pods(e.namespace).DeleteCollection(e.ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, pods); err != nil {
			e.Error(err)
		}
		if err := e.client.CoreV1().Nodes().Delete(e.ctx, name, metav1.DeleteOptions{}); err != nil {
			e.Error(err)
		}
	})
}

func toleratesAll(pod *v1.Pod) {
	pod.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
}

// labelPlugin makes the device plugin one of a version.
func (e *env) labelPlugin(version string) {
	e.Helper()
	_, err := suite.stack.Kubectl(e.ctx, e.cluster, "label", "--overwrite", "--namespace", stack.Namespace, "daemonset/gpumem-device-plugin", "app.kubernetes.io/version="+version)
	if err != nil {
		e.Error(err)
	}
}
