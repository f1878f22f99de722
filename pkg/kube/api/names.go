package api

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultDomain is the domain of resources and annotations unless it is set.
const DefaultDomain = "gpumem.dev"

// Keys are the names of resources and annotations under one domain.
type Keys struct{ domain string }

// Names read and write the objects of the Kubernetes API by the Keys of one domain.
type Names struct {
	Keys
	LabelPods bool // an assignment is written into labels of the pod, too: see package podlabels

	// UnitMiB is the unit of the installation. InventoryOf reports the GPUs of nodes with another unit as
	// unhealthy; 0: it accepts any unit.
	UnitMiB int64
}

// NewNames returns the names under a domain, for example "gpumem.dev". It takes
// those under which Kubernetes has extended resources.
func NewNames(domain string) (Names, error) {
	n := Names{Keys: Keys{domain: domain}}
	problems := validation.IsDNS1123Subdomain(domain)
	switch {
	case len(problems) > 0:
	case strings.Contains(string(n.GPUShares()), v1.ResourceDefaultNamespacePrefix):
		problems = []string{"Kubernetes keeps kubernetes.io for itself"}
	case strings.HasPrefix(domain, v1.DefaultResourceRequestsPrefix):
		problems = []string{`resource quotas use the prefix "requests."`}
	default:
		problems = validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix + string(n.GPUShares()))
	}
	if len(problems) > 0 {
		return Names{}, fmt.Errorf("resource domain %q: %s", domain, problems[0])
	}
	return n, nil
}

// Domain returns the domain itself.
func (k Keys) Domain() string { return k.domain }

// GPUMem is the extended resource that counts units of GPU memory.
func (k Keys) GPUMem() v1.ResourceName { return v1.ResourceName(k.domain + "/gpu-mem") }

// GPUShares is the extended resource that counts shares of GPUs, ten to each.
func (k Keys) GPUShares() v1.ResourceName { return v1.ResourceName(k.domain + "/gpu-share") }

// Offered is the extended resource of a node whose GPUs are offered in shares, or by the amount.
func (k Keys) Offered(inShares bool) v1.ResourceName {
	return map[bool]v1.ResourceName{true: k.GPUShares(), false: k.GPUMem()}[inShares]
}

// GPUCore is the extended resource that counts per cent of a GPU's streaming
// multiprocessors.
func (k Keys) GPUCore() v1.ResourceName { return v1.ResourceName(k.domain + "/gpu-core") }

// API is the label of nodes that says how their GPUs are handed out; without it, by the amount.
func (k Keys) API() string { return k.key("api") }

// StartupTaint is the key of the taint that a node group can add to new nodes, and that the device
// plugin removes once its node offers GPU memory. The Cluster Autoscaler treats each taint with this
// prefix as a startup taint: it waits for such a node instead of adding another.
const StartupTaint = "startup-taint.cluster-autoscaler.kubernetes.io/gpumem"

// ByClaims is a value of the label API.
const ByClaims = "claims"

// InShares is a value of the label API.
const InShares = "shares"

func (k Keys) key(name string) string { return k.domain + "/" + name }

// Annotations that users write on pods. All there are, and what they do: annotations.

// Count is how many GPUs the pod's memory is split over.
func (k Keys) Count() string { return k.key(countName) }

// Policy is the name of a placement policy.
func (k Keys) Policy() string { return k.key(policyName) }

// Model is a list of globs that the GPU's model must match.
func (k Keys) Model() string { return k.key(modelName) }

// UUID is a list of globs that the GPU's UUID must match.
func (k Keys) UUID() string { return k.key(uuidName) }

// ModelPreference is fastest or cheapest.
func (k Keys) ModelPreference() string { return k.key(preferenceName) }

// Group puts pods of the same value on one GPU where possible.
func (k Keys) Group() string { return k.key(groupName) }

// ExclusiveGroup keeps pods of the same value on different GPUs.
func (k Keys) ExclusiveGroup() string { return k.key(exclusiveName) }

// EnforcementLevel is the weakest enforcement that the pod accepts.
func (k Keys) EnforcementLevel() string { return k.key(levelName) }

// Annotations that gpumem writes.

// Assignment is, on a pod, which GPUs it was given: JSON.
func (k Keys) Assignment() string { return k.key(assignmentName) }

// Index is, on a pod, the indexes of its GPUs for people, for example "0,3".
func (k Keys) Index() string { return k.key(indexName) }

// Used is the annotation of a pod with the GPU memory that it uses.
func (k Keys) Used() string { return k.key(usedName) }

// RoomMadeAt is, on a waiting pod, the time at which the extender last woke it.
func (k Keys) RoomMadeAt() string { return k.key(roomMadeName) }

// Inventory is, on a node, the GPUs that it offers: JSON.
func (k Keys) Inventory() string { return k.key(inventoryName) }

// GPUsHealthy is the type of the condition of a node that says whether all its
// GPUs are healthy. It is the same in all domains.
const GPUsHealthy v1.NodeConditionType = "GPUMemoryHealthy"

// Annotations that people and kubectl inspect gpumem write on nodes.

// Cordoned is the GPUs that are to take no new pods: UUIDs, separated by commas.
func (k Keys) Cordoned() string { return k.key(cordonedName) }

// CordonReasons is who has cordoned these, and why: JSON.
func (k Keys) CordonReasons() string { return k.key(cordonsName) }
