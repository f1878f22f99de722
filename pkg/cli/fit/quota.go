package fit

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// byQuota prints the free amount of the quotas of one namespace, for a user who may not list nodes or
// the pods of other namespaces.
func (o *Options) byQuota(ctx context.Context, unseen *cluster.Unseen) error {
	o.Limit(unseen.Parts()...)
	if exceeded := o.sayQuotas(ctx, unseen.Namespace); exceeded != nil {
		return exceeded
	}
	return cmdutil.Exit(cmdutil.Unjudged, errors.New("you may not list nodes, so the nodes that the pod fits are unknown: create the pod; if it waits, kubectl inspect gpumem explain shows the reason"))
}

// sayQuotas prints the free amount of each quota of a namespace. The error names a quota that the pod
// exceeds.
func (o *Options) sayQuotas(ctx context.Context, namespace string) (exceeded error) {
	quotas, err := o.Cluster.Quotas(ctx, namespace, 0)
	if err != nil {
		o.Limit("ResourceQuotas of namespace " + namespace)
		return nil //nolint:nilerr // the answer has a note about rights
	}
	for _, q := range quotas[namespace] {
		if q.Hard.InShares != (o.wish.memory == "") {
			continue
		}
		left := q.Hard.Units - q.Used.Units
		said := fmt.Sprint(left)
		if left < 0 {
			said = fmt.Sprintf("nothing (%d are used)", q.Used.Units) // the quota is younger than the pods, or was reduced
		}
		fmt.Fprintf(o.Out, "ResourceQuota %s/%s leaves %s of %d requests.%s\n", namespace, table.Clean(q.Name), said, q.Hard.Units, o.wish.resource(o.Cluster.Names))
		// Assume the default unit of 1 GiB, because the user may not be able to read the unit from the nodes.
		if req, err := o.wish.request(o.Cluster.Names, 1024); err == nil && left < req.Units() {
			exceeded = fmt.Errorf("the pod exceeds ResourceQuota %s", q.Name)
		}
	}
	return exceeded
}
