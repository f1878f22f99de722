package nodeapi

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// ClaimUser is a pod with the names of the ResourceClaims that its containers use, by container.
type ClaimUser struct {
	Pod        placement.PodRef
	Containers map[string][]string
}

// ClaimUsers returns the pods that reference ResourceClaims.
func (p *Pods) ClaimUsers() (users []ClaimUser) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.pods {
		users = append(users, ClaimUser{Pod: e.pod.Pod, Containers: e.claims})
	}
	return users
}

// claimsOf returns the names of the claims of each container. It omits claims that have not been created yet.
func claimsOf(pod *v1.Pod) map[string][]string {
	names := make(map[string]string) // names of ResourceClaims by their names in the pod's spec
	for i := range pod.Spec.ResourceClaims {
		of := &pod.Spec.ResourceClaims[i]
		if name, _, err := resourceclaim.Name(pod, of); err == nil && name != nil {
			names[of.Name] = *name
		}
	}
	out := make(map[string][]string)
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, used := range c.Resources.Claims {
			if name, made := names[used.Name]; made {
				out[c.Name] = append(out[c.Name], name)
			}
		}
	}
	return out
}

// trimClaims copies the fields that claimsOf reads to a trimmed pod.
func trimClaims(out, pod *v1.Pod) {
	out.Spec.ResourceClaims, out.Status.ResourceClaimStatuses = pod.Spec.ResourceClaims, pod.Status.ResourceClaimStatuses
	out.Spec.InitContainers, out.Spec.Containers = nil, nil
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		out.Spec.Containers = append(out.Spec.Containers, v1.Container{Name: c.Name, Resources: v1.ResourceRequirements{Claims: c.Resources.Claims}})
	}
}

// ReadClaims reads the ResourceClaims of a node's pods from the API server. It omits claims that do not exist.
func ReadClaims(ctx context.Context, client kubernetes.Interface, node string) (claims []*resourceapi.ResourceClaim, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pods, err := listPods(ctx, client, node)
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		for j := range pod.Spec.ResourceClaims {
			name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[j])
			if err != nil || name == nil {
				continue
			}
			claim, err := client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
			case err != nil:
				return nil, fmt.Errorf("read ResourceClaim %s/%s: %w", pod.Namespace, *name, err)
			default:
				claims = append(claims, claim)
			}
		}
	}
	return claims, nil
}
