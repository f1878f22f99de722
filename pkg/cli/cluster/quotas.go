package cluster

import (
	"cmp"
	"context"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Quotas returns the ResourceQuotas on GPU memory of a namespace or, if namespace is empty, of all namespaces. The
// result maps each namespace to its quotas, sorted by name. It omits quotas with scopes, which limit only some pods.
// Amounts have MiB only if unitMiB, the size of a unit, is not 0.
func (r *Reader) Quotas(ctx context.Context, namespace string, unitMiB int64) (map[string][]inspect.Quota, error) {
	list, err := r.Client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	quotas := make(map[string][]inspect.Quota)
	for _, q := range list.Items {
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			continue
		}
		for _, inShares := range []bool{false, true} {
			requests := "requests." + r.Names.Offered(inShares)
			if hard, limited := q.Status.Hard[requests]; limited {
				quotas[q.Namespace] = append(quotas[q.Namespace], inspect.Quota{
					Name: q.Name, Used: amountOf(q.Status.Used[requests], inShares, unitMiB), Hard: amountOf(hard, inShares, unitMiB),
				})
			}
		}
	}
	for _, of := range quotas {
		slices.SortStableFunc(of, func(a, b inspect.Quota) int { return cmp.Compare(a.Name, b.Name) })
	}
	return quotas, nil
}

func amountOf(q resource.Quantity, inShares bool, unitMiB int64) inspect.Memory {
	if inShares {
		return inspect.Memory{Units: gpu.Units(q.Value()), InShares: true}
	}
	return inspect.Memory{Units: gpu.Units(q.Value()), MiB: min(q.Value(), math.MaxInt64/max(1, unitMiB)) * unitMiB}
}
