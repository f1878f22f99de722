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

// Unseen lets Load answer a user who may read one namespace alone, and then says what that user
// could not see.
type Unseen struct {
	Namespace string // of the pods to list, where those of all namespaces are forbidden

	Nodes  error // why nodes could not be listed; nil: they were
	Pods   error // why pods of other namespaces could not be listed; nil: they were
	Quotas error // why ResourceQuotas could not be listed; nil: they were, or were not asked for

	failed bool // the pods could be listed of no namespace
}

// AskForRole names the roles that show everything.
const AskForRole = "Ask for the ClusterRole gpumem-viewer; usage needs the Role of the same name too."

// Parts name the parts of the answer that the user could not see.
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

// why says in a few words why not all pods are known, where some node or pod could not be seen.
func (u *Unseen) why() string {
	if u.Nodes != nil {
		return "you may not list nodes"
	}
	return "you may not list the pods of all namespaces"
}

// nodes notes that nodes may not be listed. Any other error, or one without Unseen, is returned: it
// says which commands answer without.
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

// Any reports whether some node or pod could not be seen.
func (u *Unseen) Any() bool { return u.anyNodes() || u != nil && u.Pods != nil }

// Some reports whether some nodes or pods could not be seen, and others were.
func (u *Unseen) Some() bool { return u.Any() && !u.failed }

// only returns the namespace whose pods alone may be listed; empty: those of all may.
func (u *Unseen) only() string {
	if u == nil || u.Pods == nil {
		return ""
	}
	return u.Namespace
}

// listAllowedPods lists the pods of all namespaces or, where that is forbidden, those of one.
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

// said returns what pods say of the nodes that they are on: which of the GPUs they have. The facts
// of these nodes are that none is known to offer cores.
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

// indexesOf reads the annotation with the indexes of a pod's GPUs, in the order of its shares.
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
