package e2e

import (
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/stack"
)

// TestWhatGoesOnUnderHoldAnnotations: the policies accept writes to other parts of a pod, and gpumem's own
// writes. TestAttacks has the writes that they refuse.
func TestWhatGoesOnUnderHoldAnnotations(t *testing.T) {
	e := setup(t)
	e.eventually("the API server finds no fault with the policies' expressions", func() (bool, string) {
		policies, err := e.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(e.ctx, metav1.ListOptions{})
		if err != nil || len(policies.Items) == 0 {
			return false, fmt.Sprint(err, len(policies.Items))
		}
		for _, p := range policies.Items {
			if p.Status.TypeChecking == nil {
				return false, p.Name + " is not checked yet"
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				e.Errorf("%s: %s: %s", p.Name, w.FieldRef, w.Warning)
			}
		}
		return true, ""
	})
	kubectl := func(args ...string) {
		t.Helper()
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, append([]string{"--namespace", e.namespace}, args...)...); err != nil {
			t.Error(err)
		}
	}

	e.create(e.pod("runs", 2, onNode("node1"), func(pod *v1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1m")}
	}))
	e.running("runs")
	before := e.agree("runs", "main")
	for _, change := range [][]string{
		{"annotate", "pod", "runs", "example.com/owner=me", "gpumem.dev.example.com/gpu-count=8"},
		{"annotate", "pod", "runs", "example.com/owner-"},
		{"label", "pod", "runs", "app=a"},
		{"patch", "pod", "runs", "--type=merge", "--patch", `{"metadata":{"finalizers":["example.com/mine"]}}`},
		{"patch", "pod", "runs", "--type=merge", "--patch", `{"metadata":{"finalizers":null}}`},
		{"patch", "pod", "runs", "--subresource=status", "--type=merge", "--patch", `{"status":{"message":"looked at"}}`},
		{"patch", "pod", "runs", "--subresource=resize", "--type=strategic", "--patch", `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"2m"}}}]}}`},
		{"debug", "runs", "--image=" + e.get("runs").Spec.Containers[0].Image, "--image-pull-policy=Never", "--container=debugger"},
	} {
		kubectl(change...)
	}

	// A pod that waits is given other wishes, and is woken by the extender's account.
	e.create(e.pod("waits", 1, onNode("node1"), annotated("gpu-uuid", "GPU-none")))
	e.pending("waits", "wants a GPU that matches GPU-none")
	extender := e.as("system:serviceaccount:" + stack.Namespace + ":gpumem-scheduler").CoreV1().Pods(e.namespace)
	if _, err := extender.Patch(e.ctx, "waits", types.MergePatchType, annotation("gpumem.dev/room-made", "now"), metav1.PatchOptions{}, "status"); err != nil {
		t.Error(err)
	}
	kubectl("annotate", "--overwrite", "pod", "waits", "gpumem.dev/gpu-uuid="+before[0])
	e.running("waits")
	e.agree("waits", "main")

	// By hand, an assignment is taken away; the plugin writes it again.
	kubectl("patch", "pod", "runs", "--subresource=status", "--type=merge", "--patch", `{"metadata":{"annotations":{"gpumem.dev/assignment":null}}}`)
	if after := e.agreeOnce("runs"); strings.Join(before, ",") != strings.Join(after, ",") {
		t.Errorf("GPUs %v, before %v", after, before)
	}

	// A Job takes its finalizer away from its pods, and goes with them.
	jobs := e.client.BatchV1().Jobs(e.namespace)
	template := e.pod("", 1, onNode("node1"), func(pod *v1.Pod) {
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
		pod.Spec.Containers[0].Args = []string{"-exit-after=10ms"}
	})
	_, err := jobs.Create(e.ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec:       batchv1.JobSpec{Completions: new(int32(2)), Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: template.Annotations}, Spec: template.Spec}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var pods *v1.PodList
	e.eventually("the job is complete, and its pods are let go", func() (bool, string) {
		job, err := jobs.Get(e.ctx, "job", metav1.GetOptions{})
		if err == nil {
			pods, err = e.client.CoreV1().Pods(e.namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "job-name=job"})
		}
		if err != nil {
			return false, err.Error()
		}
		for _, pod := range pods.Items {
			if len(pod.Finalizers) > 0 || pod.Annotations[assignment] == "" {
				return false, fmt.Sprint(pod.Name, pod.Finalizers, pod.Annotations)
			}
		}
		return job.Status.Succeeded == 2 && job.Status.CompletionTime != nil, fmt.Sprint(job.Status)
	})
	for _, propagation := range []metav1.DeletionPropagation{metav1.DeletePropagationOrphan, metav1.DeletePropagationBackground} {
		e.replicaSetThatGoes(strings.ToLower(string(propagation)), propagation)
	}
	if err := jobs.Delete(e.ctx, "job", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the garbage collector has taken the job and its pods away", func() (bool, string) {
		_, err := jobs.Get(e.ctx, "job", metav1.GetOptions{})
		list, listErr := e.client.CoreV1().Pods(e.namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "job-name=job"})
		return apierrors.IsNotFound(err) && listErr == nil && len(list.Items) == 0, fmt.Sprint(err, listErr)
	})
}

// replicaSetThatGoes has a ReplicaSet deleted over a running pod, which is orphaned by the
// garbage collector or taken away.
func (e *env) replicaSetThatGoes(name string, propagation metav1.DeletionPropagation) {
	e.Helper()
	e.replicaSet(name, e.pod(name, 1, onNode("node1")))
	pod := e.runningOf(name)
	if err := e.client.AppsV1().ReplicaSets(e.namespace).Delete(e.ctx, name, metav1.DeleteOptions{PropagationPolicy: &propagation}); err != nil {
		e.Fatal(err)
	}
	e.eventually("the pod of "+name+" is left", func() (bool, string) {
		got, err := e.client.CoreV1().Pods(e.namespace).Get(e.ctx, pod, metav1.GetOptions{})
		if propagation == metav1.DeletePropagationBackground {
			return apierrors.IsNotFound(err), fmt.Sprint(err)
		}
		return err == nil && len(got.OwnerReferences) == 0, fmt.Sprint(err)
	})
	if propagation == metav1.DeletePropagationOrphan {
		if _, err := e.client.CoreV1().Pods(e.namespace).Patch(e.ctx, pod, types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"free"}}}`), metav1.PatchOptions{}); err != nil {
			e.Error(err)
		}
		e.delete(pod, 0)
	}
}
