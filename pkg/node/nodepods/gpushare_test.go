package nodepods

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

func TestWhatGPUShareWroteIsReadAndKept(t *testing.T) {
	names, err := api.NewNames("aliyun.com")
	if err != nil {
		t.Fatal(err)
	}
	old := pod("a", "u1", 3)
	old.Spec.Containers[0].Resources.Limits = v1.ResourceList{"aliyun.com/gpu-mem": old.Spec.Containers[0].Resources.Limits["gpumem.dev/gpu-mem"]}
	old.Annotations = map[string]string{
		"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7",
	}
	ref := placement.PodRef{Namespace: "ns", Name: "a", UID: "u1"}
	here := placement.Assignment{Shares: []placement.Share{{Device: gpu1.UUID, Units: 3}}}
	for _, admitted := range []bool{false, true} {
		o := old.DeepCopy()
		if admitted {
			o.Status.StartTime = &metav1.Time{Time: time.Unix(1, 0)}
		}
		client := fake.NewClientset(o)
		p := NewPods(client, names, "n1", zap.NewNop())
		trimmed, err := p.trim(o)
		if err != nil {
			t.Fatal(err)
		}
		p.put(trimmed)
		pods, _, _ := p.Pods()
		if diff := cmp.Diff([]int{1}, pods[0].Indexes); diff != "" || !pods[0].Unmarked || !pods[0].Assignment.None() {
			t.Errorf("read: %+v", pods[0])
		}
		if err := p.Correct(t.Context(), ref, here, inventory(gpu0, gpu1)); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"aliyun.com/assignment":  `{"v":1,"unitMiB":1024,"enforcement":"advisory","gpus":[{"uuid":"GPU-bbbbbbbb","index":1,"units":3}]}`,
			"aliyun.com/gpu-index":   "1",
			"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "3", "ALIYUN_COM_GPU_MEM_DEV": "15",
			"ALIYUN_COM_GPU_MEM_ASSIGNED":    map[bool]string{false: "false", true: "true"}[admitted],
			"ALIYUN_COM_GPU_MEM_ASSUME_TIME": "7",
		}
		if diff := cmp.Diff(want, got.Annotations); diff != "" {
			t.Errorf("admitted %t: written (-want +got):\n%s", admitted, diff)
		}
		if pods, _, _ := p.Pods(); pods[0].Unmarked == admitted {
			t.Errorf("admitted %t: read again: %+v", admitted, pods[0])
		}
	}
}
