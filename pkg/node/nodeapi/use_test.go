package nodeapi

import (
	"testing"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

func TestRecordUse(t *testing.T) {
	names, err := api.NewNames(api.DefaultDomain)
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "a", UID: "u1"}})
	pods := NewPods(client, names, "n1", zap.NewNop())
	ref := placement.PodRef{Namespace: "ml", Name: "a", UID: "u1"}
	if err := pods.RecordUse(t.Context(), ref, 128, 512); err != nil {
		t.Fatal(err)
	}
	pod, err := client.CoreV1().Pods("ml").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if use, ok := names.ParseUsage(pod); !ok || use.UsedMiB != 128 || use.PeakMiB != 512 || use.Time.IsZero() {
		t.Errorf("recorded %+v, %t", use, ok)
	}
	ref.Name = "gone"
	if err := pods.RecordUse(t.Context(), ref, 1, 1); !apierrors.IsNotFound(err) {
		t.Errorf("of a pod that is gone: %v", err)
	}
	pod.Annotations[names.Used()] = `{"usedMiB":-1}`
	if _, ok := names.ParseUsage(pod); ok {
		t.Error("a negative use is read")
	}
}
