package doctor

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	kubeversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/gates"
)

// What claims need of Kubernetes: consumable capacity is on from the first on, and from the second on
// the allocator takes back all that it has tried in vain.
var (
	claimsNeed = kubeversion.MustParseGeneric("1.36.0")
	claimsWant = kubeversion.MustParseGeneric("1.36.3")
)

// checkClaims looks at what claims need of the control plane, where a node hands out its GPUs by them.
func checkClaims(s *State) (found []Finding) {
	if !slices.ContainsFunc(s.Nodes, func(n v1.Node) bool { return n.Labels[s.Names.API()] == api.ByClaims }) {
		return nil
	}
	const says, update = "nodes hand out GPUs by claims, and Kubernetes is %s: %s", "update Kubernetes to %s or newer"
	switch server, err := kubeversion.ParseGeneric(s.ServerVersion); {
	case err != nil:
	case server.LessThan(claimsNeed):
		found = append(found, Finding{Error, "cluster", fmt.Sprintf(says, s.ServerVersion, "no claim gets a part of a GPU"),
			fmt.Sprintf(update+", or take the label %s from the nodes", claimsWant, s.Names.API())})
	case server.LessThan(claimsWant):
		found = append(found, Finding{Warning, "cluster", fmt.Sprintf(says, s.ServerVersion, "pods may wait for GPUs that are free"), fmt.Sprintf(update, claimsWant)})
	}
	look := func(kind string, object string, spec v1.PodSpec) {
		for _, gate := range gates.Off(spec, "DRAConsumableCapacity", "DRADeviceTaints") {
			found = append(found, Finding{Error, kind + " " + object, "has the feature gate " + gate + " off, which claims need", "turn it on there: --feature-gates=" + gate + "=true"})
		}
	}
	for _, pod := range s.ControlPlane {
		look("pod", pod.Namespace+"/"+pod.Name, pod.Spec)
	}
	for _, d := range s.Deployments {
		look("deployment", d.Namespace+"/"+d.Name, d.Spec.Template.Spec)
	}
	return found
}
