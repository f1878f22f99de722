package nodepods

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Who asked would report an eviction that has not been.
func TestAPodThatIsGoneWasNotEvicted(t *testing.T) {
	for want, answer := range map[string]error{"": nil, "evict pod ml/p: it is gone": apierrors.NewNotFound(v1.Resource("pods"), "p")} {
		client := fake.NewClientset()
		client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetSubresource() == "eviction", nil, answer
		})
		err := NewEvictor(client).Evict(t.Context(), placement.PodRef{Namespace: "ml", Name: "p", UID: "one"})
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
