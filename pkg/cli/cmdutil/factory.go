package cmdutil

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // authentication plugins of kubeconfigs

	"github.com/gpumem/gpumem/pkg/cli/cluster"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// Factory contains the flags of the whole command tree. Its methods create readers of the cluster and
// reports.
type Factory struct {
	genericiooptions.IOStreams
	Colours  bool                 // the output is a terminal, and the user has not disabled colours
	Bars     bool                 // the output is a terminal that can draw bars
	Terminal int                  // width of the terminal in columns; 0 if the output is no terminal
	Version  string               // of the program
	Log      func(level int)      // starts the log of API requests at a level; nil disables the log
	Client   kubernetes.Interface // if nil, Connect creates a client from the kubeconfig

	// AllNamespaces is the flag --all-namespaces of commands that list pods.
	AllNamespaces bool

	config *genericclioptions.ConfigFlags
	domain string
	system string          // namespace of gpumem
	level  int             // of the log
	warned bool            // the warning about an unreadable policy has been printed
	hidden []string        // parts of the answer that the user may not read, not yet reported
	noted  map[string]bool // all parts that were ever in hidden
}

// NewFactory returns a Factory with default flags.
func NewFactory(streams genericiooptions.IOStreams, version string) *Factory {
	config := genericclioptions.NewConfigFlags(true)
	config.CacheDir = nil // the commands need no discovery cache
	return &Factory{IOStreams: streams, Version: version, config: config, domain: api.DefaultDomain, system: "gpumem-system", noted: make(map[string]bool)}
}

// AddFlags adds the flags that all commands share.
func (f *Factory) AddFlags(flags *pflag.FlagSet) {
	f.config.AddFlags(flags)
	if f := flags.Lookup("namespace"); f != nil {
		f.Usage = listOnly
	}
	flags.StringVar(&f.domain, "resource-domain", f.domain, "Domain of the resources and annotations that this cluster uses")
	flags.IntVarP(&f.level, "v", "v", f.level, "Level of the log on stderr; levels from 6 include the requests to the API server")
	flags.StringVar(&f.system, "gpumem-namespace", f.system, "Namespace that gpumem is installed in; workloads elsewhere are ignored, even with gpumem's labels")
}

// Help texts of --namespace, for commands with different meanings of the flag.
const (
	NamespaceOfPod = "Namespace of the pod, unless it is named as NAMESPACE/POD; defaults to the kubeconfig's"
	listOnly       = "List only the pods of this namespace; the sums still count the pods of all namespaces"
	NamespaceOfAll = "Has no effect here: pods of all namespaces count"
	NamespaceOfOne = "Namespace whose ResourceQuotas are checked, and the only one read if you may not list all namespaces; defaults to the kubeconfig's"
)

// SetNamespaceHelp adds the flag --namespace with a help text for this command.
func (f *Factory) SetNamespaceHelp(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP(f.config.Namespace, "namespace", "n", "", usage)
	// The call fails only if the flag does not exist, which a test would detect.
	_ = cmd.RegisterFlagCompletionFunc("namespace", f.CompleteNamespaces)
}

// AddAllNamespaces adds --namespace with the help text for lists of pods, and --all-namespaces, which
// overrides --namespace.
func (f *Factory) AddAllNamespaces(cmd *cobra.Command) {
	f.SetNamespaceHelp(cmd, listOnly)
	cmd.Flags().BoolVarP(&f.AllNamespaces, "all-namespaces", "A", f.AllNamespaces, "List the pods of all namespaces (the default), even if --namespace is set")
}

// Namespace returns the value of --namespace; empty for all namespaces. It ignores the kubeconfig's
// namespace, which would hide pods from users who did not choose it.
func (f *Factory) Namespace() string {
	if f.AllNamespaces || f.config.Namespace == nil {
		return ""
	}
	return *f.config.Namespace
}

