package fit

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// byQuota answers a user who may not list nodes and the pods of other namespaces by the quotas of one namespace.
func (o *Options) byQuota(ctx context.Context, unseen *cluster.Unseen) error {
	o.NoteUnseen(unseen)
	if exceeded := o.sayQuotas(ctx, unseen.Namespace); exceeded != nil {
		return exceeded
	}
	return cmdutil.Exit(cmdutil.Unjudged, errors.New("you may not list nodes, so whether it fits on one is unknown: create the pod, and kubectl inspect gpumem explain shows why it waits"))
}

// sayQuotas prints what the quotas of a namespace leave. The error says that one refuses the pod.
func (o *Options) sayQuotas(ctx context.Context, namespace string) (exceeded error) {
	resource := "requests." + o.wish.resource(o.Cluster.Names)
	quotas, err := o.Cluster.Client.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		o.Limit("ResourceQuotas of namespace " + namespace)
		return nil //nolint:nilerr // the answer has a note about rights
	}
	for _, q := range quotas.Items {
		hard, limited := q.Status.Hard[resource]
		if !limited {
			continue
		}
		left := hard.DeepCopy()
		left.Sub(q.Status.Used[resource])
		said := left.String()
		if used := q.Status.Used[resource]; left.Sign() < 0 {
			said = fmt.Sprintf("nothing (%s are used)", used.String()) // it is younger than the pods, or was made smaller
		}
		fmt.Fprintf(o.Out, "ResourceQuota %s/%s leaves %s of %s %s\n", q.Namespace, table.Clean(q.Name), said, hard.String(), resource)
		// Units are GiB unless the cluster is set up otherwise, and its nodes, which say so, may be hidden.
		if req, err := o.wish.request(o.Cluster.Names, 1024); err == nil && left.CmpInt64(int64(req.Units())) < 0 {
			exceeded = fmt.Errorf("it fits nowhere: ResourceQuota %s refuses it", q.Name)
		}
	}
	return exceeded
}
