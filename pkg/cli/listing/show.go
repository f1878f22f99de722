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
	Name    func(R) string                     // for -o name
	ID      func(R) string                     // identifies the object of a row
	Notes   func(rows []R, wide bool) []string // the legend; nil for none

	// Unseen returns the parts that the user could not see at the last Read. It is nil for views that need
	// all namespaces.
	Unseen func() *cluster.Unseen

	// End returns the last row of an object that is gone, for a watch. If it is nil, a watch prints no such
	// row.
	End func(R) R
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
		fmt.Fprintln(l.ErrOut, "Nothing found"+l.within(v.Kind))
	}
	incomplete := l.Complain(report.Problems)
	if !l.Watch {
		return incomplete
	}
	l.NoteLimits()
	return follow(ctx, l, v, report, rows)
}

// within returns " in namespace NAME" for a list of pods that is limited to one namespace. Other objects
// have no namespace.
func (l *Flags) within(kind string) string {
	if namespace := l.Namespace(); namespace != "" && kind == PodKind {
		return " in namespace " + table.Clean(namespace)
	}
	return ""
}

// follow prints the rows that change and, if the view has End, a last row for each object that is gone.
func follow[R any](ctx context.Context, l *Flags, v View[R], report inspect.Report, rows []R) error {
	seen, headed := linesOf(l, v, report, rows), len(rows) > 0
	unseen := func() *cluster.Unseen { return nil }
	if v.Unseen != nil {
		unseen = v.Unseen
	}
	return l.Cluster.OnChange(ctx, unseen(), func(ctx context.Context) error {
		report, used, err := v.Read(ctx)
		if err != nil {
			return err
		}
		if report.RequestedUnknown && !unseen().Some() { // without the pods, all rows would seem to have ended
			_ = l.Complain(report.Problems)
			return nil
		}
		now := v.Rows(report, used)
		lines := linesOf(l, v, report, now)
		var fresh []R
		for _, row := range rows {
			if _, there := lines[v.ID(row)]; !there && v.End != nil && l.Format != cmdutil.Name {
				fresh = append(fresh, v.End(row))
			}
		}
		for _, row := range now {
			if id := v.ID(row); seen[id] != lines[id] {
				fresh = append(fresh, row)
			}
		}
		seen, rows = lines, now
		first := !headed && len(fresh) > 0
		headed = headed || first
		return Print(l.Out, l, v, report, fresh, first && !l.NoHeaders)
	})
}

// linesOf returns the visible cells of each row by ID, without the columns that show an age.
func linesOf[R any](l *Flags, v View[R], report inspect.Report, rows []R) map[string]string {
	columns := slices.DeleteFunc(table.Shown(columnsOf(l, v, report), l.Format == cmdutil.Wide), func(c table.Column[R]) bool { return c.Ages })
	lines := make(map[string]string, len(rows))
	for _, row := range rows {
		lines[v.ID(row)] = strings.Join(table.Cells(columns, row), "\x00")
	}
	return lines
}
