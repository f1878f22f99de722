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

// Unseen lets Load answer a user who may read only one namespace. Load records in it the parts that this
// user may not see.
type Unseen struct {
	Namespace string // Load lists its pods if the pods of all namespaces are forbidden

	Nodes  error // why nodes could not be listed; nil if they were
	Pods   error // why pods of other namespaces could not be listed; nil if they were
	Quotas error // why ResourceQuotas could not be listed; nil if they were, or were not needed

	failed bool // no pods could be listed, in any namespace
}

// Decisions is the part of an answer that the ClusterRole gpumem-viewer does not show.
const Decisions = "decisions"

// AskFor names the rights that show the missing parts of an answer. System is gpumem's namespace.
func AskFor(parts []string, system string) string {
	var rights []string
	if slices.ContainsFunc(parts, func(part string) bool { return part != Decisions }) {
		rights = append(rights, "Ask for the ClusterRole gpumem-viewer; usage needs the Role of the same name too.")
	}
	if slices.Contains(parts, Decisions) {
		rights = append(rights, "Decisions need the right to create pods/portforward in namespace "+system+", which is for administrators.")
	}
	return strings.Join(rights, " ")
}

// Parts names the parts of the answer that the user may not see.
func (u *Unseen) Parts() (parts []string) {
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

// why returns a short reason why some nodes or pods are unknown.
func (u *Unseen) why() string {
	if u.Nodes != nil {
		return "you may not list nodes"
	}
	return "you may not list the pods of all namespaces"
}

// nodes records that the user may not list nodes. It returns any other error. Without an Unseen, it adds
// to the error how to answer without nodes.
func (u *Unseen) nodes(err error) error {
	switch {
	case !apierrors.IsForbidden(err):
		return err
	case u == nil:
		return fmt.Errorf("%w; the ClusterRole gpumem-viewer lets you list nodes; explain, pods and top work for one namespace (-n) without it", err)
	}
	u.Nodes = err
	return nil
}

func (u *Unseen) anyNodes() bool { return u != nil && u.Nodes != nil }

// Any reports whether the user may not see some nodes or pods.
func (u *Unseen) Any() bool { return u.anyNodes() || u != nil && u.Pods != nil }

// Some reports whether the user may not see some nodes or pods, but the others could be read.
func (u *Unseen) Some() bool { return u.Any() && !u.failed }

// only returns the namespace that the user's lists of pods are limited to; empty if all namespaces are
// allowed.
func (u *Unseen) only() string {
	if u == nil || u.Pods == nil {
		return ""
	}
	return u.Namespace
}

// listAllowedPods lists the pods of all namespaces or, if that is forbidden, the pods of one.
func (r *Reader) listAllowedPods(ctx context.Context, sel Selection, where *Places) (found, error) {
	pods, err := r.listPods(ctx, "", where, sel.EachPod)
	if u := sel.Unseen; u != nil && u.Namespace != "" && apierrors.IsForbidden(err) {
		ofAll := err
		if pods, err = r.listPods(ctx, u.Namespace, where, sel.EachPod); err == nil {
			u.Pods = ofAll
		}
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; name a namespace that you may read with -n", err)
		}
	}
	if sel.Unseen != nil {
		sel.Unseen.failed = err != nil
	}
	return pods, err
}

// said derives inventories from the annotations of pods, for a user who may not list nodes. Each
// inventory has the GPUs of the node's pods. Facts for these nodes exclude cores, which are unknown.
func said(pods []boundPod, facts map[string]inspect.NodeFacts) map[string]gpu.Inventory {
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

// indexesOf parses the annotation with the indexes of a pod's GPUs, in the order of its shares.
func indexesOf(value string, a placement.Assignment) (indexes []int) {
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
