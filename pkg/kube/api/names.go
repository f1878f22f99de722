package api

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultDomain is the default domain of resources and annotations.
const DefaultDomain = "gpumem.dev"

// DefaultScheduler is the scheduler's name in the chart's defaults, for users who may not read the
// schedulers' configuration.
const DefaultScheduler = "gpumem-scheduler"

// Keys returns the names of resources and annotations in one domain.
type Keys struct{ domain string }

// Names parses and builds Kubernetes objects with the Keys of one domain.
type Names struct {
	Keys
	LabelPods bool // also write the assignment into labels of the pod: see package podlabels

	// UnitMiB is the unit of the installation. InventoryOf reports the GPUs of nodes with another unit as
	// unhealthy; 0: it accepts any unit.
	UnitMiB int64
}

// NewNames returns the names in a domain, for example "gpumem.dev". It returns an error if Kubernetes does
// not allow extended resources in the domain.
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

// Domain returns the domain.
func (k Keys) Domain() string { return k.domain }

// GPUMem returns the extended resource that counts units of GPU memory.
func (k Keys) GPUMem() v1.ResourceName { return v1.ResourceName(k.domain + "/gpu-mem") }

// GPUShares returns the extended resource that counts shares of GPUs. A GPU has ten.
func (k Keys) GPUShares() v1.ResourceName { return v1.ResourceName(k.domain + "/gpu-share") }

// Offered returns the extended resource of a node that offers its GPUs in shares or in units of memory.
func (k Keys) Offered(inShares bool) v1.ResourceName {
	return map[bool]v1.ResourceName{true: k.GPUShares(), false: k.GPUMem()}[inShares]
}

// GPUCore returns the extended resource that counts per cent of a GPU's streaming multiprocessors.
func (k Keys) GPUCore() v1.ResourceName { return v1.ResourceName(k.domain + "/gpu-core") }

// API returns the node label that selects the form in which the node offers its GPUs: ByClaims or
// InShares. Nodes without the label offer units of memory.
func (k Keys) API() string { return k.key("api") }

// StartupTaint is the key of a taint for new nodes. A node group can add the taint, and the device
// plugin removes it once the node offers GPU memory. The Cluster Autoscaler treats each taint with this
// prefix as a startup taint: it waits for such a node instead of adding another.
const StartupTaint = "startup-taint.cluster-autoscaler.kubernetes.io/gpumem"

// ByClaims is the value of the label API for claims.
const ByClaims = "claims"

// InShares is the value of the label API for shares.
const InShares = "shares"

func (k Keys) key(name string) string { return k.domain + "/" + name }

// Annotations that users write on pods. The table annotations lists all annotations and their effects.

// Count returns the annotation for the number of GPUs over which the pod's memory is split.
func (k Keys) Count() string { return k.key(countName) }

// Policy returns the annotation for the name of a placement policy.
func (k Keys) Policy() string { return k.key(policyName) }

// Model returns the annotation for globs that the GPU's model must match.
func (k Keys) Model() string { return k.key(modelName) }

// UUID returns the annotation for globs that the GPU's UUID must match.
func (k Keys) UUID() string { return k.key(uuidName) }

// ModelPreference returns the annotation for the preference: fastest or cheapest.
func (k Keys) ModelPreference() string { return k.key(preferenceName) }

// Group returns the annotation for the group of pods that preferably share one GPU.
func (k Keys) Group() string { return k.key(groupName) }

// ExclusiveGroup returns the annotation for the group of pods that never share one GPU.
func (k Keys) ExclusiveGroup() string { return k.key(exclusiveName) }

// EnforcementLevel returns the annotation for the weakest level that the pod accepts.
func (k Keys) EnforcementLevel() string { return k.key(levelName) }

// Annotations that gpumem writes.

// Assignment returns the annotation of a pod with its GPUs, as JSON.
func (k Keys) Assignment() string { return k.key(assignmentName) }

// Index returns the annotation of a pod with the indexes of its GPUs for people, for example "0,3".
func (k Keys) Index() string { return k.key(indexName) }

// Used returns the annotation of a pod with its use of GPU memory.
func (k Keys) Used() string { return k.key(usedName) }

// RoomMadeAt returns the annotation of a waiting pod with the time when gpumem last requeued the pod, and the
// node to which gpumem nominated it.
func (k Keys) RoomMadeAt() string { return k.key(roomMadeName) }

// RoomMade returns the value of the annotation RoomMadeAt for a pod that gpumem requeues at a time and nominates
// to a node.
func RoomMade(at, node string) string { return at + " " + node }

// IsNominated reports whether gpumem made the present nomination of a pod when it requeued the pod.
func (k Keys) IsNominated(pod *v1.Pod) bool {
	node := pod.Status.NominatedNodeName
	return node != "" && strings.HasSuffix(pod.Annotations[k.RoomMadeAt()], RoomMade("", node))
}

// Inventory returns the annotation of a node with its GPUs, as JSON.
func (k Keys) Inventory() string { return k.key(inventoryName) }

// GPUsHealthy is the type of the node condition that reports whether all GPUs are healthy. It is the same
// in all domains.
const GPUsHealthy v1.NodeConditionType = "GPUMemoryHealthy"

// Annotations that administrators, or kubectl inspect gpumem, write on nodes.

// Cordoned returns the annotation of a node with the UUIDs of its cordoned GPUs, separated by commas.
func (k Keys) Cordoned() string { return k.key(cordonedName) }

// CordonReasons returns the annotation of a node with the author and the reason of each cordon, as JSON.
func (k Keys) CordonReasons() string { return k.key(cordonsName) }
