// Command gpumem-attack starts a real cluster on this machine, installs gpumem, and tries on it
// what docs/security.md tells of, see package attack.
//
//	gpumem-attack                                        with the chart as it comes
//	gpumem-attack -set admission.holdAnnotations=false   with other values: what is open then
//
// It prints a line for each attack, and ends with one that begins with "result:". It fails when
// an attack was not blocked.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/gpumem/gpumem/test/attack"
	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/cmd/internal/command"
	"github.com/gpumem/gpumem/test/stack"
)

func main() {
	command.Main("gpumem-attack", run)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("gpumem-attack", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var values []string
	flags.Func("set", "a value of the chart, as Helm's --set takes it; more than once", func(value string) error {
		values = append(values, value)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	config := cluster.Config{Name: "attack", Log: stack.Progress(stderr)}
	if config.Nodes, err = stack.TwoNodes(); err != nil {
		return err
	}
	var results attack.Results
	err = stack.With(ctx, config, func(c *cluster.Cluster, built *stack.Stack) error {
		if err := built.LoadImages(ctx, c); err != nil {
			return err
		}
		if _, err := built.Install(ctx, c, values...); err != nil {
			return err
		}
		results, err = attack.Run(ctx, attack.Config{Cluster: c, Stack: built, Values: values, Own: true, Log: stdout})
		if !results.OK() {
			built.SaveLogs(context.WithoutCancel(ctx), c)
		}
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, results)
	if !results.OK() {
		return errors.New("not all attacks were blocked")
	}
	return nil
}
