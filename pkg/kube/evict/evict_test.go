package evict

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

func TestPod(t *testing.T) {
	ref := placement.PodRef{Namespace: "ml", Name: "p", UID: "one"}
	conflict := apierrors.NewConflict(v1.Resource("pods"), "p", errors.New("the UID does not match"))
	lost := errors.New("connection lost")
	for name, tc := range map[string]struct {
		answer  error
		there   types.UID // UID of the pod that has the name after the eviction; empty: no pod
		unread  bool
		gone    bool
		refused bool
		err     error
	}{
		"granted":                               {there: "one"},
		"gone":                                  {answer: apierrors.NewNotFound(v1.Resource("pods"), "p"), gone: true},
		"replaced":                              {answer: conflict, there: "two", gone: true},
		"gone since the answer":                 {answer: conflict, gone: true},
		"a conflict about something":            {answer: conflict, there: "one", err: conflict},
		"a conflict, and unread":                {answer: conflict, there: "two", unread: true, err: conflict},
		"kept by a budget":                      {answer: apierrors.NewTooManyRequests("its budget needs it", 0), there: "one", refused: true, err: apierrors.NewTooManyRequests("its budget needs it", 0)},
		"replaced by one that its budget keeps": {answer: apierrors.NewTooManyRequests("its budget needs it", 0), there: "two", gone: true},
		"lost":                                  {answer: lost, there: "one", err: lost},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			if tc.there != "" {
				client = fake.NewClientset(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "p", UID: tc.there}})
			}
			var asked *policyv1.Eviction
			client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				asked, _ = a.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
				return true, nil, tc.answer
			})
			client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return tc.unread, nil, apierrors.NewForbidden(v1.Resource("pods"), "p", nil)
			})
			gone, err := Pod(t.Context(), client, ref, new(int64(7)))
			if gone != tc.gone || IsRefusal(err) != tc.refused || (err == nil) != (tc.err == nil) || err != nil && err.Error() != tc.err.Error() {
				t.Errorf("gone %t, refused %t, error %v; want %t, %t, %v", gone, IsRefusal(err), err, tc.gone, tc.refused, tc.err)
			}
			uid := types.UID("one")
			want := &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: "ml", Name: "p"},
				DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: new(int64(7)), Preconditions: &metav1.Preconditions{UID: &uid}},
			}
			if diff := cmp.Diff(want, asked); diff != "" {
				t.Errorf("asked for (-want +got):\n%s", diff)
			}
		})
	}
}
