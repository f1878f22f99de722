package doctor

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	kubeversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/resourceslices"
)

// Versions of Kubernetes for claims. Version claimsNeed turns the feature gate DRAConsumableCapacity on by default.
// Version claimsWant fixes kube-scheduler's allocator, which did not release the devices of a failed scheduling
// attempt.
var (
	claimsNeed = kubeversion.MustParseGeneric("1.36.0")
	claimsWant = kubeversion.MustParseGeneric("1.36.3")
)

func checkClaims(s *State, _ installation) findings {
	result := s.eachInventory(s.checkPublished)
	if !slices.ContainsFunc(s.Nodes, func(n v1.Node) bool { return n.Labels[s.Names.API()] == api.ByClaims }) {
		return result
	}
	const outdated, update = "nodes offer GPUs by claims, and Kubernetes is %s: %s", "update Kubernetes to %s or newer"
	switch server, err := kubeversion.ParseGeneric(s.ServerVersion); {
	case err != nil:
	case server.LessThan(claimsNeed):
		result.add(Error, "cluster", fmt.Sprintf(update+", or remove the label %s from the nodes", claimsWant, s.Names.API()), outdated, s.ServerVersion, "no claim gets a part of a GPU")
	case server.LessThan(claimsWant):
		result.add(Warning, "cluster", fmt.Sprintf(update, claimsWant), outdated, s.ServerVersion, "pods may wait for GPUs that are free")
	}
	look := func(object string, spec v1.PodSpec) {
		for _, gate := range disabledGates(spec, "DRAConsumableCapacity", "DRADeviceTaints") {
			result.add(Error, object, "turn it on there: --feature-gates="+gate+"=true", "has the feature gate %s off, but claims need it", gate)
		}
	}
	for _, pod := range s.ControlPlane {
		look("pod "+namespacedName(pod.ObjectMeta), pod.Spec)
	}
	for _, d := range s.Deployments {
		look("deployment "+namespacedName(d.ObjectMeta), d.Spec.Template.Spec)
	}
	return result
}

// slicesOf returns the ResourceSlices of a node.
func (s *State) slicesOf(node string) (slices []*resourceapi.ResourceSlice) {
	for i := range s.Slices {
		if of := s.Slices[i].Spec.NodeName; of != nil && *of == node {
			slices = append(slices, &s.Slices[i])
		}
	}
	return slices
}

// checkPublished compares the GPUs that a node offers by claims with the GPUs that its plugin publishes.
func (s *State) checkPublished(node *v1.Node, inv gpu.Inventory) (result findings) {
	object := "node " + node.Name
	var ours []resourceapi.Device
	for _, slice := range s.slicesOf(node.Name) {
		if slice.Spec.Driver == s.Names.Domain() {
			ours = append(ours, slice.Spec.Devices...)
		}
	}
	byClaims := func(d gpu.Device) bool { return d.Status.ByClaims && d.Allocatable > 0 }
	switch {
	case len(ours) == 0 && s.read("resourceslices") && slices.ContainsFunc(inv.Devices, byClaims):
		result.add(Error, object, "", "offers GPUs by claims and publishes none of them: no claim gets any")
	case len(ours) > 0 && api.Offers(node, s.Names.GPUMem()):
		result.add(Warning, object, "this ends within a minute after a change of its label "+s.Names.API()+". If it does not, delete the device plugin's pod on the node",
			"offers its GPUs by claims and as %s", s.Names.GPUMem())
	}
	if slices.ContainsFunc(ours, func(d resourceapi.Device) bool { return d.AllowMultipleAllocations == nil }) {
		result.add(Error, object, "turn it on at kube-apiserver and kube-scheduler (--feature-gates=DRAConsumableCapacity=true), and delete the device plugin's pod on the node, which publishes them again",
			"the API server stores its GPUs for one claim each: the feature gate DRAConsumableCapacity is off there")
	}
	return result
}

func checkOtherDrivers(s *State, _ installation) findings {
	return s.eachInventory(func(node *v1.Node, inv gpu.Inventory) (result findings) {
		others := make(resourceslices.GPUs)
		for _, slice := range s.slicesOf(node.Name) {
			if slice.Spec.Driver != s.Names.Domain() {
				others.Add(slice)
			}
		}
		for _, d := range inv.Devices {
			if by := others[d.UUID]; by != "" && d.Status.Open() {
				result.add(Warning, "node "+node.Name, "", "driver %s publishes GPU %d (%s) as well: both allocate it", by, d.Index, d.UUID)
			}
		}
		nvidia, resource := node.Status.Allocatable["nvidia.com/gpu"], s.Names.Offered(inv.InShares())
		if nvidia.Value() > 0 && slices.ContainsFunc(inv.Devices, gpu.Device.Advertised) {
			result.add(Warning, "node "+node.Name, "", "offers %d nvidia.com/gpu as well as %s: unless they are other GPUs, both allocate the same ones", nvidia.Value(), resource)
		}
		return result
	})
}
