package lists

import (
	"context"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/cli/listing"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/printers"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// NewNamespacesCommand returns the command namespaces.
func NewNamespacesCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Pods{selects: func(printers.PodRow) bool { return true }, waiting: func() bool { return false }}
	cmd := newCommand(f, &cobra.Command{
		Use: "namespaces", Aliases: []string{"ns"}, Short: "Show the allocated, used and waiting memory of each namespace",
		Long: `Show the GPU memory of each namespace: the amount allocated to its pods, their
share of all GPU memory, the amount that they use, and the amount that waiting
pods request. If namespaces have ResourceQuotas, the list shows their use too. A
quota counts waiting pods too. Quotas with scopes count only some pods, so the
list leaves them out.`,
		Example: `  # For a bill: namespace and MiB
  kubectl inspect gpumem ns -o custom-columns=NS:.namespace,MIB:.granted.MiB

  # Who waits for the most
  kubectl inspect gpumem ns --sort-by=.waitsFor.MiB`,
	}, o, ".namespace", ".granted.MiB", ".waitsFor.MiB", ".usage.usedMiB")
	cmd.Use = "namespaces [-n NAMESPACE] [-o FORMAT] [-w]"
	cmd.Args, cmd.ValidArgsFunction = cobra.NoArgs, nil
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, &namespaces{Pods: o}) }
	return cmd
}

// readQuotas reads the quotas of the listed namespaces. An error becomes a problem of the report. If the
// user lacks the right, the command prints a note instead.
func (o *namespaces) readQuotas(ctx context.Context, report *inspect.Report) {
	namespace := o.Namespace()
	if o.limits.Pods != nil {
		namespace = o.limits.Namespace
	}
	quotas, err := o.Cluster.Quotas(ctx, namespace, report.UnitMiB())
	switch {
	case apierrors.IsForbidden(err):
		o.limits.Quotas = err
		o.NoteMissing(o.limits.MissingParts()...)
	case err != nil:
		report.Problems = append(report.Problems, inspect.Problem{Object: "resourcequotas", Message: cluster.OneLine(err)})
	default:
		o.quotas = quotas
	}
}

// namespaces are the options of the command namespaces.
type namespaces struct {
	*Pods

	quotas  map[string][]inspect.Quota // by namespace, from the last read
	limited *bool                      // some namespace had a quota when Run printed the header; nil before
}

// Run prints the list.
func (o *namespaces) Run(ctx context.Context) error {
	read, err := o.reader()
	if err != nil {
		return err
	}
	return listing.Show(ctx, &o.Flags, listing.View[printers.NamespaceRow]{
		Kind: "NamespaceList",
		Read: func(ctx context.Context) (inspect.Report, cluster.Usage, error) {
			report, used, err := read(ctx)
			if err == nil {
				o.readQuotas(ctx, &report)
			}
			return report, used, err
		},
		Rows: func(r inspect.Report, u cluster.Usage) []printers.NamespaceRow {
			rows := printers.NamespaceRows(o.rows(r, u), r.Total)
			for i, row := range rows {
				rows[i].Quotas = o.quotas[row.Namespace]
			}
			return rows
		},
		Columns: func(r inspect.Report) []table.Column[printers.NamespaceRow] {
			if o.limited == nil {
				o.limited = new(len(o.quotas) > 0)
			}
			return printers.NamespaceColumns(r, *o.limited)
		},
		Name: func(n printers.NamespaceRow) string { return "namespace/" + n.Namespace },
		ID:   func(n printers.NamespaceRow) string { return n.Namespace },
	})
}
