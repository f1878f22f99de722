package fit

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// printQuotaAnswer prints the free amount of the quotas of one namespace, for a user who may not list nodes or
// the pods of other namespaces.
func (o *Options) printQuotaAnswer(ctx context.Context, unseen *cluster.AccessLimits) error {
	o.NoteMissing(unseen.MissingParts()...)
	if exceeded := o.printQuotas(ctx, unseen.Namespace); exceeded != nil {
		return exceeded
	}
	return cmdutil.Exit(cmdutil.ExitUnknown, errors.New("you may not list nodes, so the nodes that the pod fits are unknown: create the pod; if it waits, kubectl inspect gpumem explain shows the reason"))
}

// printQuotas prints the free amount of each quota of a namespace. The error names a quota that the pod
// exceeds.
func (o *Options) printQuotas(ctx context.Context, namespace string) (exceeded error) {
	quotas, err := o.Cluster.Quotas(ctx, namespace, 0)
	if err != nil {
		o.NoteMissing("ResourceQuotas of namespace " + namespace)
		return nil //nolint:nilerr // the answer has a note about rights
	}
	for _, q := range quotas[namespace] {
		if q.Hard.InShares != (o.pod.memory == "") {
			continue
		}
		free := q.Hard.Units - q.Used.Units
		amount := fmt.Sprint(free)
		if free < 0 {
			amount = fmt.Sprintf("nothing (%d are used)", q.Used.Units) // the quota is younger than the pods, or was reduced
		}
		fmt.Fprintf(o.Out, "ResourceQuota %s/%s leaves %s of %d requests.%s\n", namespace, table.Clean(q.Name), amount, q.Hard.Units, o.pod.resource(o.Cluster.Names))
		// Assume the default unit of 1 GiB, because the user may not be able to read the unit from the nodes.
		if req, err := o.pod.request(o.Cluster.Names, 1024); err == nil && free < req.Units() {
			exceeded = fmt.Errorf("the pod exceeds ResourceQuota %s", q.Name)
		}
	}
	return exceeded
}
