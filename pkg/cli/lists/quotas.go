package lists

import (
	"cmp"
	"context"
	"math"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// readQuotas notes what ResourceQuotas allow each namespace. What cannot be read is a problem of the
// report, or, where it is forbidden, a note.
func (o *namespaces) readQuotas(ctx context.Context, report *inspect.Report) {
	namespace := o.Namespace()
	if o.unseen.Pods != nil {
		namespace = o.unseen.Namespace
	}
	list, err := o.Cluster.Client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		o.unseen.Quotas = err
		o.NoteUnseen(o.unseen)
		return
	case err != nil:
		report.Problems = append(report.Problems, inspect.Problem{Object: "resourcequotas", Message: cluster.OneLine(err)})
		return
	}
	o.quotas = make(map[string][]inspect.Quota)
	for _, q := range list.Items {
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			continue // it counts some of the pods alone
		}
		for _, inShares := range []bool{false, true} {
			requests := "requests." + o.Cluster.Names.Offered(inShares)
			hard, limited := q.Status.Hard[requests]
			if !limited {
				continue
			}
			unit := report.UnitMiB()
			o.quotas[q.Namespace] = append(o.quotas[q.Namespace], inspect.Quota{
				Name: q.Name, Used: amountOf(q.Status.Used[requests], inShares, unit), Hard: amountOf(hard, inShares, unit),
			})
		}
	}
	for _, of := range o.quotas {
		slices.SortStableFunc(of, func(a, b inspect.Quota) int { return cmp.Compare(a.Name, b.Name) })
	}
}

// amountOf returns what a quantity of a resource is, where a unit of memory has so many MiB.
func amountOf(q resource.Quantity, inShares bool, unitMiB int64) inspect.Memory {
	if inShares {
		return inspect.Memory{Units: gpu.Units(q.Value()), InShares: true}
	}
	return inspect.Memory{Units: gpu.Units(q.Value()), MiB: min(q.Value(), math.MaxInt64/max(1, unitMiB)) * unitMiB}
}
