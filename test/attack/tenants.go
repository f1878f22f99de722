package attack

import (
	"context"
	"errors"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpumem/gpumem/test/stack"
)

// tenants are attacks by rights that a tenant does not have.
func tenants() []attempt {
	forbidden := func(do func(context.Context, *field) error) func(context.Context, *field) (string, error) {
		return func(ctx context.Context, f *field) (string, error) {
			switch err := do(ctx, f); {
			case apierrors.IsForbidden(err):
				return err.Error(), nil
			case err == nil:
				return "", errors.New("it was taken")
			default:
				return "", fmt.Errorf("want it forbidden: %w", err)
			}
		}
	}
	merge := types.MergePatchType
	return []attempt{
		{"bind a pod to a node", forbidden(func(ctx context.Context, f *field) error {
			return f.dev.CoreV1().Pods(f.mine).Bind(ctx, &v1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: "waits", Annotations: map[string]string{domain + "assignment": lie(1, f.alone)}},
				Target:     v1.ObjectReference{Kind: "Node", Name: node},
			}, metav1.CreateOptions{})
		})},
		{"write a pod's status without the right to it", forbidden(func(ctx context.Context, f *field) error {
			return patch(ctx, f.dev, f.mine+"/mine", domain+"assignment", "{}", "status")
		})},
		{"write an inventory", forbidden(func(ctx context.Context, f *field) error {
			_, err := f.dev.CoreV1().Nodes().Patch(ctx, node, merge, []byte(`{"metadata":{"annotations":{"gpumem.dev/inventory":"{}"}}}`), metav1.PatchOptions{})
			return err
		})},
		{"cordon a GPU", forbidden(func(ctx context.Context, f *field) error {
			_, err := f.dev.CoreV1().Nodes().Patch(ctx, node, merge, []byte(`{"metadata":{"annotations":{"gpumem.dev/cordoned-gpus":"GPU-1"}}}`), metav1.PatchOptions{})
			return err
		})},
		{"change the victim's pod", forbidden(func(ctx context.Context, f *field) error {
			return patch(ctx, f.dev, f.hers+"/alone", domain+"gpu-count", "2")
		})},
		{"evict the victim's pod", forbidden(func(ctx context.Context, f *field) error {
			return f.dev.CoreV1().Pods(f.hers).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "alone"}})
		})},
		{"read gpumem's Secrets", forbidden(func(ctx context.Context, f *field) error {
			_, err := f.dev.CoreV1().Secrets(stack.Namespace).List(ctx, metav1.ListOptions{})
			return err
		})},
		{"take the scheduler's Lease", forbidden(func(ctx context.Context, f *field) error {
			_, err := f.dev.CoordinationV1().Leases(stack.Namespace).Patch(ctx, "gpumem-scheduler", merge, []byte(`{"spec":{"holderIdentity":"me"}}`), metav1.PatchOptions{})
			return err
		})},
		{"forward a port to the extender", forbidden(func(ctx context.Context, f *field) error {
			return f.dev.CoreV1().RESTClient().Post().Namespace(stack.Namespace).Resource("pods").Name("any").SubResource("portforward").Do(ctx).Error()
		})},
		{"get a token of the device plugin's account", forbidden(func(ctx context.Context, f *field) error {
			_, err := f.dev.CoreV1().ServiceAccounts(stack.Namespace).CreateToken(ctx, "gpumem-device-plugin", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		})},
		{"take a policy away", forbidden(func(ctx context.Context, f *field) error {
			return f.dev.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(ctx, "gpumem-hold-annotations", metav1.DeleteOptions{})
		})},
	}
}
