package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // logins that a kubeconfig may ask for

	"github.com/gpumem/gpumem/pkg/api"
	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/inspect"
	"github.com/gpumem/gpumem/pkg/printers"
)

// options is all that a run needs. Complete fills in what follows from the
// flags, Validate says what is wrong with them, Run does the work.
type options struct {
	genericiooptions.IOStreams

	config        *genericclioptions.ConfigFlags
	domain        string
	system        string // namespace of gpumem
	selector      string
	output        string
	details       bool
	noHeaders     bool
	allNamespaces bool
	watch         bool
	suggest       func(word string) []string // commands that a word may mean; nil: none
	shown         *string                    // what Run has printed last; nil: nothing yet
	warned        bool                       // that the cluster's policy cannot be read

	nodes  []string // empty: all
	names  api.Names
	client kubernetes.Interface // made from config unless it is set
	rest   *rest.Config         // nil when the client was set

	cluster *cluster.Reader // made by Complete
}

func newOptions(streams genericiooptions.IOStreams) *options {
	config := genericclioptions.NewConfigFlags(true)
	config.CacheDir = nil // of discovery, which this command does not need
	return &options{IOStreams: streams, config: config, domain: api.DefaultDomain, system: "gpumem-system"}
}

// formats are the values of --output.
func formats() []string { return []string{"wide", "json", "yaml", "name"} }

// addSharedFlags adds the flags that all commands of the tree share.
func (o *options) addSharedFlags(f *pflag.FlagSet) {
	o.config.AddFlags(f)
	if f := f.Lookup("namespace"); f != nil {
		f.Usage = "List only the pods of this namespace. The pods of all others still count in the sums"
	}
	f.StringVar(&o.domain, "resource-domain", o.domain, "Domain of the resources and annotations that this cluster uses")
	f.StringVar(&o.system, "gpumem-namespace", o.system, "Namespace that gpumem is installed in: what is elsewhere is not believed, whatever it is called")
}

// What --namespace means to commands that list no pods.
const (
	namespaceOfPod = "Namespace of the pod, unless it is named as NAMESPACE/POD; that of the kubeconfig unless set"
	namespaceOfAll = "Changes nothing here: pods of all namespaces count"
)

// sayNamespace gives a command a help of its own for the shared flag --namespace.
func (o *options) sayNamespace(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP(o.config.Namespace, "namespace", "n", "", usage)
	// It fails for a flag that does not exist, which a test would show.
	_ = cmd.RegisterFlagCompletionFunc("namespace", o.completeNamespaces)
}

// addOverviewFlags adds those of the overview.
func (o *options) addOverviewFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", o.output, "Output format: "+strings.Join(formats(), ", ")+"; a table unless set")
	f.StringVarP(&o.selector, "selector", "l", o.selector, "Show only nodes whose labels match, for example pool=gpu")
	f.BoolVarP(&o.details, "details", "d", o.details, "Show each node with its GPUs and the pods on them, and the pods that wait for a node")
	f.BoolVar(&o.noHeaders, "no-headers", o.noHeaders, "Print rows alone, without headers, legends and sums")
	f.BoolVarP(&o.watch, "watch", "w", o.watch, "Print it again whenever it changes")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", o.allNamespaces, "List the pods of all namespaces, which is the default")
	// It fails for a flag that does not exist, which a test would show.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp))
}

