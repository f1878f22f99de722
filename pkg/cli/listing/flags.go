package listing

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Flags are the flags that all lists share.
type Flags struct {
	*cmdutil.Factory
	cmdutil.Output
	Selector  string
	NoHeaders bool
	SortBy    string
	Watch     bool
	Whole     bool // a watch prints the whole output again, in any format

	Cluster *cluster.Reader // set by Complete

	layout table.Layout // of the last output
	fields []string     // valid for --sort-by, even if no row has them
}

// Add adds the flags of every list. Parameter selects names the objects whose labels --selector matches,
// and fields lists the fields that the help of --sort-by names.
func (l *Flags) Add(cmd *cobra.Command, selects string, fields ...string) {
	l.fields = fields
	f := cmd.Flags()
	l.Output.Add(cmd, "a table", cmdutil.Wide, cmdutil.Name, cmdutil.CustomColumns)
	f.StringVarP(&l.Selector, "selector", "l", "", "Show only "+selects+" whose labels match, for example team=a")
	f.BoolVar(&l.NoHeaders, "no-headers", false, "Print only the rows, without headers, legends and sums")
	f.StringVar(&l.SortBy, "sort-by", "", "Sort by a field of the JSON form, as a JSONPath: "+strings.Join(fields, " or "))
}

// AddWatch adds --watch and --all-namespaces, for lists of existing objects.
func (l *Flags) AddWatch(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&l.Watch, "watch", "w", false, "After listing, print rows that change")
	l.AddAllNamespaces(cmd)
}

// Complete connects to the cluster.
func (l *Flags) Complete() (err error) {
	l.Cluster, err = l.Connect()
	return err
}

// Validate returns all errors in the flags.
func (l *Flags) Validate() error {
	errs := []error{l.Output.Check()}
	if spec := l.Columns(); spec != "" {
		_, err := CustomColumns[any](spec)
		errs = append(errs, err)
	}
	if _, err := pathOf("sort-by", l.SortBy); l.SortBy != "" && err != nil {
		errs = append(errs, fmt.Errorf("--sort-by: %w", err))
	}
	if l.Watch && l.ForPrograms() && !l.Whole {
		errs = append(errs, fmt.Errorf("--watch prints rows and does not work with -o %s", l.Format))
	}
	if _, err := labels.Parse(l.Selector); err != nil {
		errs = append(errs, fmt.Errorf("--selector: %w", err))
	}
	return errors.Join(errs...)
}
