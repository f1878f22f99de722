package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/report/doctor"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Options are the options of the command doctor.
type Options struct {
	*cmdutil.Factory
	output cmdutil.Output
	wait   bool
}

// NewCommand returns the command doctor.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Options{Factory: f}
	cmd := &cobra.Command{
		Use:   "doctor [--wait] [-o FORMAT]",
		Short: "Find faults of gpumem in this cluster, and their remedies",
		Long: `Find faults of gpumem in this cluster, and their remedies.

Doctor checks the installation: gpumem's own workloads, admission policies and
certificates, nodes and their GPUs, and whether pods with GPU memory name a
scheduler that asks gpumem. docs/troubleshooting.md lists the checks. Doctor
changes nothing. For a single pod, use the command explain.

Checks skip objects that you may not read, and workloads younger than a minute,
which may still be starting; notes list both. After an installation, --wait
waits until everything can be checked. If several objects have the same fault,
the text output merges them into one line; -o json has one finding for each.

The exit code is 1 if a finding is an error, and 2 if nothing could be checked.
Warnings and notes alone leave it at 0.`,
		Example: "  kubectl inspect gpumem doctor --wait\n  kubectl inspect gpumem doctor -o json |\n    jq -r '.items[] | select(.severity==\"error\").object'",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	f.SetNamespaceHelp(cmd, cmdutil.NamespaceOfOne)
	o.output.Add(cmd, "text")
	cmd.Flags().BoolVar(&o.wait, "wait", o.wait, "Wait until all workloads are old enough to be checked: a minute at most")
	return cmd
}

// Complete does nothing, because Run connects to the cluster.
func (o *Options) Complete([]string) error { return nil }

// Validate returns an error if the output format is invalid.
func (o *Options) Validate() error { return o.output.Check() }

// Run prints the findings. It returns an error if a finding is an error, or if nothing could be checked.
func (o *Options) Run(ctx context.Context) error {
	r, err := o.Connect()
	if err != nil {
		return err
	}
	read := func() (*doctor.State, error) {
		return r.State(ctx, time.Now(), o.Version, o.NewAccessLimits().Namespace)
	}
	state, err := read()
	if err != nil {
		return err
	}
	if young, left := state.YoungWorkloads(); o.wait && len(young) > 0 {
		fmt.Fprintf(o.ErrOut, "Waiting %s, until all workloads can be checked\n", duration.HumanDuration(left))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(left):
		}
		if state, err = read(); err != nil {
			return err
		}
	}
	findings := doctor.Examine(state)
	if err := o.print(findings); err != nil {
		return err
	}
	if !state.Judged() {
		return cmdutil.Exit(cmdutil.ExitUnknown, errors.New("nothing could be checked: you may list neither nodes nor pods nor gpumem's workloads"))
	}
	wrong := 0
	for _, f := range findings {
		if f.Severity == doctor.Error {
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d findings are errors", wrong, len(findings))
	}
	return nil
}

func (o *Options) print(findings []doctor.Finding) error {
	if o.output.ForPrograms() {
		return o.output.Print(o.Out, table.NewItems("FindingList", findings, nil))
	}
	for _, f := range doctor.Alike(findings) {
		if _, err := fmt.Fprintf(o.Out, "%-8s%s: %s\n        %s\n", f.Severity, table.Clean(f.Object), table.Clean(f.Wrong), table.Clean(f.Fix)); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Severity != doctor.Note }) {
		return nil
	}
	verdict := "No problem found."
	if slices.ContainsFunc(findings, func(f doctor.Finding) bool { return f.Check == "" }) {
		verdict = "No problem found in the other checks."
	}
	_, err := fmt.Fprintln(o.Out, verdict)
	return err
}