// Complete derives what the flags stand for.
func (o *options) Complete(args []string) error {
	o.nodes = nil
	for _, name := range args {
		// The form in which -o name prints them.
		name = strings.TrimPrefix(name, "node/")
		if !slices.Contains(o.nodes, name) {
			o.nodes = append(o.nodes, name)
		}
	}
	var err error
	if o.names, err = api.NewNames(o.domain); err != nil {
		return fmt.Errorf("--resource-domain: %w", err)
	}
	if o.client != nil {
		o.cluster = &cluster.Reader{Names: o.names, Client: o.client, REST: o.rest, System: o.system}
		return nil
	}
	config, err := o.config.ToRESTConfig()
	if err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	// The pages of a large cluster come one after the other; client-go would
	// make them wait for its default of five in a second. These are kubectl's.
	config.QPS, config.Burst = 50, 300
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.WarningHandler = rest.NewWarningWriter(o.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	o.rest = config
	o.client, err = kubernetes.NewForConfig(config)
	o.cluster = &cluster.Reader{Names: o.names, Client: o.client, REST: o.rest, System: o.system}
	return err
}

// Validate reports all that is wrong with the flags.
func (o *options) Validate() error {
	var errs []error
	if o.output != "" && !slices.Contains(formats(), o.output) {
		errs = append(errs, fmt.Errorf("--output is %q, want one of %s", o.output, strings.Join(formats(), ", ")))
	}
	if o.output == "name" && o.details {
		errs = append(errs, errors.New("--details has no place in the output of -o name"))
	}
	if len(o.nodes) > 0 && o.selector != "" {
		errs = append(errs, errors.New("names of nodes and --selector exclude each other"))
	}
	if slices.Contains(o.nodes, "") {
		errs = append(errs, errors.New("the name of a node is empty"))
	}
	if _, err := labels.Parse(o.selector); err != nil {
		errs = append(errs, fmt.Errorf("--selector: %w", err))
	}
	return errors.Join(errs...)
}

// Run looks at the cluster and prints what it found.
func (o *options) Run(ctx context.Context) error {
	report, err := o.report(ctx, cluster.Selection{Names: o.nodes, Labels: o.selector})
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := o.printer()(&text, report); err != nil {
		return err
	}
	now := text.String()
	if o.shown != nil {
		if *o.shown == now {
			return nil // something has changed that is not shown
		}
		fmt.Fprintln(o.Out)
	}
	o.shown = &now
	if _, err := io.WriteString(o.Out, now); err != nil {
		return err
	}
	if len(report.Nodes) == 0 && len(report.Problems) == 0 {
		if o.selector != "" && report.WithoutInventory == 0 {
			fmt.Fprintf(o.ErrOut, "No node matches the selector %s\n", printers.Clean(o.selector))
		} else {
			fmt.Fprintf(o.ErrOut, "No nodes found that offer %s (%d without it)\n", report.Resource, report.WithoutInventory)
		}
	}
	if command := o.meant(report); command != "" {
		fmt.Fprintf(o.ErrOut, "There is no node %s: did you mean the command %s?\n", printers.Clean(o.nodes[0]), command)
	}
	return o.complain(report)
}

// meant returns the command that the first argument may be, where it names no node.
func (o *options) meant(r inspect.Report) string {
	if o.suggest == nil || len(o.nodes) == 0 || slices.ContainsFunc(r.Nodes, func(n inspect.Node) bool { return n.Name == o.nodes[0] }) {
		return ""
	}
	if strings.ContainsAny(o.nodes[0], "-.0123456789") {
		return "" // as in names of nodes, and in no command
	}
	return strings.Join(o.suggest(o.nodes[0]), " or ")
}

// report reads the cluster, and leaves out the pods of namespaces that are not
// asked for.
func (o *options) report(ctx context.Context, sel cluster.Selection) (inspect.Report, error) {
	nodes, facts, err := o.cluster.Load(ctx, sel)
	if err != nil {
		return inspect.Report{}, err
	}
	if len(facts.Waiting) > 0 {
		o.learnPolicy(ctx, &facts)
	}
	report := inspect.New(nodes, facts)
	if namespace := o.namespace(); namespace != "" {
		report = report.InNamespace(namespace)
	}
	return report, nil
}

// namespace is that of the flag alone: the one of the kubeconfig would hide
// pods from people who never asked for it.
func (o *options) namespace() string {
	if o.allNamespaces || o.config.Namespace == nil {
		return ""
	}
	return *o.config.Namespace
}

func (o *options) printer() printers.Printer {
	table := printers.TableOptions{Wide: o.output == "wide", NoHeaders: o.noHeaders}
	switch {
	case o.output == "json":
		return printers.JSON
	case o.output == "yaml":
		return printYAML
	case o.output == "name":
		return printers.Names
	case o.details:
		return printers.Details(table)
	default:
		return printers.Table(table)
	}
}

func printYAML(w io.Writer, r inspect.Report) error {
	var text bytes.Buffer
	if err := printers.JSON(&text, r); err != nil {
		return err
	}
	out, err := yaml.JSONToYAML(text.Bytes())
	if err != nil {
		return err
	}
	_, err = w.Write(out)
	return err
}

// complain tells what the output lacks. The error says that it lacks something.
func (o *options) complain(r inspect.Report) error {
	if len(r.Problems) == 0 {
		return nil
	}
	for _, p := range r.Problems[:min(len(r.Problems), cluster.MostNamed)] {
		fmt.Fprintf(o.ErrOut, "warning: %s: %s\n", printers.Clean(p.Object), printers.Clean(p.Message))
	}
	if more := len(r.Problems) - cluster.MostNamed; more > 0 {
		fmt.Fprintf(o.ErrOut, "warning: and %d more; -o json lists them\n", more)
	}
	return errors.New("not everything could be read: the output is incomplete")
}

// learnPolicy adds the cluster's policy to the facts, and reports whether it is known. Where it
// cannot be read, a warning says so, once, and the default is taken.
func (o *options) learnPolicy(ctx context.Context, facts *inspect.Facts) bool {
	policy, err := o.cluster.Policy(ctx)
	facts.Policy = cmp.Or(policy, cluster.DefaultPolicy)
	if err != nil && !o.warned {
		o.warned = true
		fmt.Fprintf(o.ErrOut, "warning: the cluster's policy cannot be read, and is taken to be %s: %s\n", cluster.DefaultPolicy, printers.Clean(cluster.OneLine(err)))
	}
	return err == nil
}
