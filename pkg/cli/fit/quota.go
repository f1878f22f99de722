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
	if _, exceeded := o.printQuotas(ctx, unseen.Namespace, 0); exceeded != nil {
		return exceeded
	}
	return cmdutil.Exit(cmdutil.ExitUnknown, errors.New("you may not list nodes, so the nodes that the pod fits are unknown: create the pod; if it waits, kubectl inspect gpumem explain shows the reason"))
}

// printQuotas prints the free amount of each quota of a namespace. It returns the number of pods that the
// quotas permit, at most parameter pods. The error names a quota that permits none.
func (o *Options) printQuotas(ctx context.Context, namespace string, pods int) (permitted int, exceeded error) {
	quotas, err := o.Cluster.Quotas(ctx, namespace, 0)
	if err != nil {
		o.NoteMissing("ResourceQuotas of namespace " + namespace)
		return pods, nil //nolint:nilerr // the answer has a note about rights
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
		req, err := o.pod.request(o.Cluster.Names, 1024)
		if err != nil {
			continue
		}
		pods = min(pods, int(max(0, free)/req.Units()))
		if free < req.Units() {
			exceeded = fmt.Errorf("the pod exceeds ResourceQuota %s", q.Name)
		}
	}
	return pods, exceeded
}
