package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/cli/cmdutil"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Options are the options of the command explain.
type Options struct {
	*cmdutil.Factory
	output cmdutil.Output
	all    bool // show all nodes

	cluster *cluster.Reader
	pod     string // POD, NAMESPACE/POD or TYPE/NAME
}

// NewCommand returns the command explain.
func NewCommand(f *cmdutil.Factory) *cobra.Command {
	o := &Options{Factory: f}
	cmd := &cobra.Command{
		Use:   "explain POD|TYPE/NAME [-n NAMESPACE] [--all]",
		Short: "Explain why a pod waits, or why it is on its node",
		Long: `Explain why a pod waits, or why it is on its node.

For a waiting pod, the command shows the GPUs of the closest nodes (of every
node with --all), each with the reason why the pod does not fit. For a pod on a
node, it shows the GPUs of this node and the scores of the other nodes.

The command computes the current fit from objects of the API server. It reads
past decisions from the scheduler, which records its last answers about each
pod. To see them, you need the right to forward ports to the scheduler's pods
(create pods/portforward).

For TYPE/NAME, with the type of a controller such as deployment or job, the
command explains its newest pod that waits, or else its newest pod.`,
		Example: "  kubectl inspect gpumem explain -n ml train-0\n\n  kubectl inspect gpumem explain -n ml deployment/serve",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmdutil.HasKind(args) {
				return nil
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		ValidArgsFunction: f.CompletePods,
		RunE:              func(cmd *cobra.Command, args []string) error { return cmdutil.Run(cmd, args, o) },
	}
	f.SetNamespaceHelp(cmd, cmdutil.NamespaceOfPod)
	cmd.Flags().BoolVar(&o.all, "all", false, "Show all nodes instead of the closest ones")
	o.output.Add(cmd, "text")
	return cmd
}

// Complete parses the name of the pod and connects to the cluster.
func (o *Options) Complete(args []string) (err error) {
	o.pod = strings.Join(args, "/")
	o.cluster, err = o.Connect()
	return err
}

// Validate returns an error if the output format is invalid.
func (o *Options) Validate() error { return o.output.Check() }

// Run prints the explanation of the pod.
func (o *Options) Run(ctx context.Context) error {
	pod, err := o.GetPod(ctx, o.cluster, o.pod)
	if err != nil {
		return err
	}
	namespace, name := pod.Namespace, pod.Name
	e, err := o.explainPod(ctx, pod)
	if err != nil {
		return err
	}
	for _, key := range o.cluster.Names.Unknown(pod) {
		fmt.Fprintf(o.ErrOut, "warning: annotation %s has no effect, because gpumem does not know it: %s\n", table.Clean(key), correct(o.cluster.Names, key))
	}
	extenders, unread := o.cluster.Extenders(ctx)
	e.Decided, err = o.cluster.Decided(ctx, extenders, namespace, name, string(pod.UID))
	e.recordMissing = e.placedByGPUMem && e.Decided == nil && err == nil && len(extenders) > 0
	defer o.noteUnread(cmp.Or(unread, err)) // after the answer
	if o.output.ForPrograms() {
		return o.output.Print(o.Out, e)
	}
	return o.print(e)
}

// correct returns the remedy for a pod's annotation that has no effect.
func correct(names api.Names, key string) string {
	if slices.Contains([]string{string(names.GPUMem()), string(names.GPUShares()), string(names.GPUCore())}, key) {
		return "it is a resource: request it in the limits of a container, and remove the annotation"
	}
	if meant := names.MeantAnnotation(key); meant != "" {
		return "did you mean " + meant + "?"
	}
	return "correct its name, or remove it"
}

// noteUnread reports why the scheduler's decisions are missing from the answer.
func (o *Options) noteUnread(err error) {
	switch {
	case err == nil:
	case apierrors.IsForbidden(err):
		o.NoteMissing(cluster.Decisions)
	default:
		fmt.Fprintf(o.ErrOut, "warning: the scheduler's decisions cannot be read: %s\n", table.Clean(cluster.OneLine(err)))
	}
}
