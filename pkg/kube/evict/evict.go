package evict

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Pod evicts a pod and reports whether it was gone already. Parameter seconds is the grace period; nil
// means the pod's own.
func Pod(ctx context.Context, client kubernetes.Interface, pod placement.PodRef, seconds *int64) (deleted bool, err error) {
	uid := types.UID(pod.UID)
	err = client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: seconds, Preconditions: &metav1.Preconditions{UID: &uid}},
	})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if apierrors.IsConflict(err) || IsRefusal(err) { // the budget may protect a new pod of the same name
		if left, unread := IsDeleted(ctx, client, pod); unread == nil && left {
			return true, nil
		}
	}
	return false, err
}

// IsDeleted reports whether a pod is gone, even if a new pod has its name.
func IsDeleted(ctx context.Context, client kubernetes.Interface, pod placement.PodRef) (bool, error) {
	now, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && string(now.UID) != pod.UID, err
}

// IsRefusal reports whether an error of Pod is a temporary refusal because of a PodDisruptionBudget.
func IsRefusal(err error) bool { return apierrors.IsTooManyRequests(err) }
