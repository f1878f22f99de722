package policies

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// A node's plugin publishes the GPUs of its own node, and no others.
func TestTheDevicePluginPublishesItsOwnGPUs(t *testing.T) {
	p := policy(t, "custom", "shared-gpu-device-plugin-slices")
	const (
		driver = "gpu.example.com"
		others = "gpumem's device plugin of node node1 may not change slices of other nodes"
	)
	account := func(node ...string) *user.DefaultInfo {
		return &user.DefaultInfo{Name: "system:serviceaccount:gpumem-system:shared-gpu-nodes", Extra: map[string][]string{"authentication.kubernetes.io/node-name": node}}
	}
	slice := func(node, driver string) *resourceapi.ResourceSlice {
		s := &resourceapi.ResourceSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}, ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Spec: resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: "node1", ResourceSliceCount: 1}},
		}
		if node == "" {
			s.Spec.NodeName, s.Spec.AllNodes = nil, new(true)
		}
		return s
	}
	for name, tc := range map[string]struct {
		request request
		want    string
	}{
		"its own":                    {request{resource: "resourceslices", is: slice("node1", driver), by: account("node1")}, ""},
		"its own, again":             {request{resource: "resourceslices", was: slice("node1", driver), is: slice("node1", driver), by: account("node1")}, ""},
		"of another node":            {request{resource: "resourceslices", is: slice("node2", driver), by: account("node1")}, others},
		"of all nodes":               {request{resource: "resourceslices", is: slice("", driver), by: account("node1")}, others},
		"by a token without a node":  {request{resource: "resourceslices", is: slice("node1", driver), by: account()}, "its token names no node"},
		"of another driver":          {request{resource: "resourceslices", is: slice("node1", "gpu.nvidia.com"), by: account("node1")}, "slices of its own driver and no others"},
		"by somebody else's account": {request{resource: "resourceslices", is: slice("node2", "gpu.nvidia.com"), by: &user.DefaultInfo{Name: "system:node:node2"}}, ""},
	} {
		t.Run(name, func(t *testing.T) { check(t, p, tc.request, tc.want) })
	}
}
