package fit

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// byQuota answers a user who may not list nodes and the pods of other namespaces by the quotas of one namespace.
func (o *Options) byQuota(ctx context.Context, unseen *cluster.Unseen) error {
	o.Limit(unseen.Parts()...)
	if exceeded := o.sayQuotas(ctx, unseen.Namespace); exceeded != nil {
		return exceeded
	}
	return cmdutil.Exit(cmdutil.Unjudged, errors.New("you may not list nodes, so the nodes that the pod fits are unknown: create the pod; if it waits, kubectl inspect gpumem explain shows the reason"))
}

// sayQuotas prints what the quotas of a namespace leave. The error says that one refuses the pod.
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
			said = fmt.Sprintf("nothing (%d are used)", q.Used.Units) // it is younger than the pods, or was made smaller
		}
		fmt.Fprintf(o.Out, "ResourceQuota %s/%s leaves %s of %d requests.%s\n", namespace, table.Clean(q.Name), said, q.Hard.Units, o.wish.resource(o.Cluster.Names))
		// Units are GiB unless the cluster is set up otherwise, and its nodes, which say so, may be hidden.
		if req, err := o.wish.request(o.Cluster.Names, 1024); err == nil && left < req.Units() {
			exceeded = fmt.Errorf("the pod exceeds ResourceQuota %s", q.Name)
		}
	}
	return exceeded
}
