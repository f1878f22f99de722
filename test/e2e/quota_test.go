package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
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

// The API server holds the sample to the schemas and rules of Kueue's own
// custom resources. What Kueue's webhooks check beside them is in test/kueue.
func TestTheSampleForKueueIsTakenByItsAPI(t *testing.T) {
	e := setup(t)
	inModule := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(e.ctx, "go", args...)
		cmd.Dir = filepath.Join("..", "kueue")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		return strings.TrimSpace(string(out))
	}
	inModule("mod", "download", "sigs.k8s.io/kueue")
	crds := filepath.Join(inModule("list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"), "config", "components", "crd", "bases")
	for _, kind := range []string{"resourceflavors", "clusterqueues", "localqueues"} {
		file := filepath.Join(crds, "kueue.x-k8s.io_"+kind+".yaml")
		e.atEnd(func() {
			if _, err := e.kubectl("delete", "--ignore-not-found", "--filename", file); err != nil {
				t.Error(err)
			}
		})
		if _, err := e.kubectl("apply", "--server-side", "--filename", file); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := e.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd/resourceflavors.kueue.x-k8s.io", "crd/clusterqueues.kueue.x-k8s.io", "crd/localqueues.kueue.x-k8s.io"); err != nil {
		t.Fatal(out, err)
	}
	sample := suite.stack.Sample("kueue.yaml")
	e.atEnd(func() {
		if _, err := suite.stack.Kubectl(e.ctx, e.cluster, "delete", "--ignore-not-found", "--filename", sample); err != nil {
			t.Error(err)
		}
	})
	applied, err := suite.stack.Kubectl(e.ctx, e.cluster, "apply", "--validate=strict", "--filename", sample)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range []string{"resourceflavor.kueue.x-k8s.io/shared-gpu", "clusterqueue.kueue.x-k8s.io/team-a", "localqueue.kueue.x-k8s.io/team-a", "job.batch/train"} {
		if !strings.Contains(applied, object+" created") {
			t.Errorf("%s was not created:\n%s", object, applied)
		}
	}
	job, err := e.client.BatchV1().Jobs("default").Get(e.ctx, "train", metav1.GetOptions{})
	if err != nil || job.Spec.Suspend == nil || !*job.Spec.Suspend || job.Status.Active != 0 {
		t.Errorf("job %+v, %v; want that it waits, suspended", fmt.Sprint(job.Status), err)
	}
}
