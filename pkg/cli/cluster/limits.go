package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpumem/gpumem/pkg/core/decide"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// AccessLimits lets Load answer a user who is allowed to read only one namespace. Load records the parts of the
// cluster that this user is not allowed to read.
type AccessLimits struct {
	Namespace string // Load lists only this namespace's pods if the user may not list the pods of all namespaces

	Nodes  error // Forbidden error of the list of nodes; nil if the user may list them
	Pods   error // Forbidden error of the list of all pods, if Load has listed the pods of Namespace instead; else nil
	Quotas error // Forbidden error of the list of ResourceQuotas, set by the command namespaces; else nil

	failed bool // Load could not list any pods
}

// Decisions is the part of an answer that the ClusterRole gpumem-viewer does not permit users to read.
const Decisions = "decisions"

// RequiredRights returns the rights that a user must request to see the missing parts of an answer. Parameter
// system is gpumem's namespace.
func RequiredRights(parts []string, system string) string {
	var rights []string
	if slices.ContainsFunc(parts, func(part string) bool { return part != Decisions }) {
		rights = append(rights, "Ask for the ClusterRole gpumem-viewer; usage needs the Role of the same name too.")
	}
	if slices.Contains(parts, Decisions) {
		rights = append(rights, "Decisions need the right to create pods/portforward in namespace "+system+", which is for administrators.")
	}
	return strings.Join(rights, " ")
}

// MissingParts returns the parts of the answer that the user is not allowed to read.
func (u *AccessLimits) MissingParts() (parts []string) {
	if u == nil {
		return nil
	}
	if u.Nodes != nil {
		parts = append(parts, "nodes and their free memory")
	}
	if u.Pods != nil {
		parts = append(parts, "pods outside namespace "+u.Namespace)
	}
	if u.Quotas != nil {
		parts = append(parts, "ResourceQuotas")
	}
	return parts
}

// reason returns a short reason why some nodes or pods are unknown.
func (u *AccessLimits) reason() string {
	if u.Nodes != nil {
		return "you may not list nodes"
	}
	return "you may not list the pods of all namespaces"
}

// recordNodesError records a Forbidden error for the list of nodes, and returns nil. It returns any other error
// unchanged. If u is nil, it returns the Forbidden error with the commands that work without nodes.
func (u *AccessLimits) recordNodesError(err error) error {
	switch {
	case !apierrors.IsForbidden(err):
		return err
	case u == nil:
		return fmt.Errorf("%w; the ClusterRole gpumem-viewer lets you list nodes; explain, pods and top work for one namespace (-n) without it", err)
	}
	u.Nodes = err
	return nil
}

func (u *AccessLimits) hidesNodes() bool { return u != nil && u.Nodes != nil }

// IsLimited reports whether the user is not allowed to read some nodes or pods.
func (u *AccessLimits) IsLimited() bool { return u.hidesNodes() || u != nil && u.Pods != nil }

// HasSomePods reports whether the user is not allowed to read some nodes or pods, but Load has listed pods.
func (u *AccessLimits) HasSomePods() bool { return u.IsLimited() && !u.failed }

// namespaceLimit returns the namespace to which Load has limited the list of pods; empty if the list covers all
// namespaces.
func (u *AccessLimits) namespaceLimit() string {
	if u == nil || u.Pods == nil {
		return ""
	}
	return u.Namespace
}

// listAllowedPods lists the pods of all namespaces. If the user is not allowed to do that, it lists only the
// pods of AccessLimits.Namespace.
func (r *Reader) listAllowedPods(ctx context.Context, sel Selection, nodeIndex *NodeIndex) (loadedPods, error) {
	pods, err := r.listPods(ctx, "", nodeIndex, sel.EachPod)
	if u := sel.Limits; u != nil && u.Namespace != "" && apierrors.IsForbidden(err) {
		forbidden := err
		if pods, err = r.listPods(ctx, u.Namespace, nodeIndex, sel.EachPod); err == nil {
			u.Pods = forbidden
		}
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; name a namespace that you may read with -n", err)
		}
	}
	if sel.Limits != nil {
		sel.Limits.failed = err != nil
	}
	return pods, err
}

// inventoriesFromPods derives inventories from the annotations of pods, for a user who is not allowed to list
// nodes. Each inventory contains the GPUs of the node's listed pods. The function adds the nodes to parameter
// facts as nodes without cores, because their cores are unknown.
func inventoriesFromPods(pods []boundPod, facts map[string]inspect.NodeFacts) map[string]gpu.Inventory {
	inventories := make(map[string]gpu.Inventory)
	for _, p := range pods {
		inv := inventories[p.node]
		inv.UnitMiB = cmp.Or(inv.UnitMiB, p.holding.Assignment.UnitMiB)
		for i, id := range p.holding.Assignment.Devices() {
			if _, known := inv.Device(id); !known && i < len(p.indexes) {
				inv.Devices = append(inv.Devices, gpu.Device{UUID: id, Index: p.indexes[i], NUMANode: -1})
			}
		}
		slices.SortFunc(inv.Devices, func(a, b gpu.Device) int { return cmp.Compare(a.Index, b.Index) })
		inventories[p.node] = inv
		facts[p.node] = inspect.NodeFacts{RefusesCores: new(decide.Refusal)}
	}
	return inventories
}

// parseIndexes parses the annotation with the indexes of a pod's GPUs, in the order of the assignment's shares.
// It returns nil if the annotation is malformed or has another number of GPUs.
func parseIndexes(value string, a placement.Assignment) (indexes []int) {
	for field := range strings.SplitSeq(value, ",") {
		index, err := strconv.Atoi(field)
		if err != nil {
			return nil
		}
		indexes = append(indexes, index)
	}
	if len(indexes) != len(a.Shares) {
		return nil
	}
	return indexes
}
