package controller

import (
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/trim"
)

// Trim returns a transform function for informers. It removes the fields that gpumem does not read.
func Trim(names api.Names) toolscache.TransformFunc {
	t := trim.New(names)
	return func(obj any) (any, error) {
		switch o := obj.(type) {
		case *v1.Pod:
			return t.Pod(o), nil
		case *v1.Node:
			return t.Node(o), nil
		case *policyv1.PodDisruptionBudget:
			return t.Budget(o), nil
		default:
			return obj, nil
		}
	}
}

// TrimNode is a transform function for kube-scheduler's node informer. It removes the fields that neither
// kube-scheduler's plugins nor gpumem read.
func TrimNode(obj any) (any, error) {
	if node, ok := obj.(*v1.Node); ok {
		node.ManagedFields = nil
		s := &node.Status
		s.Capacity, s.Addresses, s.NodeInfo, s.VolumesInUse, s.VolumesAttached = nil, nil, v1.NodeSystemInfo{}, nil, nil
	}
	return obj, nil
}
