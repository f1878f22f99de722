package api

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultDomain is the domain of resources and annotations unless it is set.
const DefaultDomain = "gpumem.dev"

// Names are the names of everything that gpumem reads or writes in the
// Kubernetes API, under one domain.
type Names struct{ domain string }

// NewNames returns the names under a domain, for example "gpumem.dev". It takes
// those under which Kubernetes has extended resources.
func NewNames(domain string) (Names, error) {
	n := Names{domain: domain}
	problems := validation.IsDNS1123Subdomain(domain)
	switch {
	case len(problems) > 0:
	case strings.Contains(string(n.GPUMem()), v1.ResourceDefaultNamespacePrefix):
		problems = []string{"Kubernetes keeps kubernetes.io for itself"}
	case strings.HasPrefix(domain, v1.DefaultResourceRequestsPrefix):
		problems = []string{`resource quotas use the prefix "requests."`}
	default:
		problems = validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix + string(n.GPUMem()))
	}
	if len(problems) > 0 {
		return Names{}, fmt.Errorf("resource domain %q: %s", domain, problems[0])
	}
	return n, nil
}

// Domain returns the domain itself.
func (n Names) Domain() string { return n.domain }

// GPUMem is the extended resource that counts units of GPU memory.
func (n Names) GPUMem() v1.ResourceName { return v1.ResourceName(n.domain + "/gpu-mem") }

// GPUCore is the extended resource that counts per cent of a GPU's streaming
// multiprocessors.
func (n Names) GPUCore() v1.ResourceName { return v1.ResourceName(n.domain + "/gpu-core") }

func (n Names) key(name string) string { return n.domain + "/" + name }

// Annotations that users write on pods. All there are, and what they do: annotations.

// Count is how many GPUs the pod's memory is split over.
func (n Names) Count() string { return n.key(countName) }

// Policy is binpack, spread or exclusive.
func (n Names) Policy() string { return n.key(policyName) }

// Model is a list of globs that the GPU's model must match.
func (n Names) Model() string { return n.key(modelName) }

// UUID is a list of globs that the GPU's UUID must match.
func (n Names) UUID() string { return n.key(uuidName) }

// ModelPreference is fastest or cheapest.
func (n Names) ModelPreference() string { return n.key(preferenceName) }

// Group puts pods of the same value on one GPU where possible.
func (n Names) Group() string { return n.key(groupName) }

// ExclusiveGroup keeps pods of the same value on different GPUs.
func (n Names) ExclusiveGroup() string { return n.key(exclusiveName) }

// EnforcementLevel is the weakest enforcement that the pod accepts.
func (n Names) EnforcementLevel() string { return n.key(levelName) }

// Annotations that gpumem writes.

// Assignment is, on a pod, which GPUs it was given: JSON.
func (n Names) Assignment() string { return n.key(assignmentName) }

// Index is, on a pod, the indexes of its GPUs for people, for example "0,3".
func (n Names) Index() string { return n.key(indexName) }

// RoomMadeAt is, on a pod that waits, when others had left for it whom people evicted.
func (n Names) RoomMadeAt() string { return n.key(roomMadeName) }

// Inventory is, on a node, the GPUs that it offers: JSON.
func (n Names) Inventory() string { return n.key(inventoryName) }

// GPUsHealthy is the type of the condition of a node that says whether all its
// GPUs are healthy. It is the same in all domains.
const GPUsHealthy v1.NodeConditionType = "GPUMemoryHealthy"

// Annotations that people and kubectl inspect gpumem write on nodes.

// Cordoned is the GPUs that are to take no new pods: UUIDs, separated by commas.
func (n Names) Cordoned() string { return n.key(cordonedName) }
