package nodeapi

import (
	"errors"
	"testing"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/node/usage"
)

// Evict returns an error for a pod that is gone. Otherwise the caller would report an eviction that did not
// happen.
func TestAPodThatIsGoneWasNotEvicted(t *testing.T) {
	for want, answer := range map[string]error{"": nil, "evict pod ml/p: it is gone": apierrors.NewNotFound(v1.Resource("pods"), "p")} {
		client := fake.NewClientset()
		client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetSubresource() == "eviction", nil, answer
		})
		err := NewPods(client, api.Names{}, "n1", zap.NewNop()).Evict(t.Context(), placement.PodRef{Namespace: "ml", Name: "p", UID: "one"})
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestAStaticPodIsNotEvicted: the eviction would only remove its mirror pod.
func TestAStaticPodIsNotEvicted(t *testing.T) {
	mirror := pod("a", "u1", 3)
	mirror.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "0123456789abcdef0123456789abcdef"}
	client := fake.NewClientset(mirror, pod("b", "u2", 3))
	e := watching(t, client)
	for uid, static := range map[string]bool{"u1": true, "u2": false, "gone": false} {
		if err := e.Evict(t.Context(), placement.PodRef{Namespace: "ns", Name: "a", UID: uid}); errors.Is(err, usage.ErrStatic) != static {
			t.Errorf("%s: %v", uid, err)
		}
	}
}
