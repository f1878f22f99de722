package e2e

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestQuotaAndLimitRangeCountGPUMemory(t *testing.T) {
	e := setup(t)
	e.apply("quota.yaml")
	used := func(want string) {
		t.Helper()
		e.eventually("the quota has "+want+" in use", func() (bool, string) {
			quota, err := e.client.CoreV1().ResourceQuotas(e.namespace).Get(e.ctx, "gpu-memory", metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			now := quota.Status.Used["requests."+gpuMem]
			return now.String() == want, now.String()
		})
	}
	refused := func(pod *v1.Pod, words string) {
		t.Helper()
		_, err := e.client.CoreV1().Pods(e.namespace).Create(e.ctx, pod, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("create pod %s: %v, want that it is forbidden: %s", pod.Name, err, words)
		}
	}
	used("0")
	e.create(e.pod("five", 5))
	e.running("five")
	used("5")
	refused(e.pod("seven", 7), "maximum gpumem.dev/gpu-mem usage per Container is 6, but limit is 7")
	refused(e.pod("six", 6), "exceeded quota: gpu-memory, requested: requests.gpumem.dev/gpu-mem=6, used: requests.gpumem.dev/gpu-mem=5, limited: requests.gpumem.dev/gpu-mem=10")
	e.create(e.pod("another-five", 5))
	e.running("another-five")
	used("10")

	// A container that does not name the resource is given 0 of it, and runs. What
	// is refused of pods with GPU memory is not refused of this one.
	pod := e.pod("plain", 0)
	pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, v1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"})
	pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: new(true)}
	e.create(pod)
	plain := e.running("plain")
	if got := plain.Spec.Containers[0].Resources.Limits[gpuMem]; !got.IsZero() || plain.Annotations[e.domain+"/assignment"] != "" {
		t.Errorf("it was given %s and the GPUs %q, want none", got.String(), plain.Annotations[e.domain+"/assignment"])
	}

	e.delete("five", 0)
	used("5")
	e.create(e.pod("third-five", 5))
	e.running("third-five")
}
