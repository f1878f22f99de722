package listing

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// View defines a list: how to read it, its rows and its columns.
type View[R any] struct {
	Kind    string // of the list, in JSON
	Read    func(context.Context) (inspect.Report, cluster.Usage, error)
	Rows    func(inspect.Report, cluster.Usage) []R
	Columns func(inspect.Report) []table.Column[R]
	Name    func(R) string // for -o name
	ID      func(R) string // identifies the object of a row

	// Limits returns the parts that the user was not allowed to see at the last Read. It is nil for views that
	// need all namespaces.
	Limits func() *cluster.AccessLimits

	// EndRow returns the last row of an object that is gone, for a watch. If EndRow is nil, a watch prints no
	// such row.
	EndRow func(R) R
}

// PodKind is the kind of a list of pods in JSON.
const PodKind = "PodList"

// Show prints a view and, with --watch, the rows that change.
func Show[R any](ctx context.Context, l *Flags, v View[R]) error {
	report, used, err := v.Read(ctx)
	if err != nil {
		return err
	}
	rows := v.Rows(report, used)
	if err := Sort(l, rows); err != nil {
		return err
	}
	report.Problems = slices.Concat(report.Problems, used.Problems)
	if err := Print(l.Out, l, v, report, rows, !l.NoHeaders); err != nil {
		return err
	}
	if len(rows) == 0 && len(report.Problems) == 0 && !l.ForPrograms() {
		fmt.Fprintln(l.ErrOut, "Nothing found"+l.namespaceSuffix(v.Kind))
	}
	incomplete := l.PrintProblems(report.Problems)
	if !l.Watch {
		return incomplete
	}
	l.PrintMissing()
	return watchRows(ctx, l, v, report, rows)
}

// namespaceSuffix returns " in namespace NAME" for a list of pods that is limited to one namespace. Other objects
// have no namespace.
func (l *Flags) namespaceSuffix(kind string) string {
	if namespace := l.Namespace(); namespace != "" && kind == PodKind {
		return " in namespace " + table.Clean(namespace)
	}
	return ""
}

// watchRows prints the rows that change and, if the view has EndRow, a last row for each object that is gone.
func watchRows[R any](ctx context.Context, l *Flags, v View[R], report inspect.Report, rows []R) error {
	printed, headed := linesOf(l, v, report, rows), len(rows) > 0
	unseen := func() *cluster.AccessLimits { return nil }
	if v.Limits != nil {
		unseen = v.Limits
	}
	return l.Cluster.OnChange(ctx, unseen(), func(ctx context.Context) error {
		report, used, err := v.Read(ctx)
		if err != nil {
			return err
		}
		if report.RequestedUnknown && !unseen().HasSomePods() { // without the pods, all rows would seem to have ended
			_ = l.PrintProblems(report.Problems)
			return nil
		}
		current := v.Rows(report, used)
		lines := linesOf(l, v, report, current)
		var fresh []R
		for _, row := range rows {
			if _, there := lines[v.ID(row)]; !there && v.EndRow != nil && l.Format != cmdutil.Name {
				fresh = append(fresh, v.EndRow(row))
			}
		}
		for _, row := range current {
			if id := v.ID(row); printed[id] != lines[id] {
				fresh = append(fresh, row)
			}
		}
		printed, rows = lines, current
		first := !headed && len(fresh) > 0
		headed = headed || first
		return Print(l.Out, l, v, report, fresh, first && !l.NoHeaders)
	})
}

// linesOf returns the visible cells of each row by ID, without the columns that show an age.
func linesOf[R any](l *Flags, v View[R], report inspect.Report, rows []R) map[string]string {
	columns := slices.DeleteFunc(table.VisibleColumns(columnsOf(l, v, report), l.Format == cmdutil.Wide), func(c table.Column[R]) bool { return c.Ages })
	lines := make(map[string]string, len(rows))
	for _, row := range rows {
		lines[v.ID(row)] = strings.Join(table.Cells(columns, row), "\x00")
	}
	return lines
}