// Connect returns a reader of the cluster that the flags select.
func (f *Factory) Connect() (*cluster.Reader, error) {
	if f.Log != nil && f.level > 0 {
		f.Log(f.level)
	}
	r := &cluster.Reader{Client: f.Client, System: f.system}
	var err error
	if r.Names, err = api.NewNames(f.domain); err != nil {
		return nil, fmt.Errorf("--resource-domain: %w", err)
	}
	if r.Client != nil {
		return r, nil
	}
	config, err := f.config.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	// These are kubectl's limits. client-go's default of five requests per second would delay the lists of a large
	// cluster, which have many pages.
	config.QPS, config.Burst = 50, 300
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.WarningHandler = rest.NewWarningWriter(f.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	r.REST = config
	r.Client, err = kubernetes.NewForConfig(config)
	return r, err
}

// ReadPolicy stores the cluster's policy in facts and reports whether it could read the policy. If not, it stores
// the default policy and, once per process, prints a warning.
func (f *Factory) ReadPolicy(ctx context.Context, r *cluster.Reader, facts *inspect.Facts) bool {
	policy, err := r.Policy(ctx)
	facts.Policy = cmp.Or(policy, cluster.DefaultPolicy)
	if err != nil && !f.warned && !facts.PodsUnknown { // without the pods, nothing depends on the policy
		f.warned = true
		fmt.Fprintf(f.ErrOut, "warning: assuming the policy %s, because the cluster's policy cannot be read: %s\n", cluster.DefaultPolicy, table.Clean(cluster.OneLine(err)))
	}
	return err == nil
}

// Report reads the cluster and returns a report. If --namespace is set, the report has only the pods of
// that namespace.
func (f *Factory) Report(ctx context.Context, r *cluster.Reader, sel cluster.Selection) (inspect.Report, error) {
	nodes, facts, err := r.Load(ctx, sel)
	if err != nil {
		return inspect.Report{}, err
	}
	if len(facts.Waiting) > 0 {
		f.ReadPolicy(ctx, r, &facts)
	}
	f.NoteMissing(sel.Limits.MissingParts()...)
	report := inspect.New(nodes, facts)
	if namespace := f.Namespace(); namespace != "" {
		report = report.InNamespace(namespace)
	}
	return report, nil
}

// NewAccessLimits returns AccessLimits for commands that can answer a user who may read only one namespace.
// The namespace is the value of --namespace or, without the flag, the kubeconfig's namespace.
func (f *Factory) NewAccessLimits() *cluster.AccessLimits {
	namespace, _, _ := f.podNamed("") // on an error the namespace is empty, and Load has no fallback
	return &cluster.AccessLimits{Namespace: namespace}
}

// NoteMissing records parts of the answer that the user may not read. PrintMissing reports each part once.
func (f *Factory) NoteMissing(parts ...string) {
	for _, part := range parts {
		if !f.noted[part] {
			f.noted[part] = true
			f.hidden = append(f.hidden, part)
		}
	}
}

// PrintMissing prints one line about the rights that the user lacks. The function Run calls PrintMissing
// after the command's output.
func (f *Factory) PrintMissing() {
	if len(f.hidden) > 0 {
		fmt.Fprintf(f.ErrOut, "note: not shown, because you lack the right: %s. %s\n", table.Clean(strings.Join(f.hidden, ", ")), table.Clean(cluster.RequiredRights(f.hidden, f.system)))
		f.hidden = nil
	}
}

// PrintProblems prints a warning for each problem, at most cluster.MaxListed. It returns an error if there
// are problems.
func (f *Factory) PrintProblems(problems []inspect.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	for _, p := range problems[:min(len(problems), cluster.MaxListed)] {
		fmt.Fprintf(f.ErrOut, "warning: %s: %s\n", table.Clean(p.Object), table.Clean(p.Message))
	}
	if more := len(problems) - cluster.MaxListed; more > 0 {
		fmt.Fprintf(f.ErrOut, "warning: and %d more; -o json lists them\n", more)
	}
	return errors.New("not everything could be read: the output is incomplete")
}
